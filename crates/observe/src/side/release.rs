//! Letting single targets go while others are observed on: how a session serves processes that come and go for days.
//!
//! What the kernel side has counted for a target stays where it is, in entries that are neither read nor used again. So a
//! session wears out ([`Side::wear`]), and a program that runs for days begins a new one in time.

use std::collections::BTreeSet;

use drainprof_probe::bpf::Leftover;
use drainprof_process::{Stuck, readers::open};

use super::{Side, targets::Target};
use crate::ObserveError;

impl Side {
    /// Stops counting in a process that runs on: it has ended, as far as this session is concerned. What was
    /// counted is reported once more, by the next snapshot, when calls that were under way have settled.
    pub fn release(&mut self, pid: u32) {
        self.session.disarm(pid);
        self.ended(pid, None);
    }

    /// Forgets targets that have ended: `is_over` says which may be forgotten, of those by their numbers. Their
    /// probes are handed out where no other target has their process, with the processes that they are in.
    pub fn forget(&mut self, is_over: impl Fn(u32) -> bool) -> (Leftover, Vec<u32>) {
        let gone = self.targets.extract(|target| !target.is_running() && is_over(target.number()));
        let numbers: BTreeSet<u32> = gone.iter().map(Target::number).collect();
        if !numbers.is_empty() {
            self.session.forget_series(|key| numbers.contains(&key.target));
        }
        let mut leftover = Leftover::default();
        let mut pids = Vec::new();
        for pid in gone.iter().map(Target::pid) {
            if self.targets.iter().any(|kept| kept.pid() == pid) {
                continue;
            }
            leftover.add(self.session.take_probes(pid));
            pids.push(pid);
            self.probes.forget(pid);
        }
        let (session, targets) = (&self.session, &self.targets);
        self.curves.retain(|series| {
            session.series_key(series).is_some_and(|key| targets.get(key.target).is_some())
        });
        (leftover, pids)
    }

    /// Whether a target has ended that was not forgotten yet.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.targets.iter().any(|target| !target.is_running())
    }

    /// Whether no target is left, not even one that has ended.
    #[must_use]
    pub const fn is_idle(&self) -> bool {
        self.targets.is_empty()
    }

    /// Whether a process that is observed has more to be probed than is, because it has mapped more since.
    ///
    /// # Errors
    ///
    /// It is not known yet: its files take long to read.
    pub fn lacks_probes(&mut self, pid: u32) -> Result<bool, Stuck> {
        let Ok(process) = open(pid) else { return Ok(false) };
        match self.planner.plan(&process) {
            Ok((plans, _)) => Ok(!self.probes.all_in_place(pid, &plans)),
            Err(ObserveError::Files(slow @ Stuck::Slow { .. })) => Err(slow),
            Err(_) => Ok(false),
        }
    }

    /// How far the session is worn out: the share of the fullest of those tables that newcomers need places in, from 0 to 1.
    #[must_use]
    pub fn wear(&self) -> f64 {
        self.session.wear()
    }

    /// The share of these tables that targets use which are not forgotten, from 0 to 1.
    #[must_use]
    pub fn use_share(&self) -> f64 {
        self.session.use_share()
    }
}
