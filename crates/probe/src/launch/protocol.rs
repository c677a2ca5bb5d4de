//! What a launch is asked for, what it reports, and what it is answered.

use std::{
    ffi::OsString,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use super::error::TraceError;

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
    /// An image stands at its entry point and waits for [`Handle::resume`](super::Handle::resume).
    AtEntry {
        /// The process.
        pid: u32,
        /// How the image came to be.
        origin: Origin,
    },
    /// A traced process made a child, which waits for [`Handle::resume`](super::Handle::resume) before its first instruction.
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
