//! Why a process cannot be inspected.

use std::{io, path::PathBuf};

use super::Stuck;

/// Why a process cannot be inspected. Names in messages are escaped already.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// No process has this number.
    #[error("there is no process {pid}")]
    NoSuchProcess {
        /// The number.
        pid: u32,
    },
    /// The process was there and is gone, or its number now belongs to another process.
    #[error("process {pid} has ended")]
    Ended {
        /// Its number.
        pid: u32,
    },
    /// The number is that of a thread.
    #[error("{tid} is a thread of process {pid}, not a process: use -p {pid}")]
    IsThread {
        /// The thread.
        tid: u32,
        /// Its process.
        pid: u32,
    },
    /// The process has exited and its parent has not waited for it.
    #[error("process {pid} ({comm}) has exited and only waits to be reaped by its parent (zombie)")]
    Zombie {
        /// Its number.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The main thread has ended while others run on: the kernel then shows no mappings of the process.
    #[error(
        "the main thread of process {pid} ({comm}) has ended while {threads} other threads run on; \
         such a process cannot be inspected"
    )]
    MainThreadEnded {
        /// Its number.
        pid: u32,
        /// Its name.
        comm: String,
        /// Threads that are left.
        threads: usize,
    },
    /// The kernel's own thread: it has no user-space allocator.
    #[error("{pid} ({comm}) is a kernel thread: it has no user-space allocator")]
    KernelThread {
        /// Its number.
        pid: u32,
        /// Its name.
        comm: String,
    },
    /// The executable is for another architecture or word size.
    #[error(
        "process {pid} runs {exe}, which is {what}; this build of drainprof traces {wanted} only"
    )]
    ForeignExecutable {
        /// Its number.
        pid: u32,
        /// The executable.
        exe: String,
        /// What it is.
        what: String,
        /// What can be traced.
        wanted: &'static str,
    },
    /// It is this very process.
    #[error("process {pid} is drainprof itself, which does not trace itself")]
    Myself {
        /// Its number.
        pid: u32,
    },
    /// Not permitted.
    #[error(
        "not permitted to {step} of process {pid}: run as root, or with CAP_SYS_PTRACE and \
         CAP_DAC_READ_SEARCH (and hidepid off) for processes of other users"
    )]
    Permission {
        /// Its number.
        pid: u32,
        /// What was tried.
        step: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// Something could not be read.
    #[error("cannot {step} of process {pid} ({path})")]
    Read {
        /// Its number.
        pid: u32,
        /// What was tried.
        step: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// `/proc` says something that it should not.
    #[error("cannot understand {path} of process {pid}: {what}")]
    Malformed {
        /// Its number.
        pid: u32,
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The kernel does not answer for it.
    #[error(transparent)]
    Silent(#[from] Stuck),
}

impl ProcessError {
    /// Whether there is no process, or none any more.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Ended { .. } | Self::NoSuchProcess { .. } | Self::Zombie { .. })
    }

    /// The error for a `/proc` file that could not be read: gone, not permitted, or else.
    #[must_use]
    pub fn from_io(pid: u32, step: &'static str, path: PathBuf, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(nix::libc::EPERM | nix::libc::EACCES) => Self::Permission { pid, step, source },
            Some(nix::libc::ENOENT | nix::libc::ESRCH) => Self::Ended { pid },
            _ => Self::Read { pid, step, path, source },
        }
    }
}
