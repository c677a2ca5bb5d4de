//! What can go wrong while a command is started, and while it is traced.

use std::io;

use nix::errno::Errno;

/// Why a command could not be started.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// No program was named.
    #[error("no command given: name a program after `--`")]
    NoCommand,
    /// The program, or the interpreter that its first line names, does not exist.
    #[error(
        "cannot start `{command}`: it, or the interpreter that its first line names, was not found"
    )]
    NotFound {
        /// The program as it was named.
        command: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program exists, and cannot be executed.
    #[error("cannot start `{command}`: it is not executable for this user, or not a program")]
    NotExecutable {
        /// The program as it was named.
        command: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Starting failed for another reason.
    #[error("cannot start `{command}`")]
    Spawn {
        /// The program as it was named.
        command: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel does not let us trace our own child.
    #[error(
        "cannot trace the command: {}",
        if *.0 == Errno::EPERM {
            "not permitted (kernel.yama.ptrace_scope 2 or 3, a seccomp filter, or another tracer)"
        } else {
            "the kernel refused"
        }
    )]
    Trace(#[source] Errno),
    /// A pipe, thread, descriptor or signal handler of our own could not be had.
    #[error("cannot set up the launch: {step} failed")]
    Setup {
        /// The step.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl LaunchError {
    /// The exit code that shells, `env`, `nice` and their like give in this case.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NotFound { .. } => 127,
            Self::NotExecutable { .. } => 126,
            Self::NoCommand => 2,
            Self::Trace(Errno::EPERM) => 77,
            Self::Spawn { .. } | Self::Trace(_) | Self::Setup { .. } => 1,
        }
    }
}

/// Why a traced process could not be stopped where it should have been.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The image is not a 64-bit x86 one.
    #[error("the program is not a 64-bit x86 one; drainprof cannot examine it")]
    NotX86_64,
    /// The registers could not be read.
    #[error("cannot read the registers of the new image")]
    Registers(#[source] Errno),
    /// The auxiliary vector could not be read.
    #[error("cannot read the auxiliary vector of the new image")]
    Auxv(#[source] io::Error),
    /// The auxiliary vector names no entry point.
    #[error("the auxiliary vector of the new image names no entry point")]
    NoEntryPoint,
    /// The breakpoint could not be written.
    #[error("cannot stop at the entry point {address:#x}: its text cannot be read and patched")]
    Plant {
        /// The entry point.
        address: u64,
        /// The kernel's answer.
        source: Errno,
    },
    /// The breakpoint was hit, and could not be taken away.
    #[error("cannot take the breakpoint at the entry point away")]
    Unplant(#[source] Errno),
    /// The owner did not answer within [`LaunchOptions::hold_limit`](super::LaunchOptions::hold_limit).
    #[error("held for too long without an answer; the process runs on, without probes")]
    HeldTooLong,
    /// More tasks than the tracer keeps account of.
    #[error("too many processes and threads are traced at once; this one runs on untraced")]
    TooManyTasks,
}
