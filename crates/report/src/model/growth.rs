//! The growth of a process: page faults, the heap and mappings by call path, and what of the touched memory lies in
//! granules.

use drainprof_common::growth::member;
use drainprof_process::{PathEnd, memory::GranuleState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::site::{OpenedAt, SiteFrame};

/// How a process's memory has grown since the attach. Bytes, unless a field says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryGrowth {
    /// The change of resident memory, by what has changed it.
    pub rss: RssChange,
    /// Page faults.
    pub faults: Faults,
    /// Memory that was touched since the attach, and in which granules it lies now.
    pub touched: TouchedReport,
    /// The heap that `brk` moves the end of.
    pub heap: Heap,
    /// Mappings.
    pub mappings: Mappings,
    /// The call paths, those that have added most first.
    pub paths: Vec<GrowthPath>,
    /// How many there are, listed or not.
    pub paths_total: u64,
}

/// A change of resident memory by kind of memory; swap is not resident.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ByKind {
    /// Anonymous memory.
    pub anon_bytes: i64,
    /// Pages of files.
    pub file_bytes: i64,
    /// Shared memory.
    pub shmem_bytes: i64,
    /// Anonymous memory in swap.
    pub swap_bytes: i64,
}

impl ByKind {
    pub(crate) fn of(rss: &[i64; member::COUNT]) -> Self {
        Self {
            anon_bytes: rss[member::ANON],
            file_bytes: rss[member::FILE],
            shmem_bytes: rss[member::SHMEM],
            swap_bytes: rss[member::SWAP],
        }
    }

    /// What is resident of it.
    #[must_use]
    pub const fn resident(&self) -> i64 {
        self.anon_bytes.saturating_add(self.file_bytes).saturating_add(self.shmem_bytes)
    }

    pub(crate) fn plus(&self, other: &Self) -> Self {
        Self {
            anon_bytes: self.anon_bytes.saturating_add(other.anon_bytes),
            file_bytes: self.file_bytes.saturating_add(other.file_bytes),
            shmem_bytes: self.shmem_bytes.saturating_add(other.shmem_bytes),
            swap_bytes: self.swap_bytes.saturating_add(other.swap_bytes),
        }
    }
}

/// The change of resident memory. `change` is the sum of the three others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RssChange {
    /// All of it.
    pub change: ByKind,
    /// By page faults, and by system calls that change mappings, of the listed and unlisted call paths.
    pub by_paths: ByKind,
    /// By other system calls.
    pub by_others: ByKind,
    /// From outside, as by reclaim; 0 once the process has ended.
    pub from_outside: ByKind,
    /// Resident memory now, as the kernel reported it at the last change; null where it reported none, or the process
    /// has ended.
    pub now_bytes: Option<u64>,
    /// The most that anonymous memory was.
    pub peak_anon_bytes: u64,
}

/// Page faults since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Faults {
    /// Of the program.
    pub user: u64,
    /// Of the kernel in its name, as by `read` into a fresh buffer.
    pub kernel: u64,
    /// Those of both that were writes.
    pub writes: u64,
    /// Those at pages that were there: copy on write, or another thread was first.
    pub present: u64,
    /// Minor faults, by the kernel's own count; null where it could not be read, and once the process has ended.
    pub minor: Option<u64>,
    /// Major faults: those that waited for a disk.
    pub major: Option<u64>,
    /// Bytes that a fault has brought, on average; more than a page with huge pages. Null without faults, or where
    /// resident memory has shrunk.
    pub bytes_each: Option<f64>,
}

/// Memory that was touched since the attach: pages, each once, whether they are still there or not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TouchedReport {
    /// All of it.
    pub bytes: u64,
    /// In granules that are open now; null where the memory of one of them is not known.
    pub open_bytes: Option<u64>,
    /// In granules that are closed and pinned now; null where the memory of one of them is not known.
    pub pinned_bytes: Option<u64>,
    /// In granules that are closed and empty, as far as they are remembered; null where their memory is not known.
    pub drained_bytes: Option<u64>,
    /// In no granule that is known; null where one of the others is.
    pub elsewhere_bytes: Option<u64>,
    /// Granules whose memory is not known: their ids are no addresses, or their bytes are not known.
    #[serde(default)]
    pub granules_unplaced: u64,
    /// By state and place of opening, those with most bytes first.
    pub places: Vec<TouchedPlace>,
}

/// What was touched in granules that were opened at one place and are in one state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TouchedPlace {
    /// Their state.
    pub state: GranuleState,
    /// The profile; null where the allocator is not reported.
    pub profile: Option<String>,
    /// Bytes that were touched in them.
    pub bytes: u64,
    /// How many granules.
    pub granules: u64,
    /// Where they were opened.
    pub opened_at: OpenedAt,
}

/// The heap of `brk`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Heap {
    /// By how much its end has moved.
    pub change_bytes: i64,
}

/// Mappings that were made since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mappings {
    /// Mapped.
    pub mapped_bytes: u64,
    /// Of that still mapped.
    pub outstanding_bytes: u64,
    /// Of that anonymous memory.
    pub outstanding_anon_bytes: u64,
    /// Pieces that are still mapped.
    pub outstanding: u64,
    /// Unmapped of what was mapped since the attach.
    pub unmapped_bytes: u64,
    /// Unmapped of what was there before.
    pub unmapped_before_bytes: u64,
    /// Given back by `madvise`, counted by address range.
    pub given_back_bytes: u64,
}

/// What one call path has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrowthPath {
    /// Page faults, the kernel's included.
    pub faults: u64,
    /// Those that were writes.
    pub writes: u64,
    /// By how much it has changed resident memory.
    pub rss: ByKind,
    /// By how much it has moved the heap's end.
    pub heap_bytes: i64,
    /// What it has mapped.
    pub mapped_bytes: u64,
    /// What of that is still mapped.
    pub outstanding_bytes: u64,
    /// In so many pieces.
    pub outstanding: u64,
    /// What it has given back by `madvise`, counted by address range.
    pub given_back_bytes: u64,
    /// What it had added to resident memory by then, on balance: seconds on the scale of `window.seconds`, bytes. Absent
    /// where that is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub over_time: Vec<(f64, i64)>,
    /// What it has added in the time that a filter asks for (`--grown-between`); absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<SelectedGrowth>,
    /// Why the path ends where it does: `start` means that it is whole.
    pub path_end: PathEnd,
    /// The call path, the innermost function first.
    pub frames: Vec<SiteFrame>,
}

/// What a call path has added between two readings, the nearest that enclose the time asked for.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelectedGrowth {
    /// Bytes of resident memory, on balance.
    pub bytes: i64,
    /// The first reading, on the scale of `window.seconds`.
    pub from_seconds: f64,
    /// The last one.
    pub to_seconds: f64,
}
