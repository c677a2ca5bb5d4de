//! A command that is observed from its first instruction on: which of its images, and what becomes of the others.

use std::ffi::OsString;

use drainprof_probe::launch::{Disposition, LaunchError, LaunchEvent, Origin, TraceError};
use drainprof_process::readers;

use super::{Engine, launched::Launched, signals::Came};
use crate::ObserveError;

/// Programs that do nothing but execute another one. What they hold themselves is of no interest, and ptrace has let go of
/// them by then if they were observed: what they execute would be met late.
const WRAPPERS: [&str; 25] = [
    "chroot",
    "chrt",
    "dumb-init",
    "env",
    "flock",
    "gosu",
    "ionice",
    "nice",
    "nohup",
    "nsenter",
    "numactl",
    "prlimit",
    "runuser",
    "setarch",
    "setpriv",
    "setsid",
    "stdbuf",
    "su",
    "su-exec",
    "sudo",
    "taskset",
    "time",
    "timeout",
    "tini",
    "unshare",
];

/// Whether a process executes such a program.
fn is_wrapper(pid: u32) -> bool {
    readers::open(pid).is_ok_and(|process| WRAPPERS.contains(&process.comm.as_str()))
}

/// Why nothing of a command was observed.
#[derive(Debug, thiserror::Error)]
pub enum NotObserved {
    /// It executed nothing else.
    #[error("the command executed nothing but wrappers, such as env or chroot")]
    Wrappers,
    /// It was too short.
    #[error("the command ended before it could be examined")]
    Ended,
    /// What it executed cannot be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// A process could not be held at its entry.
    #[error(transparent)]
    Trace(#[from] TraceError),
}

/// A command under observation.
pub struct Command {
    launched: Launched,
    /// Whether children are followed although an image was attached to.
    follow: bool,
    /// Whether any image was attached to.
    attached: bool,
    /// Why the last image that was examined was not.
    refused: Option<NotObserved>,
}

impl Command {
    /// Starts it.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(argv: &[OsString], follow: bool) -> Result<Self, LaunchError> {
        let launched = Launched::start(argv)?;
        Ok(Self { launched, follow, attached: false, refused: None })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.launched.pid()
    }

    /// Whether any of its images is observed; if not, why.
    ///
    /// # Errors
    /// If none is.
    pub fn require_observed(&mut self) -> Result<(), NotObserved> {
        if self.attached {
            return Ok(());
        }
        Err(self.refused.take().unwrap_or(NotObserved::Ended))
    }

    /// Waits for its end: `Ok(code)` or `Err(signal)`.
    pub async fn wait(&mut self) -> Option<Result<i32, i32>> {
        self.launched.wait().await;
        self.launched.outcome()
    }

    pub(super) const fn is_attached(&self) -> bool {
        self.attached
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.launched.status().is_some()
    }

    pub(super) async fn next(&mut self) -> LaunchEvent {
        self.launched.next().await
    }

    pub(super) fn forward(&self, came: Came) {
        self.launched.forward(came);
    }

    /// Deals with what the tracer says.
    pub(super) fn on_event(&mut self, event: LaunchEvent, engine: &mut Engine) {
        match event {
            LaunchEvent::AtEntry { pid, .. } if is_wrapper(pid) => {
                self.refused.get_or_insert(NotObserved::Wrappers);
                self.launched.resume(pid, Disposition::KeepTracing);
            }
            LaunchEvent::AtEntry { pid, origin } => match engine.add(pid, true) {
                Ok(()) => {
                    if !self.attached {
                        self.attached = true;
                        engine.start();
                    }
                    self.launched.resume(pid, Disposition::Detach);
                }
                Err(error) => {
                    // What it executes next may match.
                    let disposition = if matches!(error, ObserveError::NoMatch { .. }) {
                        tracing::warn!(
                            "no profile matches process {pid} so far; drainprof checks what it \
                             executes and starts next"
                        );
                        Disposition::KeepTracing
                    } else {
                        if origin == Origin::Command {
                            // Nothing of it has run, and it was to run observed.
                            self.launched.kill();
                        }
                        Disposition::Detach
                    };
                    self.refused = Some(error.into());
                    self.launched.resume(pid, disposition);
                }
            },
            LaunchEvent::Forked { child, .. } => {
                let wanted = self.follow || !self.attached;
                let disposition =
                    if wanted { Disposition::KeepTracing } else { Disposition::Detach };
                self.launched.resume(child, disposition);
            }
            LaunchEvent::Exited { .. } => {}
            LaunchEvent::Error { pid, error } => {
                tracing::warn!(pid, %error, "a process could not be held at its entry");
                self.refused.get_or_insert_with(|| error.into());
            }
        }
    }
}
