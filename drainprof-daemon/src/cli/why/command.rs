//! `drainprof why -- CMD`: a command and what it starts, each image held at its first instruction until it is observed.

use std::{ffi::OsString, process::ExitStatus};

use anyhow::{Context as _, Result};
use drainprof_observe::why::Inquiry;
use drainprof_probe::launch::{Disposition, Handle, Launch, LaunchEvent, LaunchOptions, Origin};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::Receiver,
};

use super::MOST;
use crate::cli::{code, exit::Failure};

/// A command that was started.
pub(super) struct Command {
    handle: Handle,
    events: Receiver<LaunchEvent>,
    status: Option<ExitStatus>,
    /// Whether the tracer has nothing more to say.
    silent: bool,
    /// Processes that run unobserved because there are too many.
    left_out: usize,
}

impl Command {
    /// Starts a command, and returns once it stands at its first instruction.
    ///
    /// # Errors
    /// If it cannot be started, or ends before.
    pub(super) async fn start(argv: &[OsString]) -> Result<Self> {
        let mut options = LaunchOptions::new(argv);
        options.follow_forks = true;
        let (handle, events) = Launch::spawn(options)?;
        let mut command = Self { handle, events, status: None, silent: false, left_out: 0 };
        loop {
            match command.events.recv().await {
                Some(LaunchEvent::AtEntry { origin: Origin::Command, .. }) => return Ok(command),
                Some(LaunchEvent::Error { error, .. }) => {
                    return Err(error).context("the command could not be held at its entry");
                }
                Some(LaunchEvent::AtEntry { pid, .. } | LaunchEvent::Forked { child: pid, .. }) => {
                    command.handle.resume(pid, Disposition::KeepTracing);
                }
                Some(LaunchEvent::Exited { .. }) | None => {
                    let text = "the command ended before it could be examined";
                    return Err(Failure::new(code::NO_TARGET, text).into());
                }
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.handle.pid()
    }

    /// It is observed: it may run.
    pub(super) fn go(&self) {
        self.handle.resume(self.pid(), Disposition::KeepTracing);
    }

    /// What happened to the command and what it has started. Waits for ever once nothing more can.
    pub(super) async fn next(&mut self) -> Option<LaunchEvent> {
        if self.silent {
            return std::future::pending().await;
        }
        let event = self.events.recv().await;
        self.silent = event.is_none();
        event
    }

    /// Observes what is held, and lets it go on.
    pub(super) fn heard(&mut self, event: LaunchEvent, inquiry: &mut Inquiry) -> Result<()> {
        let (pid, from_start) = match event {
            LaunchEvent::AtEntry { pid, .. } => (pid, true),
            // It begins with what its parent has.
            LaunchEvent::Forked { child, .. } => (child, false),
            LaunchEvent::Exited { pid, status } => {
                if pid == self.pid() {
                    self.status = Some(status);
                }
                return Ok(());
            }
            LaunchEvent::Error { pid, error } => {
                tracing::warn!(pid, %error, "a process could not be held, and is not observed");
                return Ok(());
            }
        };
        if inquiry.pids().contains(&pid) || inquiry.pids().len() < MOST {
            let joined = inquiry.join(pid, from_start);
            self.handle.resume(pid, Disposition::KeepTracing);
            joined?;
        } else {
            self.left_out += 1;
            self.handle.resume(pid, Disposition::Detach);
        }
        Ok(())
    }

    /// Lets all run untraced. Returns how many processes were not observed.
    pub(super) fn release(&self) -> usize {
        self.handle.release();
        self.left_out
    }

    /// Waits for the command's end, and says how it ended. SIGTERM is passed on; Ctrl-C reaches it by itself.
    pub(super) async fn ended(mut self) -> Result<Option<ExitStatus>> {
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
        let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
        while self.status.is_none() {
            tokio::select! {
                event = self.events.recv() => match event {
                    Some(LaunchEvent::Exited { pid, status }) if pid == self.handle.pid() => {
                        self.status = Some(status);
                    }
                    Some(_) => {}
                    None => break,
                },
                _ = interrupt.recv() => {}
                // It has ended: then there is nobody to pass it on to.
                _ = terminate.recv() => drop(self.handle.forward_signal(nix::libc::SIGTERM)),
            }
        }
        Ok(self.status)
    }
}
