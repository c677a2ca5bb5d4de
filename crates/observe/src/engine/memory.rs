//! Reads the memory of the targets while they are observed.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use drainprof_process::memory::{self, MemoryReader};
use drainprof_report::{facts::Snapshot, series::MemorySeries};

/// Seconds between two readings, on average: many readings average out ups and downs.
const PERIOD: f64 = 0.25;
/// Of so many processes; more are read more rarely, in proportion.
const OFTEN: usize = 8;

/// The memory of the targets so far.
pub(super) struct Memories {
    reader: MemoryReader,
    began: Instant,
    due: Instant,
    readings: u64,
    /// By number of the target.
    series: BTreeMap<u32, MemorySeries>,
}

impl Memories {
    /// Nothing so far; the first reading is due.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let reader = MemoryReader::new();
        Self { reader, began: now, due: now, readings: 0, series: BTreeMap::new() }
    }

    /// When the next reading is due.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Reads the memory of the targets that run: number and process.
    pub(super) fn read(&mut self, running: &[(u32, u32)]) {
        self.reader.begin();
        let read = self.reader.read_each(running.iter().map(|(_, pid)| *pid));
        let readings: BTreeMap<u32, _> = read.into_iter().collect();
        let seconds = self.began.elapsed().as_secs_f64();
        for (target, pid) in running {
            let Some(Some((reading, _))) = readings.get(pid) else { continue };
            self.series.entry(*target).or_default().add(seconds, reading);
        }
        let period = PERIOD * (running.len() as f64 / OFTEN as f64).max(1.0);
        self.due =
            Instant::now() + Duration::from_secs_f64(memory::next_look(self.readings, period));
        self.readings += 1;
    }

    /// Adds the time series to the facts, with one more reading of those that run.
    pub(super) fn add_to(&mut self, running: &[(u32, u32)], snapshot: &mut Snapshot) {
        self.read(running);
        for facts in &mut snapshot.targets {
            facts.memory = self.series.get(&facts.target).cloned();
        }
        snapshot.pressure = self.reader.pressure().unwrap_or_else(|error| {
            tracing::warn!(%error, "the report is without the memory pressure");
            None
        });
    }
}
