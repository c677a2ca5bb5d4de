//! Whether it is looked at the targets now, and what can be waited for meanwhile.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result};
use drainprof_observe::{Observer, Resting};
use drainprof_probe::bpf::Session;
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, sleep_until},
};

/// Whether it is looked at the targets now.
pub(in crate::cli) enum Stage {
    /// The probes are in place.
    Watching {
        /// What sees.
        observer: Box<Observer>,
        /// What it can wait for.
        rings: Rings,
    },
    /// Between two windows of a duty cycle.
    Resting(Box<Resting>),
    /// On the way from one to the other.
    Changing,
}

/// The kernel side's rings.
pub(in crate::cli) struct Rings {
    /// Readable when there are events.
    events: AsyncFd<OwnedFd>,
    /// Readable when there are stacks to unwind.
    stacks: AsyncFd<OwnedFd>,
}

impl Rings {
    /// Must be called inside the runtime.
    pub(in crate::cli) fn of(session: &Session) -> std::io::Result<Self> {
        Ok(Self {
            events: session.events_fd().and_then(register)?,
            stacks: session.stacks.snapshots_fd().and_then(register)?,
        })
    }
}

impl Stage {
    /// Returns when there are events.
    pub(super) async fn events(&self) -> std::io::Result<()> {
        match self {
            Self::Watching { rings, .. } => {
                rings.events.readable().await?.clear_ready();
                Ok(())
            }
            Self::Resting(_) | Self::Changing => std::future::pending().await,
        }
    }

    /// Returns when there are stacks to unwind.
    pub(super) async fn stacks(&self) -> std::io::Result<()> {
        match self {
            Self::Watching { rings, .. } => {
                rings.stacks.readable().await?.clear_ready();
                Ok(())
            }
            Self::Resting(_) | Self::Changing => std::future::pending().await,
        }
    }

    pub(super) const fn is_watching(&self) -> bool {
        matches!(self, Self::Watching { .. })
    }
}

pub(in crate::cli) async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

pub(super) async fn wait_readable(fd: OwnedFd) {
    if let Ok(fd) = register(fd) {
        // An error means that it can no longer be waited for; the caller then looks at the process.
        let _ = fd.readable().await;
    }
}

fn register(fd: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the `AsyncFd`, and nobody else closes it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(Into::into)
}

/// Runs a future on a runtime of this thread alone.
pub(in crate::cli) fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(future)
}
