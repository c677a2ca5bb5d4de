//! What wakes the tracer thread: a change of one of its tasks, or a command of the owner.
//!
//! `waitpid` can be waited in for tasks, or not at all; a channel can be waited in for commands. One
//! socket pair joins the two: SIGCHLD, which the kernel sends at every stop and end, writes into it, and
//! so does a sender of a command. The handler goes through `signal-hook-registry`, as tokio's does, so
//! that both live side by side.

use std::{
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    sync::Arc,
    time::Duration,
};

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use signal_hook_registry::SigId;

/// The end that wakes.
#[derive(Clone, Debug)]
pub(super) struct Waker(Arc<UnixStream>);

impl Waker {
    pub(super) fn wake(&self) {
        // A full socket has been written to already, and a closed one has no reader to wake.
        let _ = (&*self.0).write(&[1]);
    }
}

/// The end that sleeps.
#[derive(Debug)]
pub(super) struct Sleeper {
    socket: UnixStream,
    handler: SigId,
}

impl Sleeper {
    pub(super) fn new() -> io::Result<(Self, Waker)> {
        let (socket, other) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let waker = Waker(Arc::new(other));
        let handler = {
            let waker = waker.clone();
            // SAFETY: the action writes one byte to a non-blocking socket: no lock, no allocation.
            unsafe { signal_hook_registry::register(libc::SIGCHLD, move || waker.wake())? }
        };
        Ok((Self { socket, handler }, waker))
    }

    /// Sleeps until woken, at most `limit`.
    pub(super) fn sleep(&mut self, limit: Duration) {
        let limit = PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX);
        // An interrupted sleep is a short one.
        let _ = poll(&mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)], limit);
        let mut bytes = [0; 256];
        while matches!(self.socket.read(&mut bytes), Ok(n) if n == bytes.len()) {}
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        signal_hook_registry::unregister(self.handler);
    }
}
