//! What `drainprof why` observes when: its goals, its limits, and what it takes to go deeper.

use std::time::Duration;

use drainprof_profile::{Kind, Level};
use drainprof_report::Report;

use crate::goal::{Follow, Goal, Growth, Probing, Span};

/// Processes that are observed; of more, those with most resident memory.
pub const MAX_PROCESSES: usize = 64;
/// Heaps of processes with more writable memory are not read, bytes.
pub const MAX_HEAP_BYTES: u64 = 64 << 30;
/// What the probes may cost, as a share of one CPU.
const BUDGET: f64 = 0.01;
/// The part of the time for level `boundary`, if another follows.
pub(super) const SHALLOW: f64 = 1.0 / 3.0;
/// A draft that is made later than at this part of the time is not tried.
pub(super) const LATEST_DRAFT: f64 = 1.0 / 2.0;
/// Probes are not replaced by deeper ones if less than this part of the time is left.
pub(super) const LEAST_DEEP: f64 = 1.0 / 4.0;
/// Call stacks are taken where resident memory has grown by so many bytes in that time.
pub(super) const GROWN: u64 = 256 << 10;
/// Page faults per second of all processes above which call stacks are not taken: each costs some microseconds.
pub(super) const FAULTS: f64 = 5_000.0;

/// Memory, all of the time.
pub(super) fn memory() -> Goal {
    Goal { memory: true, symbols: true, ..Goal::default() }
}

/// Growth by call stack, or as sums where page faults are too many.
pub(super) fn growth(by: Growth) -> Goal {
    let span = Span::Whole { follow: Follow::No, growth: Some(by) };
    Goal { span, symbols: true, ..Goal::default() }
}

/// Probes at a level, within the budget. Where no report of it names call stacks, no names are searched for: memory is
/// not read meanwhile.
pub(super) fn probes(level: Level, duration: Option<Duration>) -> Goal {
    let probing = Probing { level: Some(level), ..Probing::of(Vec::new()) };
    let (budget, symbols) = (Some(BUDGET), duration.is_some());
    Goal { probing: Some(probing), budget, duration, symbols, ..Goal::default() }
}

/// Whether a deeper level would say more: something is pinned, or could not be decided.
pub(super) fn wants_more(report: &Report) -> bool {
    let allocators = report.targets.iter().flat_map(|target| &target.allocators);
    allocators.filter(|allocator| allocator.not_measurable.is_none()).any(|allocator| {
        let granules = &allocator.granules;
        let undecided = granules.decided() == 0 && granules.unknown > 0;
        allocator.kind == Kind::Drain && (granules.pinned > 0 || undecided)
            || allocator.overdue.granules > 0
    })
}
