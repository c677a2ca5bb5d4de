//! The growth of a process: page faults, the heap and mappings by call path, and what of the touched memory lies in
//! granules. The shape, and how it follows from the facts.

use std::cmp::Reverse;

use drainprof_common::growth::member;
use drainprof_process::{kernel, memory::GranuleState};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Frame, OpenedAt, PathEnd, SiteFrame, build::hex};
use crate::{
    facts::{CallPath, Frames, GrowthFacts, MapTotals, PathGrowth, Snapshot, TargetFacts},
    trend,
};

/// What functions of the kernel are called that call our programs.
const TRACING: [&str; 6] =
    ["bpf_", "__bpf_", "perf_trace_", "__traceiter_", "trace_call_bpf", "do_trace_"];

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
    fn of(rss: &[i64; member::COUNT]) -> Self {
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

    fn plus(&self, other: &Self) -> Self {
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
    /// Resident memory now, as the kernel has told it at the last change; null where it has told none, or the process
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

/// The growth of a target's memory; `None` where that was not examined.
pub(super) fn of(target: &TargetFacts, snapshot: &Snapshot, top: usize) -> Option<MemoryGrowth> {
    let facts = target.growth.as_ref()?;
    let by_paths = facts
        .paths
        .values()
        .fold(ByKind::default(), |sum, path| sum.plus(&ByKind::of(&path.memory.rss)));
    let by_others = ByKind::of(&facts.other);
    let from_outside = ByKind::of(&facts.outside);
    let sum = |count: fn(&PathGrowth) -> u64| {
        facts.paths.values().map(count).fold(0, u64::saturating_add)
    };
    let mut ranked: Vec<_> = facts.paths.iter().filter(|(_, path)| has_done(path)).collect();
    let total = ranked.len() as u64;
    ranked.sort_by_key(|(path, growth)| (Reverse(weight(growth)), *path));
    ranked.truncate(top);
    Some(MemoryGrowth {
        rss: RssChange {
            change: by_paths.plus(&by_others).plus(&from_outside),
            by_paths,
            by_others,
            from_outside,
            now_bytes: [member::ANON, member::FILE, member::SHMEM]
                .into_iter()
                .try_fold(0u64, |sum, kind| Some(sum.saturating_add(facts.last[kind]?))),
            peak_anon_bytes: facts.peak[member::ANON],
        },
        faults: faults(facts, &by_paths),
        touched: touched(target, facts, top),
        heap: Heap {
            change_bytes: facts
                .paths
                .values()
                .fold(0i64, |sum, path| sum.saturating_add(path.maps.heap)),
        },
        mappings: Mappings {
            mapped_bytes: sum(|path| path.maps.mapped),
            outstanding_bytes: sum(|path| path.maps.outstanding),
            outstanding_anon_bytes: sum(|path| path.maps.outstanding_anon),
            outstanding: sum(|path| path.maps.regions),
            unmapped_bytes: facts.unmapped,
            unmapped_before_bytes: facts.unmapped_before,
            given_back_bytes: sum(|path| path.maps.given_back),
        },
        paths: ranked
            .into_iter()
            .map(|(path, own)| reported(path, own, snapshot, &target.frames))
            .collect(),
        paths_total: total,
    })
}

/// Calls that changed nothing are not listed.
fn has_done(path: &PathGrowth) -> bool {
    path.memory.faults + path.memory.kernel_faults > 0
        || path.memory.rss.iter().any(|bytes| *bytes != 0)
        || path.maps != MapTotals { calls: path.maps.calls, ..MapTotals::default() }
}

/// What has added most in any of the views.
fn weight(path: &PathGrowth) -> [u64; 2] {
    let rss = ByKind::of(&path.memory.rss).resident();
    let bytes = [rss.unsigned_abs(), path.maps.heap.unsigned_abs(), path.maps.outstanding];
    [bytes.into_iter().max().unwrap_or_default(), path.memory.faults]
}

fn faults(facts: &GrowthFacts, by_paths: &ByKind) -> Faults {
    let sum = |count: fn(&PathGrowth) -> u64| {
        facts.paths.values().map(count).fold(0, u64::saturating_add)
    };
    let (user, kernel) = (sum(|path| path.memory.faults), sum(|path| path.memory.kernel_faults));
    let added = by_paths.resident();
    Faults {
        user,
        kernel,
        writes: sum(|path| path.memory.writes),
        present: sum(|path| path.memory.present),
        minor: facts.counted.map(|(minor, _)| minor),
        major: facts.counted.map(|(_, major)| major),
        bytes_each: (user + kernel > 0 && added >= 0)
            .then(|| added as f64 / (user + kernel) as f64),
    }
}

fn touched(target: &TargetFacts, facts: &GrowthFacts, top: usize) -> TouchedReport {
    let sum = |state: GranuleState| {
        let own = facts.touched.granules.iter().filter(|((_, known, _), _)| *known == state);
        let sum = own.fold(0u64, |sum, (_, touched)| sum.saturating_add(touched.bytes));
        (!facts.unplaced.contains_key(&state)).then_some(sum)
    };
    let (open, pinned, drained) =
        (sum(GranuleState::Open), sum(GranuleState::Pinned), sum(GranuleState::Drained));
    let mut places: Vec<TouchedPlace> = facts
        .touched
        .granules
        .iter()
        .map(|((allocator, state, place), touched)| TouchedPlace {
            state: *state,
            profile: target.allocators.get(*allocator).map(|own| own.profile.name.clone()),
            bytes: touched.bytes,
            granules: touched.granules,
            opened_at: OpenedAt { place: hex(*place), frame: name(*place, &target.frames) },
        })
        .collect();
    places.sort_by_key(|place| Reverse(place.bytes));
    places.truncate(top);
    TouchedReport {
        bytes: facts.touched.bytes,
        open_bytes: open,
        pinned_bytes: pinned,
        drained_bytes: drained,
        elsewhere_bytes: [open, pinned, drained]
            .into_iter()
            .try_fold(facts.touched.bytes, |rest, own| Some(rest.saturating_sub(own?))),
        granules_unplaced: facts.unplaced.values().sum(),
        places,
    }
}

fn name(address: u64, frames: &Frames) -> Frame {
    frames.get(&address).cloned().unwrap_or_default()
}

fn reported(path: &CallPath, own: &PathGrowth, snapshot: &Snapshot, frames: &Frames) -> GrowthPath {
    let readings = own.over_time.iter().flat_map(|series| trend::thinned(series, snapshot));
    GrowthPath {
        faults: own.memory.faults + own.memory.kernel_faults,
        writes: own.memory.writes,
        rss: ByKind::of(&own.memory.rss),
        heap_bytes: own.maps.heap,
        mapped_bytes: own.maps.mapped,
        outstanding_bytes: own.maps.outstanding,
        outstanding: own.maps.regions,
        given_back_bytes: own.maps.given_back,
        over_time: readings.map(|(at, point)| (at, point.bytes)).collect(),
        selected: None,
        path_end: path.end,
        frames: path
            .addresses
            .iter()
            .map(|&address| {
                let shown = if kernel::is_address(address) { None } else { hex(address) };
                SiteFrame { address: shown, frame: name(address, frames) }
            })
            .skip_while(|own| is_of_tracing(&own.frame))
            .collect(),
    }
}

/// Whether code of the kernel is only there because it is watched.
fn is_of_tracing(frame: &Frame) -> bool {
    let is_one = |name: &str| TRACING.iter().any(|prefix| name.starts_with(prefix));
    frame.module.as_deref() == Some(kernel::MODULE) && frame.function.as_deref().is_some_and(is_one)
}
