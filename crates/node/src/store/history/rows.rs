//! What is read of a history: processes, what became of them, and their time series.

use std::collections::BTreeMap;

use drainprof_process::memory::MemoryReading;
use drainprof_profile::Level;
use drainprof_report::Counts;
use serde::Serialize;

use super::super::{HeapPoint, ProfileCounts};
use crate::Labels;

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// All that ever had this process id.
    Pid(u32),
    /// One, by [`ProcessRow::id`].
    Process(i64),
}

/// One process of the history.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessRow {
    /// Its number in this history.
    pub id: i64,
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it saw it.
    pub exe: String,
    /// Where it belonged.
    pub labels: Labels,
}

/// What has become of a process in a time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessChange {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessRow,
    /// The first and the last reading in that time, in milliseconds since 1970.
    pub first_unix_ms: u64,
    /// The last.
    pub last_unix_ms: u64,
    /// False if something that the counts need was lost in that time.
    pub complete: bool,
    /// How deep it was examined last.
    pub level: Option<Level>,
    /// Resident memory at the first reading that knows it.
    pub rss_first_bytes: Option<u64>,
    /// At the last one.
    pub rss_last_bytes: Option<u64>,
    /// The most.
    pub rss_peak_bytes: Option<u64>,
    /// Its allocators, by profile.
    pub profiles: Vec<ProfileChange>,
}

/// What has become of the allocators of one profile in that process.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ProfileChange {
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: String,
    /// What was added to the counters in that time.
    #[serde(flatten)]
    pub sums: Counts,
    /// The DSR of these closes; null without a decided one.
    pub dsr: Option<f64>,
    /// Granules open at the last cycle.
    pub open_now: u64,
    /// Granules retained at the first reading that knows it.
    pub retained_granules_first: Option<u64>,
    /// At the last cycle; null where it does not know.
    pub retained_granules_last: Option<u64>,
    /// Their bytes at the first reading that knows them.
    pub retained_bytes_first: Option<u64>,
    /// At the last cycle; null where it does not know.
    pub retained_bytes_last: Option<u64>,
}

/// The time series of one process.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessRow,
    /// Its memory, oldest first.
    pub memory: Vec<MemoryPoint>,
    /// Its heaps, oldest census first.
    pub heaps: Vec<HeapPoint>,
    /// Its allocators, by profile.
    pub profiles: Vec<ProfileSeries>,
}

/// Resident memory over time by process id and start time: milliseconds since 1970, and bytes.
pub type MemoryOfAll = BTreeMap<(u32, u64), Vec<(u64, u64)>>;

/// The memory of processes over time by process id and start time: milliseconds since 1970, and what was read.
pub type Readings = BTreeMap<(u32, u64), Vec<(u64, MemoryReading)>>;

/// A process at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MemoryPoint {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// False if something that the counts need was lost by then.
    pub complete: bool,
    /// How deep it was examined; null: no probe was in it.
    pub level: Option<Level>,
    /// Hits of its probes so far.
    pub hits: u64,
    /// What they had cost it so far, seconds of CPU time.
    pub cost_seconds: f64,
    /// Its memory; null where it could not be read.
    pub memory: Option<MemoryReading>,
}

/// The time series of the allocators of one profile.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProfileSeries {
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: String,
    /// Its counts, oldest first.
    pub points: Vec<CountPoint>,
}

/// The counts of one profile at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CountPoint {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What was added to the counters since the point before.
    pub added: Counts,
    /// The counters as they stood.
    #[serde(flatten)]
    pub counts: ProfileCounts,
}
