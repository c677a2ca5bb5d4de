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
    refused: Option<Instant>,
    late: u64,
}

impl Newcomers {
    pub(super) fn new(attach: Attach) -> Self {
        let began = started_at(std::process::id()).unwrap_or(u64::MAX);
        Self { attach, began, decided: HashSet::new(), refused: None, late: 0 }
    }

    /// A process was examined.
    pub(super) fn decided(&mut self, pid: u32) {
        self.decided.insert(pid);
    }

    /// A process has ended.
    pub(super) fn gone(&mut self, pid: u32) {
        self.decided.remove(&pid);
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

    /// Whether a process of a program that is watched, which has ended, should have had probes.
    pub(super) fn is_missed(&mut self, pid: u32) -> bool {
        let may_be_refused = self.refused.is_some_and(|when| when.elapsed() < REFUSING);
        !self.decided.remove(&pid) && !may_be_refused
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
        assert!(processes.is_missed(7), "its number is another process's by now");
        processes.decided(8);
        processes.gone(8);
        assert!(processes.is_missed(8));
        processes.refused();
        assert!(!processes.is_missed(9));
    }
}
