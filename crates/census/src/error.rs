//! Why there is no census.

use drainprof_process::ProcessError;

/// Why there is no census.
#[derive(Debug, thiserror::Error)]
pub enum CensusError {
    /// The process cannot be inspected: it does not exist, has ended, or may not be read.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// It is larger than [`crate::Options::largest_bytes`].
    #[error(
        "process {pid} has {bytes} bytes of writable anonymous memory, and the limit is {largest}"
    )]
    TooLarge {
        /// The process.
        pid: u32,
        /// Its writable anonymous memory, resident or not.
        bytes: u64,
        /// The limit.
        largest: u64,
    },
    /// It cannot be frozen, because another process traces it.
    #[error(
        "process {pid} cannot be frozen: process {tracer} traces it already, as a debugger or strace does"
    )]
    Traced {
        /// The process.
        pid: u32,
        /// The process that traces it.
        tracer: u32,
    },
    /// Its threads did not stop.
    #[error(
        "process {pid} cannot be frozen: a thread waits in the kernel and does not stop; it runs on"
    )]
    NotFrozen {
        /// The process.
        pid: u32,
    },
}
