//! Reads the memory of all watched processes: what is cheap at each cycle, what is expensive in turns.
//!
//! Each cycle reads three small files per process, and the files of each control group once. PSS and USS cost the kernel
//! a walk over all page tables of a process, under a lock of its address space. So one process after the other has its
//! turn, as long as the budget allows.

use std::{collections::BTreeMap, time::Instant};

use drainprof_process::memory::{MemoryReader, Pressure, PressureError};

use super::{tracked::Tracked, turns::Turns, unix_ms};
use crate::{Shares, config::Config};

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
