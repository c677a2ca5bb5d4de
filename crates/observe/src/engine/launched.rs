//! A command that was started: what it starts and executes is held until it may go on.

use std::{ffi::OsString, os::unix::process::ExitStatusExt as _, process::ExitStatus};

use drainprof_probe::launch::{
    Disposition, Handle, Launch, LaunchError, LaunchEvent, LaunchOptions, Origin,
};
use nix::libc::{SIGHUP, SIGTERM};
use tokio::sync::mpsc::Receiver;

use super::signals::{Came, Signals};

/// A command that was started.
pub struct Launched {
    handle: Handle,
    events: Receiver<LaunchEvent>,
    status: Option<ExitStatus>,
    /// Whether the tracer has nothing more to say.
    silent: bool,
}

impl Launched {
    /// Starts a command. A shell or another wrapper matches no profile: what it starts is held, too.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(argv: &[OsString]) -> Result<Self, LaunchError> {
        let mut options = LaunchOptions::new(argv);
        options.follow_forks = true;
        let (handle, events) = Launch::spawn(options)?;
        Ok(Self { handle, events, status: None, silent: false })
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.handle.pid()
    }

    /// How it ended, once it has.
    #[must_use]
    pub const fn status(&self) -> Option<ExitStatus> {
        self.status
    }

    /// The status as reports have it: `Ok(code)` or `Err(signal)`.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<i32, i32>> {
        let outcome =
            |status: ExitStatus| status.code().ok_or_else(|| status.signal().unwrap_or_default());
        self.status.map(outcome)
    }

    /// Lets a held process go on.
    pub fn resume(&self, pid: u32, disposition: Disposition) {
        self.handle.resume(pid, disposition);
    }

    /// Lets all run untraced.
    pub fn release(&self) {
        self.handle.release();
    }

    /// Kills the command.
    pub(super) fn kill(&self) {
        // It may have ended.
        let _ = self.handle.forward_signal(nix::libc::SIGKILL);
    }

    /// Forwards a signal that has come. Ctrl-C reaches the command by itself.
    pub(super) fn forward(&self, came: Came) {
        let signal = match came {
            Came::Interrupt => return,
            Came::Terminate => SIGTERM,
            Came::HangUp => SIGHUP,
        };
        // It may have ended.
        let _ = self.handle.forward_signal(signal);
    }

    /// What happened next; waits for ever once nothing more can.
    pub async fn next(&mut self) -> LaunchEvent {
        while !self.silent {
            match self.events.recv().await {
                Some(event) => {
                    self.note(&event);
                    return event;
                }
                None => self.silent = true,
            }
        }
        std::future::pending().await
    }

    fn note(&mut self, event: &LaunchEvent) {
        if let LaunchEvent::Exited { pid, status } = event
            && *pid == self.pid()
        {
            self.status = Some(*status);
        }
    }

    /// Waits until it stands at its first instruction; `false`: it ended before.
    ///
    /// # Errors
    /// If it could not be held.
    pub async fn at_entry(&mut self) -> Result<bool, drainprof_probe::launch::TraceError> {
        while let Some(event) = self.events.recv().await {
            self.note(&event);
            match event {
                LaunchEvent::AtEntry { origin: Origin::Command, .. } => return Ok(true),
                LaunchEvent::Error { error, .. } => return Err(error),
                LaunchEvent::AtEntry { pid, .. } | LaunchEvent::Forked { child: pid, .. } => {
                    self.resume(pid, Disposition::KeepTracing);
                }
                LaunchEvent::Exited { .. } => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Waits until its status is known; what is held meanwhile goes on.
    pub async fn wait(&mut self) {
        while self.status.is_none() {
            let Some(event) = self.events.recv().await else { return };
            self.note(&event);
            if let LaunchEvent::AtEntry { pid, .. } | LaunchEvent::Forked { child: pid, .. } = event
            {
                self.resume(pid, Disposition::Detach);
            }
        }
    }

    /// The same while signals are forwarded.
    pub async fn wait_forwarding(&mut self, signals: &mut Signals) {
        loop {
            let came = tokio::select! {
                () = self.wait() => return,
                came = signals.next() => came,
            };
            self.forward(came);
        }
    }
}
