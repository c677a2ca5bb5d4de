//! What was missed of processes that came after the daemon: who was late, and who was gone before it had probes.

use std::{
    collections::HashSet,
    time::{Duration, Instant},
};

use drainprof_process::started_at;

use crate::config::Attach;

/// For so long after a process was refused for want of room, others that end unseen may have been refused, too.
const REFUSING: Duration = Duration::from_secs(10);

/// What is known of newcomers.
#[derive(Debug)]
pub(super) struct Newcomers {
    attach: Attach,
    /// When this process began, in clock ticks since boot.
    began: u64,
    /// Processes that were examined, whatever came of it.
    decided: HashSet<u32>,
    /// Processes that ended in this turn, and in the one before. Each kernel side reports an end of its own, and their
    /// rings are read one after the other: what comes in between is read in the next turn.
    ended: [HashSet<u32>; 2],
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
            ended: <[HashSet<u32>; 2]>::default(),
            refused: None,
            late: 0,
        }
    }

    /// The rings of all kernel sides are read once more.
    pub(super) fn turn(&mut self) {
        self.ended.swap(0, 1);
        self.ended[0].clear();
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
            self.ended[0].insert(pid);
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

    /// Whether a process of a program that is watched, which has ended, should have had probes. Only the first report of
    /// its end counts.
    pub(super) fn is_missed(&mut self, pid: u32) -> bool {
        let may_be_refused = self.refused.is_some_and(|when| when.elapsed() < REFUSING);
        let is_known = self.ended.iter().any(|ended| ended.contains(&pid));
        self.ended[0].insert(pid);
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
        assert!(!processes.is_missed(7), "it was looked at");
        processes.decided(8);
        processes.undecided(8);
        assert!(processes.is_missed(8), "it ended before anything was known of it");
        processes.refused();
        assert!(!processes.is_missed(9));
    }

    /// Each kernel side reports the end of a process; a second report may be read one turn after the first.
    #[test]
    fn ends_are_reported_twice() {
        let mut newcomers = Newcomers::new(Attach::Process);
        newcomers.decided(8);
        newcomers.gone(8, false);
        newcomers.gone(9, true);
        for (pid, is_missed) in [(8, false), (9, false), (10, true)] {
            assert_eq!(newcomers.is_missed(pid), is_missed, "reported by one kernel side: {pid}");
            assert!(!newcomers.is_missed(pid), "and by another one: {pid}");
        }
        newcomers.turn();
        assert!(!newcomers.is_missed(8) && !newcomers.is_missed(10), "and in the next turn");
        newcomers.turn();
        newcomers.turn();
        assert!(newcomers.is_missed(8), "its number is another process's by now");
    }
}
