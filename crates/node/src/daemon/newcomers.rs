//! What was missed of processes that came after the daemon: those that were late, and those that were gone before they had probes.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use drainprof_process::started_at;
use nix::time::{ClockId, clock_gettime};

use crate::config::Attach;

/// For so long after a process was refused for want of room, others that end unseen may have been refused, too.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Between two reports of one end, in nanoseconds of the kernel's clock, at most. Process ids come back later.
const SAME_END_NS: u64 = 1_000_000_000;
/// Reports of ends wait in their rings for no longer, in the same unit.
const REPORTED_WITHIN_NS: u64 = 60_000_000_000;

/// What is known of newcomers.
#[derive(Debug)]
pub(super) struct Newcomers {
    attach: Attach,
    /// When this process began, in clock ticks since boot.
    began: u64,
    /// Processes that were examined, whatever came of it.
    decided: HashSet<u32>,
    /// Until when which processes have ended, in nanoseconds of `CLOCK_MONOTONIC`. Each kernel side reports an end, and their
    /// rings are read one after the other.
    ended: HashMap<u32, u64>,
    refused: Option<Instant>,
    late: u64,
}

impl Newcomers {
    pub(super) fn new(attach: Attach) -> Self {
        let began = started_at(std::process::id()).unwrap_or(u64::MAX);
        Self {
            attach,
            began,
            decided: HashSet::new(),
            ended: HashMap::new(),
            refused: None,
            late: 0,
        }
    }

    /// The rings of all kernel sides are read once more.
    pub(super) fn turn(&mut self) {
        let now = now_ns();
        self.ended.retain(|_, ended| now.saturating_sub(*ended) < REPORTED_WITHIN_NS);
    }

    /// A process was examined.
    pub(super) fn decided(&mut self, pid: u32) {
        self.decided.insert(pid);
    }

    /// A process ended while it was examined.
    pub(super) fn undecided(&mut self, pid: u32) {
        self.decided.remove(&pid);
    }

    /// A process has ended.
    pub(super) fn gone(&mut self, pid: u32, was_observed: bool) {
        if self.decided.remove(&pid) || was_observed {
            self.ended.insert(pid, now_ns());
        }
    }

    /// A process gets no probes, because there are as many as may be.
    pub(super) fn refused(&mut self) {
        self.refused = Some(Instant::now());
    }

    /// A process has its probes since now. Whether that breaks a promise: with probes on files, nothing of a process that
    /// began after the daemon should be missed.
    pub(super) fn attached_late(&mut self, start_time: u64) -> bool {
        let is_late = start_time > self.began;
        self.late += u64::from(is_late);
        is_late && self.attach == Attach::File
    }

    /// Whether a process of a program that is watched should have had probes; it ended at this time, in nanoseconds of
    /// `CLOCK_MONOTONIC`. Only the first report of its end counts.
    pub(super) fn is_missed(&mut self, pid: u32, ended: u64) -> bool {
        let may_be_refused = self.refused.is_some_and(|when| when.elapsed() < REFUSED_FOR);
        // One that ended before its end was known is the same, or one before it.
        let is_known = self.ended.get(&pid).is_some_and(|known| ended < known + SAME_END_NS);
        let known = self.ended.entry(pid).or_default();
        *known = ended.max(*known);
        !self.decided.remove(&pid) && !is_known && !may_be_refused
    }

    /// How many were late.
    pub(super) const fn late(&self) -> u64 {
        self.late
    }

    /// All processes are checked again.
    pub(super) fn forget(&mut self) {
        self.decided.clear();
    }
}

/// Now, as the kernel sides see it.
fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(Duration::ZERO, Duration::from)
        .as_nanos()
        .try_into()
        .unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Late is who began after us; missed is who was never examined, unless there was no room.
    #[test]
    fn late_and_missed() {
        let mut files = Newcomers::new(Attach::File);
        let began = files.began;
        assert!(!files.attached_late(began - 1) && files.attached_late(began + 1));
        let mut processes = Newcomers::new(Attach::Process);
        assert!(!processes.attached_late(began + 1));
        assert_eq!((files.late(), processes.late()), (1, 1));
        processes.decided(7);
        assert!(!processes.is_missed(7, now_ns()), "it was examined");
        processes.decided(8);
        processes.undecided(8);
        assert!(processes.is_missed(8, now_ns()), "it ended before anything was known of it");
        processes.refused();
        assert!(!processes.is_missed(9, now_ns()));
    }

    /// Each kernel side reports the end of a process; the reports may be read at any time.
    #[test]
    fn ends_are_reported_twice() {
        let mut newcomers = Newcomers::new(Attach::Process);
        let ended = now_ns();
        newcomers.decided(8);
        newcomers.gone(8, false);
        newcomers.gone(9, true);
        for (pid, is_missed) in [(8, false), (9, false), (10, true)] {
            let seen = newcomers.is_missed(pid, ended);
            assert_eq!(seen, is_missed, "reported by one kernel side: {pid}");
            assert!(!newcomers.is_missed(pid, ended + 1000), "and by another one: {pid}");
        }
        newcomers.turn();
        newcomers.turn();
        newcomers.turn();
        assert!(!newcomers.is_missed(8, ended) && !newcomers.is_missed(10, ended), "and later");
        assert!(
            newcomers.is_missed(8, ended + 10 * SAME_END_NS),
            "its number is another process's"
        );
        // What cannot be reported any more is forgotten.
        newcomers.ended.insert(11, ended - REPORTED_WITHIN_NS);
        newcomers.turn();
        assert_eq!(newcomers.ended.len(), 3);
    }
}
