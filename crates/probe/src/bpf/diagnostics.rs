//! The kernel side's own log, through aya-log: one line per loss, with process, thread and probe, rate-limited.
//!
//! Off unless the log asks for `drainprof::kernel` at level debug (`-vv`, or `RUST_LOG=drainprof::kernel=debug`) when the
//! kernel side is loaded. The verifier then removes the code, so lines that are not read cost nothing.

use aya::Ebpf;
use aya_log::EbpfLogger;
use log::{Log, Metadata, Record};

use super::BpfError;

/// The global that holds the level below which the kernel side logs; 0: nothing.
pub(super) const LEVEL: &str = aya_log::LEVEL;

/// Whether these lines are read.
fn is_wanted() -> bool {
    tracing::enabled!(target: "drainprof::kernel", tracing::Level::DEBUG)
}

/// The value of [`LEVEL`], and the bytes of the map that records come through.
pub(super) fn settings() -> (u8, u32) {
    if is_wanted() { (aya_log::Level::Debug as u8, 1 << 17) } else { (0, 1 << 12) }
}

/// The reader of the log; without one, nothing was asked for.
pub(super) struct Diagnostics(Option<EbpfLogger<Forward>>);

impl Diagnostics {
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, BpfError> {
        if !is_wanted() {
            return Ok(Self(None));
        }
        let logger = EbpfLogger::init_with_logger(ebpf, Forward)
            .map_err(|error| BpfError::Mismatch(format!("the log of the kernel side: {error}")))?;
        Ok(Self(Some(logger)))
    }

    /// Passes on what has come. The kernel side writes at most ten lines per second and CPU.
    pub(super) fn flush(&mut self) {
        if let Some(logger) = &mut self.0 {
            logger.flush();
        }
    }
}

/// Passes records on to `tracing`.
struct Forward;

impl Log for Forward {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        // Names come padded to a fixed length.
        let line = record.args().to_string();
        tracing::debug!(target: "drainprof::kernel", "{}", line.trim_end());
    }

    fn flush(&self) {}
}
