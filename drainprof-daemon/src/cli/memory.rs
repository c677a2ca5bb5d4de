//! `--growth`: looks at the memory of the targets while they are observed.

use std::collections::BTreeMap;

use drainprof_process::memory::{self, MemoryReader};
use drainprof_report::{facts::Snapshot, series::MemorySeries};
use tokio::time::{Duration, Instant};

/// The time between two looks, on average, seconds. Often, because many readings average out ups and downs.
const PERIOD: f64 = 0.25;
/// Of so many processes; of more, looks are rarer in proportion.
const OFTEN: usize = 8;

/// The memory of the targets so far.
pub(super) struct Memories {
    reader: MemoryReader,
    began: Instant,
    due: Instant,
    looks: u64,
    /// By number of the target.
    courses: BTreeMap<u32, MemorySeries>,
}

impl Memories {
    /// Nothing so far; the first look is due.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let reader = MemoryReader::new();
        Self { reader, began: now, due: now, looks: 0, courses: BTreeMap::new() }
    }

    /// When the next look is due.
    pub(super) const fn due(&self) -> Instant {
        self.due
    }

    /// Looks at the targets that run: number and process.
    pub(super) fn look(&mut self, running: &[(u32, u32)]) {
        self.reader.begin();
        for &(target, pid) in running {
            let Some(reading) = self.reader.read(pid, false) else { continue };
            let seconds = self.began.elapsed().as_secs_f64();
            self.courses.entry(target).or_default().add(seconds, &reading);
        }
        let period = PERIOD * (running.len() as f64 / OFTEN as f64).max(1.0);
        self.due = Instant::now() + Duration::from_secs_f64(memory::next_look(self.looks, period));
        self.looks += 1;
    }

    /// Adds what was seen to the facts, with one more look at those that run.
    pub(super) fn tell(&mut self, running: &[(u32, u32)], snapshot: &mut Snapshot) {
        self.look(running);
        for facts in &mut snapshot.targets {
            facts.memory = self.courses.get(&facts.target).cloned();
        }
        snapshot.pressure = self.reader.pressure().unwrap_or_else(|error| {
            tracing::warn!(%error, "the report is without the memory pressure");
            None
        });
    }
}
