//! Events of the kernel side, with what their numbers stand for.

use drainprof_common::event::{Event, EventKind};

/// What the numbers in an event stand for.
pub trait Names {
    /// The process id of a target.
    fn pid(&self, target: u32) -> Option<u32>;
    /// Profile and instance (0: none) of a series.
    fn series(&self, series: u32) -> Option<(&str, u64)>;
    /// When the report's time begins (`CLOCK_MONOTONIC` ns).
    fn began_ns(&self) -> u64;
}

/// Pins of one call stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathPins {
    /// The stack's number in this stream.
    pub path: u64,
    /// How many.
    pub pins: u64,
}

/// An event with the call stacks that belong to it.
#[derive(Clone, Copy, Debug)]
pub struct EventFacts<'a> {
    /// Its kind.
    pub kind: EventKind,
    /// The event.
    pub event: &'a Event,
    /// Whose objects pin: of a pinned close all stacks, of a freed pin its own. `None` where that is not known.
    pub pinned_by: Option<&'a [PathPins]>,
}
