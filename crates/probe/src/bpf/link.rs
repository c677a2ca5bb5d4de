//! Probes in place: one, and those that are taken from a session together.
//!
//! Those that go quickly (`multi`) are closed on many threads at once, and the kernel removes them together.

use std::{num::NonZeroU32, sync::Arc};

use drainprof_process::Workers;

use super::{detach::Detaching, obstacles::Placed, specs::Spec};

/// Threads that close links at once.
const CLOSING_THREADS: usize = 16;
static CLOSERS: Workers = Workers::new("detach", CLOSING_THREADS);

/// A probe in place; it goes when this is dropped.
pub(super) struct Link {
    /// The process that it is in; `None`: all that map the object.
    pid: Option<NonZeroU32>,
    /// Whether many of its kind go at once.
    is_quick: bool,
    /// Before the spec.
    placed: Placed,
    _spec: Option<Arc<Spec>>,
}

impl Link {
    pub(super) const fn new(
        pid: Option<NonZeroU32>,
        is_quick: bool,
        placed: Placed,
        spec: Option<Arc<Spec>>,
    ) -> Self {
        Self { pid, is_quick, placed, _spec: spec }
    }

    /// Whether it is in this process alone.
    pub(super) fn is_of(&self, pid: u32) -> bool {
        self.pid.is_some_and(|of| of.get() == pid)
    }
}

/// Probes that were taken from a session, and are still in place: they go when this is dropped, which takes the
/// kernel a tenth of a second each, or for all of them together where they are those of windows.
#[derive(Default)]
#[must_use = "dropping it waits for the kernel"]
pub struct Leftover(Vec<Link>);

impl Leftover {
    /// Probes in the order in which they are to go.
    pub(super) const fn new(links: Vec<Link>) -> Self {
        Self(links)
    }

    /// Adds those of another process.
    pub fn add(&mut self, mut more: Self) {
        self.0.append(&mut more.0);
    }

    /// How many there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes them out, in the background.
    pub fn detach(self) -> Detaching {
        Detaching::begin(self, ())
    }
}

impl Drop for Leftover {
    fn drop(&mut self) {
        let (quick, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|link| link.is_quick);
        let mut parts: Vec<Vec<Link>> = Vec::new();
        parts.resize_with(CLOSING_THREADS.min(quick.len()), Vec::new);
        for (number, link) in quick.into_iter().enumerate() {
            parts[number % CLOSING_THREADS].push(link);
        }
        // Where there can be no thread, the closure is dropped with what it holds.
        let begin = |part| CLOSERS.start(move || drop::<Vec<Link>>(part)).ok();
        let ends: Vec<_> = parts.into_iter().filter_map(begin).collect();
        // Those that go at once go first.
        let (free, put_off): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|link| link.placed.can_go());
        drop(free);
        drop(put_off);
        for end in ends {
            let _ = end.recv();
        }
    }
}
