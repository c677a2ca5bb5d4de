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
mod spawn;
mod sys;
mod tracer;
mod wake;

#[cfg(test)]
mod tests;

use std::{
    ffi::OsString,
    process::{ExitStatus, Stdio},
    time::Duration,
};

pub use error::{LaunchError, TraceError};
pub use handle::Handle;
use tokio::sync::mpsc::Receiver;

/// How many events may wait for the owner before the traced processes stop being held for it.
pub const EVENT_CAPACITY: usize = 256;

/// What to start, and how.
#[derive(Debug)]
pub struct LaunchOptions {
    /// The program and its arguments; a name without `/` is looked for in `PATH`.
    pub argv: Vec<OsString>,
    /// Whether the children of a traced process are traced as well, from their first instruction on.
    pub follow_forks: bool,
    /// How long a process is held for an answer; then it runs on untraced.
    pub hold_limit: Duration,
    /// Standard input; inherited by default.
    pub stdin: Stdio,
    /// Standard output; inherited by default.
    pub stdout: Stdio,
    /// Standard error; inherited by default.
    pub stderr: Stdio,
}

impl LaunchOptions {
    /// Options for `argv` with our own standard streams.
    #[must_use]
    pub fn new<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            follow_forks: false,
            hold_limit: Duration::from_secs(30),
            stdin: Stdio::inherit(),
            stdout: Stdio::inherit(),
            stderr: Stdio::inherit(),
        }
    }
}

/// What happened to a traced process.
#[derive(Debug)]
pub enum LaunchEvent {
    /// An image stands at its entry point and waits for [`Handle::resume`].
    AtEntry {
        /// The process.
        pid: u32,
        /// How the image came to be.
        origin: Origin,
    },
    /// A traced process made a child, which waits for [`Handle::resume`] before its first instruction.
    /// Only with [`LaunchOptions::follow_forks`].
    Forked {
        /// The process that forked.
        parent: u32,
        /// Its child, which still runs the parent's image.
        child: u32,
    },
    /// A process ended: the command itself, whether still traced or not, or another that was traced.
    Exited {
        /// The process.
        pid: u32,
        /// How it ended.
        status: ExitStatus,
    },
    /// Tracing a process failed at some point; it is not held and runs on.
    Error {
        /// The process.
        pid: u32,
        /// What failed.
        error: TraceError,
    },
}

/// How an image that stands at its entry point came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is the command itself (or, for a script, its interpreter).
    Command,
    /// A traced process executed it later.
    Exec,
}

/// What is to become of a held process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Let it run, untraced from now on.
    Detach,
    /// Let it run, and stop it again at the entry point of the next image that it executes.
    KeepTracing,
}

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
