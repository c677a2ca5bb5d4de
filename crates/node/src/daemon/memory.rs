//! Reads the memory of all watched processes: what is cheap at each cycle, what is expensive in turns.
//!
//! Each cycle reads three small files per process, and the files of each control group once. PSS and USS cost the kernel
//! a walk over all page tables of a process, under a lock of its address space. So one process after the other has its
//! turn, as long as the budget allows, and nothing waits for that: the next cycle takes the result.

use std::collections::BTreeMap;

use drainprof_process::{
    is_silent,
    memory::{MemoryReader, Pressure, PressureError, SharesRead},
    readers::Asked,
};

use super::{tracked::Tracked, turns::Turns};
use crate::{Shares, clock::unix_ms, config::Config};

/// Reads memory.
pub(super) struct Memory {
    reader: MemoryReader,
    turns: Turns,
    /// Shares that are being read.
    shares: Option<Asked<SharesRead>>,
}

impl Memory {
    /// Nothing was read yet.
    pub(super) fn new() -> Self {
        Self { reader: MemoryReader::new(), turns: Turns::default(), shares: None }
    }

    /// Reads the memory of all processes, and the pressure on the machine's. `seconds` is a time since any fixed moment.
    pub(super) fn read(
        &mut self,
        config: &Config,
        tracked: &mut BTreeMap<u32, Tracked>,
        seconds: f64,
    ) -> Result<Option<Pressure>, PressureError> {
        let over = config.triggers.rss_slope.over.as_seconds();
        self.reader.begin();
        let mut readings: BTreeMap<u32, _> =
            self.reader.read_each(tracked.keys().copied()).into_iter().collect();
        for (pid, one) in &mut *tracked {
            one.remember(seconds, over, readings.remove(pid).flatten());
        }
        self.turns.refill(seconds, config.daemon.pss_budget.0);
        self.take_shares(tracked);
        self.begin_shares(tracked);
        self.reader.pressure()
    }

    /// Takes notice of the shares that were read.
    fn take_shares(&mut self, tracked: &mut BTreeMap<u32, Tracked>) {
        let Some(read) = self.shares.as_mut().and_then(Asked::poll) else { return };
        self.shares = None;
        // Of one that does not answer, nothing is known.
        for (pid, memory, took) in read.unwrap_or_default() {
            self.turns.spend(took);
            self.turns.had(pid);
            if let (Some(one), Some(memory)) = (tracked.get_mut(&pid), memory) {
                one.share(Shares { unix_ms: unix_ms(), memory });
            }
        }
    }

    /// Has the shares of those read whose turn it is.
    fn begin_shares(&mut self, tracked: &BTreeMap<u32, Tracked>) {
        if self.shares.is_some() || !self.turns.is_affordable() {
            return;
        }
        let mut pids = self.turns.order(tracked);
        pids.retain(|pid| tracked.get(pid).is_some_and(Tracked::has_memory) && !is_silent(*pid));
        self.shares = self.reader.begin_shares(pids, self.turns.credit()).ok();
    }
}
