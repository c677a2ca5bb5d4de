//! All maps: the ABI between kernel and user space. Sizes here are placeholders; user space sets them
//! at load. Keys, values and the meaning of indices are in `drainprof_common::maps`.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, ProgramArray, Queue, RingBuf, StackTrace},
};
use drainprof_common::{
    granule::IndexWord,
    growth::{
        GROWTH_THREADS as THREAD_COUNT, GrowthCell, GrowthTarget, GrowthThread, RegionKey,
        RegionPages,
    },
    loss::LOSS_SLOTS,
    maps::{
        self, Bucket, HistKey, HistSlot, IndexKey, Noted, ObjectKey, ObjectValue, ProbeCounts,
        SeriesKey, SeriesState, Slot, TargetValue, ThreadState, Totals, cursor,
    },
    paths::{self, HashBucket, PathSlot, PinPair, PinSites, SiteSlot, SpaceRanges, WalkState},
    spec::ProbeSpec,
    unwind::RuleBucket,
};

/// User space maps the array into its memory and reads it there.
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// Losses of one CPU, padded so that CPUs do not share cache lines.
pub(crate) type LossSlots = [u64; LOSS_SLOTS];

/// Always empty: programs that could go on in another one run on the stack of their thread.
#[map]
pub(crate) static NO_PROGRAM: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Which processes are traced; by thread-group id.
#[map]
pub(crate) static TARGETS: HashMap<u32, TargetValue> = HashMap::with_max_entries(1, 0);

/// In front of `TARGETS`: a process's target in one word, where no other process's stands in the same place.
#[map]
pub(crate) static TARGET_WORDS: Array<u64> =
    Array::with_max_entries(maps::TARGET_WORDS as u32, BPF_F_MMAPABLE);

/// Programs whose processes are noticed although they are no targets; by name.
#[map]
pub(crate) static PROGRAM_NAMES: HashMap<maps::ProgramName, u32> =
    HashMap::with_max_entries(maps::PROGRAM_NAMES, 0);

/// What the diagnostics of one CPU have noted.
#[map]
pub(crate) static NOTED: PerCpuArray<Noted> = PerCpuArray::with_max_entries(1, 0);

/// What each probe means; the attach cookie holds the index.
#[map]
pub(crate) static PROBES: Array<ProbeSpec> = Array::with_max_entries(1, 0);

/// Hits per CPU and probe.
#[map]
pub(crate) static PROBE_COUNTS: Array<ProbeCounts> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Series by target, allocator and instance.
#[map]
pub(crate) static SERIES: HashMap<SeriesKey, u64> = HashMap::with_max_entries(1, 0);

/// In front of `SERIES`: one more than the index of the series that was last looked up here.
#[map]
pub(crate) static SERIES_WORDS: Array<u64> = Array::with_max_entries(maps::SERIES_WORDS as u32, 0);

/// What is known of each series.
#[map]
pub(crate) static SERIES_STATE: Array<SeriesState> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Counters per CPU and series.
#[map]
pub(crate) static TOTALS: Array<Totals> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Granule id → slot and generation.
#[map]
pub(crate) static INDEX: HashMap<IndexKey, IndexWord> = HashMap::with_max_entries(1, 0);

/// In front of `INDEX`: the index word of the granule that was last looked up here.
#[map]
pub(crate) static GRANULE_WORDS: Array<IndexWord> =
    Array::with_max_entries(maps::GRANULE_WORDS as u32, 0);

/// The granules.
#[map]
pub(crate) static GRANULES: Array<Slot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Slots that can be used again.
#[map]
pub(crate) static FREE_SLOTS: Queue<u32> = Queue::with_max_entries(1, 0);

/// Live objects, where they are followed by id.
#[map]
pub(crate) static OBJECT_BUCKETS: Array<Bucket> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Those that found no room in their bucket. Allocated on demand.
#[map]
pub(crate) static OBJECTS: HashMap<ObjectKey, ObjectValue> = HashMap::with_max_entries(1, 1);

/// Calls on their way from entry to return, of threads that have a slot.
#[map]
pub(crate) static THREAD_SLOTS: Array<ThreadState> = Array::with_max_entries(1, 0);

/// Those of the others, by `pid_tgid`. Allocated on demand: most threads are never
/// inside a call that is followed to its return.
#[map]
pub(crate) static THREADS: HashMap<u64, ThreadState> = HashMap::with_max_entries(1, 1);

/// A zeroed thread state: too large for the BPF stack.
#[map]
pub(crate) static ZERO_THREAD: Array<ThreadState> = Array::with_max_entries(1, 0);

/// Histogram by what it is of.
#[map]
pub(crate) static HIST_INDEX: HashMap<HistKey, u64> = HashMap::with_max_entries(1, 1);

/// In front of `HIST_INDEX`: one more than the index of the histogram that was last looked up here.
#[map]
pub(crate) static HIST_WORDS: Array<u64> = Array::with_max_entries(maps::HIST_WORDS as u32, 0);

/// Pin delays and lifetimes.
#[map]
pub(crate) static HISTOGRAMS: Array<HistSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Losses per CPU.
#[map]
pub(crate) static LOSSES: Array<LossSlots> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Next free indices and fill levels.
#[map]
pub(crate) static CURSORS: Array<u64> = Array::with_max_entries(cursor::COUNT, BPF_F_MMAPABLE);

/// What user space must act on, or asked for.
#[map]
pub(crate) static EVENTS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// How frames lead to their callers, by code address.
#[map]
pub(crate) static RULES: Array<RuleBucket> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Which address space a target works in, where it is not its own.
#[map]
pub(crate) static SPACES: Array<u64> =
    Array::with_max_entries(paths::SPACES as u32, BPF_F_MMAPABLE);

/// Where code lies in address spaces.
#[map]
pub(crate) static SPACE_RANGES: Array<SpaceRanges> =
    Array::with_max_entries(paths::SPACE_SLOTS as u32, BPF_F_MMAPABLE);

/// Working memory of walks up a stack.
#[map]
pub(crate) static WALKS: Array<WalkState> = Array::with_max_entries(1, 0);

/// Call paths by their hashes.
#[map]
pub(crate) static PATH_HASHES: Array<HashBucket> = Array::with_max_entries(2, BPF_F_MMAPABLE);

/// The call paths.
#[map]
pub(crate) static PATHS: Array<PathSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Their return addresses.
#[map]
pub(crate) static PATH_WORDS: Array<u64> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Sites by their hashes.
#[map]
pub(crate) static SITE_HASHES: Array<HashBucket> = Array::with_max_entries(2, BPF_F_MMAPABLE);

/// The sites.
#[map]
pub(crate) static SITES: Array<SiteSlot> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Granules with several pins, and the sites for which they are counted.
#[map]
pub(crate) static PIN_SITES: Array<PinSites> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// The same for granules with pins of more sites. Allocated on demand.
#[map]
pub(crate) static PIN_PAIRS: HashMap<PinPair, u32> = HashMap::with_max_entries(1, 1);

/// Cells of growth by their hashes.
#[map]
pub(crate) static GROWTH_HASHES: Array<HashBucket> = Array::with_max_entries(2, BPF_F_MMAPABLE);

/// The cells.
#[map]
pub(crate) static GROWTH_CELLS: Array<GrowthCell> = Array::with_max_entries(1, BPF_F_MMAPABLE);

/// Stacks of the kernel, where they are wanted.
#[map]
pub(crate) static KERNEL_STACKS: StackTrace = StackTrace::with_max_entries(1, 0);

/// What threads are doing that may add pages.
#[map]
pub(crate) static GROWTH_THREADS: Array<GrowthThread> =
    Array::with_max_entries(THREAD_COUNT as u32, 0);

/// The memory of targets.
#[map]
pub(crate) static GROWTH_TARGETS: HashMap<u32, GrowthTarget> = HashMap::with_max_entries(1, 0);

/// Whose an address space is, by the kernel's number for it.
#[map]
pub(crate) static ADDRESS_SPACES: HashMap<u32, TargetValue> = HashMap::with_max_entries(1, 0);

/// Pages that were touched, region by region. Not allocated on demand: a fault cannot wait for memory.
#[map]
pub(crate) static TOUCHED: HashMap<RegionKey, RegionPages> = HashMap::with_max_entries(1, 0);

/// System calls that change mappings.
#[map]
pub(crate) static MAPPINGS: RingBuf = RingBuf::with_byte_size(4096, 0);

/// Stacks that user space is to unwind.
#[map]
pub(crate) static SNAPSHOTS: RingBuf = RingBuf::with_byte_size(4096, 0);
