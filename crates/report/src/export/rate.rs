//! What changed between two reports, allocator by allocator.

use super::Interval;
use crate::{Allocator, Report, Target, dsr};

/// One allocator over an interval.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub(super) target: &'a Target,
    pub(super) now: &'a Allocator,
    /// Length of the interval.
    pub(super) seconds: f64,
    /// What came in the interval.
    pub(super) delta: Counts,
}

/// The counters of which rates are of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(super) struct Counts {
    pub(super) opened: u64,
    pub(super) closed: u64,
    pub(super) drainable: u64,
    pub(super) pinned: u64,
    pub(super) unknown: u64,
    pub(super) resets: u64,
    pub(super) allocated: Option<u64>,
    pub(super) freed: Option<u64>,
    pub(super) late_drained: Option<u64>,
}

impl Counts {
    /// Since the attach.
    pub(super) fn of(allocator: &Allocator) -> Self {
        let granules = allocator.granules;
        Self {
            opened: granules.opened,
            closed: granules.closed,
            drainable: granules.drainable,
            pinned: granules.pinned,
            unknown: granules.unknown,
            resets: granules.resets,
            allocated: allocator.objects.map(|objects| objects.allocated),
            freed: allocator.objects.map(|objects| objects.freed),
            late_drained: allocator.retention.late_drained,
        }
    }

    /// Counters never go back; if a report says so, nothing came.
    fn since(self, earlier: Self) -> Self {
        let option = |now: Option<u64>, then: Option<u64>| {
            now.map(|now| now.saturating_sub(then.unwrap_or_default()))
        };
        Self {
            opened: self.opened.saturating_sub(earlier.opened),
            closed: self.closed.saturating_sub(earlier.closed),
            drainable: self.drainable.saturating_sub(earlier.drainable),
            pinned: self.pinned.saturating_sub(earlier.pinned),
            unknown: self.unknown.saturating_sub(earlier.unknown),
            resets: self.resets.saturating_sub(earlier.resets),
            allocated: option(self.allocated, earlier.allocated),
            freed: option(self.freed, earlier.freed),
            late_drained: option(self.late_drained, earlier.late_drained),
        }
    }
}

impl Change<'_> {
    /// The DSR of the interval's closes alone.
    pub(super) fn dsr(&self) -> Option<f64> {
        dsr(self.now.kind, self.delta.drainable, self.delta.pinned)
    }

    /// `count` per second of the interval; 0 for an empty one.
    pub(super) fn per_second(&self, count: u64) -> f64 {
        if self.seconds > 0.0 { count as f64 / self.seconds } else { 0.0 }
    }
}

/// The changes of all allocators of the later report, in its order.
pub(super) fn changes<'a>(interval: &Interval<'a>) -> Vec<Change<'a>> {
    let seconds = seconds(interval);
    let mut changes = Vec::new();
    for target in &interval.now.targets {
        for now in &target.allocators {
            let earlier = interval.before.and_then(|report| same(report, target, now));
            let delta = Counts::of(now).since(earlier.map(Counts::of).unwrap_or_default());
            changes.push(Change { target, now, seconds, delta });
        }
    }
    changes
}

/// How much of the interval was observed.
pub(super) fn seconds(interval: &Interval<'_>) -> f64 {
    let before = interval.before.map_or(0.0, |report| report.window.observed());
    (interval.now.window.observed() - before).max(0.0)
}

/// The allocator in another report of the same session.
fn same<'a>(report: &'a Report, target: &Target, allocator: &Allocator) -> Option<&'a Allocator> {
    let key = |target: &Target| (target.target, target.pid, target.start_time);
    let earlier = report.targets.iter().find(|earlier| key(earlier) == key(target))?;
    earlier.allocators.iter().find(|earlier| {
        earlier.profile == allocator.profile
            && earlier.instance == allocator.instance
            && earlier.level == allocator.level
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Options, samples};

    /// An interval's rates come from its own closes; an allocator that is new counts from nothing.
    #[test]
    fn deltas() {
        let mut snapshot = samples::drain_snapshot();
        let before = Report::build(&snapshot, &Options::default());
        snapshot.window += Duration::from_secs(2);
        let totals = &mut snapshot.targets[0].allocators[0].totals;
        totals.drainable += 3;
        totals.pinned += 1;
        let now = Report::build(&snapshot, &Options::default());
        let interval = Interval { before: Some(&before), now: &now, clock: "" };
        let change = changes(&interval)[0];
        assert_eq!((change.delta.closed, change.delta.opened), (4, 0));
        assert_eq!((change.dsr(), change.per_second(4)), (Some(0.75), 2.0));
        let first = Interval { before: None, now: &before, clock: "" };
        let change = changes(&first)[0];
        assert_eq!((change.delta.closed, change.per_second(10_000)), (10_000, 1000.0));
    }

    /// The same pid after an exec is another process, with counters of its own.
    #[test]
    fn exec_starts_again() {
        let mut snapshot = samples::drain_snapshot();
        let before = Report::build(&snapshot, &Options::default());
        snapshot.targets[0].target = 1;
        let now = Report::build(&snapshot, &Options::default());
        let interval = Interval { before: Some(&before), now: &now, clock: "" };
        assert_eq!(changes(&interval)[0].delta.closed, 10_000);
        // No time has passed: a rate is 0 then, not infinite.
        assert!(changes(&interval)[0].per_second(1).abs() < f64::EPSILON);
    }
}
