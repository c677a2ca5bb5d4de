//! Starts a command so that probes can be in place before the first instruction of its `main`.
//!
//! The command is executed under ptrace up to its entry point: its start-up libraries are mapped and
//! relocated then, and [`LaunchEvent::AtEntry`] asks the owner to attach. The owner answers with a
//! [`Disposition`]; after [`Disposition::Detach`] the command runs as if it had never been traced, and
//! the tracer thread only waits for its end. With [`Disposition::KeepTracing`] the next exec stops at
//! its entry too, which is what `run -- env X=1 svc` and `run -- sh -c 'svc &'` need.
//!
//! What it does not do: attach probes, decide what is of interest, or outlive its owner: when the
//! [`Handle`] is dropped, or the whole tracer dies, everything traced is detached and runs on. One
//! exception is described in docs/run.md: SIGKILL of the tracer in the milliseconds between an exec and the
//! entry point leaves a breakpoint behind.
//!
//! One thread per launch owns all ptrace calls, because the kernel ties them to a thread. It never
//! waits for its owner without limit: see [`LaunchOptions::hold_limit`].
//!
//! Called by `cli::run`.

mod entry;
mod error;
mod handle;
mod protocol;
mod spawn;
mod sys;
mod tracer;
mod wake;

#[cfg(test)]
mod tests;

pub use error::{LaunchError, TraceError};
pub use handle::Handle;
pub use protocol::{Disposition, EVENT_CAPACITY, LaunchEvent, LaunchOptions, Origin};
use tokio::sync::mpsc::Receiver;

/// Starts commands under trace.
#[derive(Debug)]
pub struct Launch;

impl Launch {
    /// Starts a command. Returns once the kernel has accepted the program (some milliseconds, during
    /// which the calling thread is blocked); what happens to it then comes through the receiver, which
    /// closes when the command has ended and nothing is traced any more.
    pub fn spawn(options: LaunchOptions) -> Result<(Handle, Receiver<LaunchEvent>), LaunchError> {
        spawn::spawn(options)
    }
}
