//! What the kernel says of a process's memory, and of the machine's: readings, not judgements.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One examine a process's memory. Bytes, unless a field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryReading {
    /// Resident memory, `VmRSS`: anonymous, file and shared memory together.
    pub rss_bytes: u64,
    /// Resident anonymous memory, `RssAnon`.
    pub anon_bytes: u64,
    /// Resident file pages, `RssFile`.
    pub file_bytes: u64,
    /// Resident shared memory, `RssShmem`.
    pub shmem_bytes: u64,
    /// Swapped-out anonymous memory, `VmSwap`.
    pub swap_bytes: u64,
    /// Address space, `VmSize`.
    pub vsz_bytes: u64,
    /// Proportional share of resident memory; null where `smaps_rollup` was not read: it costs a walk over the page tables.
    pub pss_bytes: Option<u64>,
    /// Resident memory that is this process's alone; null with [`MemoryReading::pss_bytes`].
    pub uss_bytes: Option<u64>,
    /// Page faults that needed no I/O, since the process began.
    pub minor_faults: u64,
    /// Page faults that did.
    pub major_faults: u64,
    /// Memory that the process's control group uses; null where none with a memory controller is found.
    pub cgroup_bytes: Option<u64>,
    /// The lowest limit of that group and of those above it; null where there is none.
    pub cgroup_limit_bytes: Option<u64>,
    /// What is left until the first of these limits is reached; it need not be the lowest. Null where there is none.
    #[serde(default)]
    pub cgroup_room_bytes: Option<u64>,
}

/// What `smaps_rollup` gives of a process. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryShares {
    /// Resident memory, what is shared divided by those that share it (PSS).
    pub pss_bytes: u64,
    /// Resident memory that is this process's alone (USS).
    pub uss_bytes: u64,
}

/// `/proc/pressure/memory`, or `memory.pressure` of a control group: shares of time, from 0 to 1, in which tasks waited for memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pressure {
    /// At least one task waited.
    pub some: Waiting,
    /// All tasks waited.
    pub full: Waiting,
}

/// The pressure on one control group's memory.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupPressure {
    /// Its path.
    pub group: Arc<str>,
    /// How much its tasks wait.
    pub pressure: Pressure,
}

/// The share of time over three windows, and the sum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Waiting {
    /// Over the last 10 seconds, from 0 to 1.
    pub avg10: f64,
    /// Over the last minute.
    pub avg60: f64,
    /// Over the last five minutes.
    pub avg300: f64,
    /// Since boot, seconds.
    pub total_seconds: f64,
}
