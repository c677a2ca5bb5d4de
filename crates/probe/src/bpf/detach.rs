//! Taking probes out without waiting for it.
//!
//! The kernel needs about a tenth of a second to remove one probe, one after the other. So
//! links are closed on a thread of their own: nothing counts any more once the targets are taken out, and
//! what was counted can be read and reported meanwhile.

use std::{
    sync::{
        Arc, OnceLock,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use drainprof_process::Workers;

use super::obstacles;

/// Between two checks whether a process is in the way.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that all wait for: several would wait for each other in the kernel.
static DETACHER: Workers = Workers::new("detach", 1);

/// Probes on their way out. Dropping it changes nothing about that; a process that ends first waits for
/// them all the same, in the kernel.
#[derive(Debug)]
#[must_use = "the probes are still there until it was waited for"]
pub struct Detaching {
    end: Option<Receiver<()>>,
    /// When the last probe was gone.
    gone: Arc<OnceLock<Instant>>,
}

impl Detaching {
    /// Closes probes, then whatever `rest` holds, on another thread; on this one where there can be no other.
    pub(super) fn begin<T: Send + 'static>(probes: impl Send + 'static, rest: T) -> Self {
        let gone = Arc::new(OnceLock::new());
        let known = Arc::clone(&gone);
        let work = move || {
            drop(probes);
            // It is set nowhere else.
            let _ = known.set(Instant::now());
            drop(rest);
        };
        // Where there can be no thread, the closure is dropped with what it holds.
        let end = DETACHER.start(work);
        if let Err(error) = &end {
            tracing::debug!(%error, "no thread to detach on");
        }
        Self { end: end.ok(), gone }
    }

    /// When the last probe was gone, if all are. What else there was may go later.
    #[must_use]
    pub fn gone(&self) -> Option<Instant> {
        self.gone.get().copied()
    }

    /// Whether the probes are gone, and all else.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.end.as_ref().is_none_or(|end| end.try_recv() != Err(TryRecvError::Empty))
    }

    /// Waits until the probes are gone.
    pub fn wait(self) {
        self.wait_for(Duration::MAX);
    }

    /// The same, but for so long at most where a process is in their way: then the kernel waits for that process at the
    /// end of this one.
    pub fn wait_for(self, patience: Duration) {
        let Some(end) = self.end else { return };
        // It only closes descriptors. If that was received before, it is disconnected.
        while end.recv_timeout(CHECK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if obstacles::waits().is_some_and(|waits| waits >= patience) {
                return;
            }
        }
    }
}
