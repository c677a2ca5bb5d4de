//! Reads the memory of all watched processes: what is cheap at each cycle, what is expensive in turns.
//!
//! Each cycle reads three small files per process, and the files of each control group once. PSS and USS cost the kernel
//! a walk over all page tables of a process, under a lock of its address space. So one process after the other has its
//! turn, as long as the budget allows.

use std::{
    collections::BTreeMap,
    ops::Bound,
    time::{Duration, Instant},
};

use drainprof_process::memory::{MemoryReader, Pressure, PressureError};

use super::{tracked::Tracked, unix_ms};
use crate::{Shares, config::Config};

/// Budget that can be saved, seconds of the time in which it comes in: what was not needed is not spent at once.
const SAVED: f64 = 20.0;

/// Reads memory.
pub(super) struct Memory {
    reader: MemoryReader,
    turns: Turns,
}

impl Memory {
    /// Nothing was read yet.
    pub(super) fn new() -> Self {
        Self { reader: MemoryReader::new(), turns: Turns::default() }
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
        for (pid, one) in &mut *tracked {
            one.remember(seconds, over, self.reader.read_with_pressure(*pid, false));
        }
        self.turns.refill(seconds, config.daemon.pss_budget.0);
        for _ in 0..tracked.len() {
            if !self.turns.is_affordable() {
                break;
            }
            let Some(pid) = self.turns.next(tracked) else { break };
            let Some(one) = tracked.get_mut(&pid).filter(|one| one.has_memory()) else { continue };
            let began = Instant::now();
            if let Some(memory) = self.reader.shares(pid) {
                one.share(Shares { unix_ms: unix_ms(), memory });
            }
            self.turns.spend(began.elapsed());
        }
        self.reader.pressure()
    }
}

/// Whose turn it is, and what is left of the budget.
#[derive(Debug, Default)]
struct Turns {
    /// The process that had the last turn.
    last: u32,
    /// Seconds of CPU time; a turn that took more than there was leaves a debt.
    credit: f64,
    refilled: Option<f64>,
}

impl Turns {
    /// Adds what has come in since the last time; `share` is a share of one CPU.
    fn refill(&mut self, seconds: f64, share: f64) {
        let passed = self.refilled.map_or(0.0, |before| (seconds - before).max(0.0));
        self.refilled = Some(seconds);
        self.credit = (self.credit + passed * share).min(SAVED * share);
    }

    fn is_affordable(&self) -> bool {
        self.credit > 0.0
    }

    fn spend(&mut self, time: Duration) {
        self.credit -= time.as_secs_f64();
    }

    /// The next process in order of pids, after the last one the first again.
    fn next<T>(&mut self, all: &BTreeMap<u32, T>) -> Option<u32> {
        let after = all.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        let (pid, _) = after.or_else(|| all.first_key_value())?;
        self.last = *pid;
        Some(*pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each has its turn before any has the next, also where processes come and go.
    #[test]
    fn in_turns() {
        let mut turns = Turns::default();
        let mut all: BTreeMap<u32, char> = [(3, 'a'), (7, 'b'), (9, 'c')].into();
        let mut round = |all: &BTreeMap<u32, char>, count: usize| -> Vec<u32> {
            (0..count).filter_map(|_| turns.next(all)).collect()
        };
        assert_eq!(round(&all, 4), [3, 7, 9, 3]);
        all.remove(&7);
        all.insert(8, 'd');
        assert_eq!(round(&all, 3), [8, 9, 3]);
        assert_eq!(round(&BTreeMap::new(), 1), [0; 0]);
    }

    /// However long a turn takes, over time no more is spent than comes in, and what was saved is bounded.
    #[test]
    fn within_the_budget() {
        let mut turns = Turns::default();
        let (mut spent, share) = (Duration::ZERO, 0.0002);
        for cycle in 0..1_000_u32 {
            turns.refill(f64::from(cycle) * 10.0, share);
            while turns.is_affordable() {
                let turn = Duration::from_micros(if cycle % 100 == 0 { 90_000 } else { 300 });
                turns.spend(turn);
                spent += turn;
            }
        }
        let budget = 10_000.0 * share;
        assert!((budget - 0.1..=budget + 0.1).contains(&spent.as_secs_f64()), "{spent:?}");
        turns.refill(1e9, share);
        assert!(turns.credit <= SAVED * share);
        let mut none = Turns::default();
        none.refill(0.0, 0.0);
        none.refill(1e9, 0.0);
        assert!(!none.is_affordable());
    }
}
