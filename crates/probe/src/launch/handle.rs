//! The owner's side of a launch.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::SyncSender,
    },
};

use nix::errno::Errno;

use super::{protocol::Disposition, sys, wake::Waker};

/// What the owner asks of the tracer thread.
#[derive(Debug)]
pub(super) enum Command {
    /// The program was accepted: from now on its end is for the tracer to reap.
    Started,
    /// The program was refused; its process is reaped already.
    NotStarted,
    /// A held process may go on.
    Resume(u32, Disposition),
    /// Everything may go on, untraced.
    Release,
}

/// Steers a launch. Dropping it detaches all that is traced; the processes run on.
#[derive(Debug)]
pub struct Handle {
    pid: u32,
    pidfd: OwnedFd,
    commands: SyncSender<Command>,
    waker: Waker,
    /// Events that could not be delivered.
    lost: Arc<AtomicU64>,
}

impl Handle {
    pub(super) const fn new(
        pid: u32,
        pidfd: OwnedFd,
        commands: SyncSender<Command>,
        waker: Waker,
        lost: Arc<AtomicU64>,
    ) -> Self {
        Self { pid, pidfd, commands, waker, lost }
    }

    /// The pid of the command.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets a held process go on. A process that is not held (any more) is left as it is.
    pub fn resume(&self, pid: u32, disposition: Disposition) {
        self.send(Command::Resume(pid, disposition));
    }

    /// Detaches everything; the receiver still reports how the command ends.
    pub fn release(&self) {
        self.send(Command::Release);
    }

    /// Sends a signal to the command. `ESRCH`: it has ended.
    pub fn forward_signal(&self, signal: i32) -> Result<(), Errno> {
        sys::pidfd_signal(&self.pidfd, signal)
    }

    /// How many events could not be delivered, because the owner had left
    /// [`EVENT_CAPACITY`](super::EVENT_CAPACITY) of them unread. The processes concerned run untouched.
    #[must_use]
    pub fn lost_events(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    fn send(&self, command: Command) {
        // It fails when the tracer has ended, and then nothing is held; or when more commands wait than
        // there can be tasks, and then the tracer is not running at all.
        let _ = self.commands.try_send(command);
        self.waker.wake();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // The sender itself is dropped after this, so the tracer must not have to notice that.
        self.send(Command::Release);
    }
}
