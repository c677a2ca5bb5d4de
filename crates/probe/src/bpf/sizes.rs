//! How large the maps are: set at load, from the configuration and from the memory that there is.

use drainprof_common::{
    growth::{
        GROWTH_THREADS, GrowthCell, GrowthTarget, GrowthThread, KERNEL_STACKS, RegionKey,
        RegionPages,
    },
    maps::{
        Bucket, GRANULE_WORDS, HIST_WORDS, HistSlot, ObjectEntry, ProbeCounts, SERIES_WORDS,
        SeriesState, Slot, TARGET_WORDS, ThreadState, Totals, index_entries,
    },
    paths::{
        HASH_WAYS, PathSlot, PinPair, PinSites, SPACE_SLOTS, SPACES, SiteSlot, SpaceRanges,
        WalkState,
    },
    spec::ProbeSpec,
    unwind::RuleBucket,
};

/// Slots of counters at most. Machines with more CPUs than that share them: each slot has all counters.
const MAX_COUNTER_SLOTS: u32 = 32;
/// Pieces of working memory for walks up a stack: more than threads are likely to be preempted in one at once.
const WALKS: u32 = 256;
/// Bytes that the kernel adds to each hash element, and its share of the bucket array.
const HASH_OVERHEAD: u64 = 48 + 16;
/// Bytes of a stack of the kernel: 127 addresses, and what the map adds.
const STACK_BYTES: usize = 127 * 8 + 32;

/// Sizes of the maps, in entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Granules that are open, or closed and pinned, at once.
    pub granules: u32,
    /// Objects that are live at once, where they are followed by id.
    pub objects: u32,
    /// Allocator instances.
    pub instances: u32,
    /// Threads inside a followed call at once.
    pub threads: u32,
    /// Histograms: one per place of opening and one per instance that late-drains. (Those of sites come on top.)
    pub places: u32,
    /// Probes.
    pub probes: u32,
    /// Processes.
    pub targets: u32,
    /// Call stacks that are distinguished; 0 at other levels than `stacks`.
    pub call_paths: u32,
    /// Whether growth is wanted: its maps are of the smallest size otherwise.
    pub growth: bool,
    /// Whether growth that the kernel causes is distinguished by its stacks.
    pub kernel_stacks: bool,
    /// Bytes of the ring buffer; a power of two of at least a page.
    pub ring_bytes: u32,
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            granules: 131_072,
            objects: 262_144,
            instances: 1_024,
            threads: 4_096,
            places: 1_024,
            probes: 512,
            targets: 4_096,
            call_paths: 0,
            growth: false,
            kernel_stacks: false,
            ring_bytes: 1 << 20,
        }
    }
}

impl Sizes {
    /// The defaults, lowered until the maps take at most an eighth of `available` bytes.
    #[must_use]
    pub fn for_memory(available: u64, cpus: u32) -> Self {
        let mut sizes = Self::default();
        while sizes.bytes(Self::counter_slots(cpus)) > available / 8 && sizes.granules > 4_096 {
            sizes.granules /= 2;
            sizes.objects /= 2;
        }
        sizes
    }

    /// Slots of counters on a machine of so many CPUs: a power of two.
    #[must_use]
    pub fn counter_slots(cpus: u32) -> u32 {
        cpus.clamp(1, MAX_COUNTER_SLOTS).next_power_of_two()
    }

    /// Entries of the index of granule ids: closed ids are remembered for a while, so that a second
    /// close is recognised. The sweep that forgets them comes a few times a second, so there is room for
    /// what may close in between, however few slots are asked for.
    #[must_use]
    pub const fn index(&self) -> u32 {
        index_entries(self.granules)
    }

    /// Buckets of the table of objects. With five objects to a bucket of eight, 2.4 % of the objects find
    /// theirs full (the tail of a Poisson distribution).
    #[must_use]
    pub const fn buckets(&self) -> u32 {
        self.objects / 5 + 1
    }

    /// Entries of the map behind that table: ten times what is expected there.
    #[must_use]
    pub const fn overflow(&self) -> u32 {
        self.objects / 4 + 16
    }

    /// Threads that have a slot of their own, found by the thread id's low bits: a power of two, a quarter
    /// of all at most.
    #[must_use]
    pub const fn thread_slots(&self) -> u32 {
        let quarter = self.threads / 4;
        if quarter == 0 { 1 } else { 1 << quarter.ilog2() }
    }

    /// Entries of the map for the others.
    #[must_use]
    pub const fn threads_behind(&self) -> u32 {
        let behind = self.threads.saturating_sub(self.thread_slots());
        if behind == 0 { 1 } else { behind }
    }

    /// Call stacks that are distinguished at level `stacks`, unless another number is asked for.
    pub const CALL_PATHS: u32 = 8_192;

    /// Buckets of the tables of paths and of sites: half full with as many as are asked for, so that hardly any
    /// bucket and its spare are.
    #[must_use]
    pub const fn path_buckets(&self) -> u32 {
        if self.call_paths == 0 {
            return 2;
        }
        let buckets = (self.call_paths / (HASH_WAYS as u32 / 2)).next_power_of_two();
        if buckets < 2 { 2 } else { buckets }
    }

    /// Entries of these tables.
    #[must_use]
    pub const fn path_slots(&self) -> u32 {
        self.path_buckets() * HASH_WAYS as u32
    }

    /// Return addresses of paths: thirty-two each, on average.
    #[must_use]
    pub const fn path_words(&self) -> u32 {
        if self.call_paths == 0 { 1 } else { self.call_paths.saturating_mul(32) }
    }

    /// Buckets of the table of unwind rules, of which a path brings few that others do not have.
    #[must_use]
    pub const fn rule_buckets(&self) -> u32 {
        if self.call_paths == 0 { 1 } else { self.call_paths.next_power_of_two() }
    }

    /// Walks up a stack that can be under way at once: threads that are preempted in one count, too. A power of two.
    #[must_use]
    pub const fn walks(&self) -> u32 {
        if self.call_paths == 0 { 1 } else { WALKS }
    }

    /// Entries of the map of sites that pin a granule, one per granule.
    #[must_use]
    pub const fn pin_sites(&self) -> u32 {
        if self.call_paths == 0 { 1 } else { self.granules }
    }

    /// Entries for sites beyond those. They are swept out several times a second, once an eighth is taken.
    #[must_use]
    pub const fn pin_pairs(&self) -> u32 {
        if self.call_paths == 0 { 1 } else { self.call_paths.saturating_mul(32) }
    }

    /// Bytes of the ring for stacks.
    #[must_use]
    pub const fn snapshot_ring(&self) -> u32 {
        if self.call_paths == 0 { 4_096 } else { 16 << 20 }
    }

    /// Entries of the maps of address spaces, and of their code.
    #[must_use]
    pub const fn spaces(&self) -> (u32, u32) {
        if self.call_paths == 0 { (1, 1) } else { (SPACES as u32, SPACE_SLOTS as u32) }
    }

    /// Histograms: of places, and of the pin delays of sites.
    #[must_use]
    pub const fn histograms(&self) -> u32 {
        self.places.saturating_add(self.call_paths)
    }

    /// Buckets of the table of growth's cells: as many as of paths, because most paths do one thing.
    #[must_use]
    pub const fn growth_buckets(&self) -> u32 {
        if self.growth { self.path_buckets() } else { 2 }
    }

    /// Cells of growth.
    #[must_use]
    pub const fn growth_cells(&self) -> u32 {
        if self.growth { self.path_slots() } else { 1 }
    }

    /// Threads whose doings are known at once.
    #[must_use]
    pub const fn growth_threads(&self) -> u32 {
        if self.growth { GROWTH_THREADS as u32 } else { 1 }
    }

    /// Processes whose memory is followed.
    #[must_use]
    pub const fn growth_targets(&self) -> u32 {
        if self.growth { self.targets } else { 1 }
    }

    /// Regions of 2 MiB whose pages are noted when they are touched: of 128 GiB.
    #[must_use]
    pub const fn regions(&self) -> u32 {
        if self.growth { 65_536 } else { 1 }
    }

    /// Stacks of the kernel.
    #[must_use]
    pub const fn kernel_stacks(&self) -> u32 {
        if self.kernel_stacks { KERNEL_STACKS } else { 1 }
    }

    /// Bytes of the ring for system calls that change mappings.
    #[must_use]
    pub const fn mapping_ring(&self) -> u32 {
        if self.growth { 8 << 20 } else { 4_096 }
    }

    fn growth_bytes(&self) -> u64 {
        let of = |entries: u32, size: usize| u64::from(entries) * size as u64;
        let overhead = HASH_OVERHEAD as usize;
        let target = size_of::<GrowthTarget>() + 4 + 16 + 2 * overhead;
        of(self.growth_cells(), size_of::<GrowthCell>() + 8)
            + of(self.growth_threads(), size_of::<GrowthThread>())
            + of(self.growth_targets(), target)
            + of(self.kernel_stacks(), STACK_BYTES)
            + of(self.regions(), size_of::<RegionKey>() + size_of::<RegionPages>() + overhead)
            + u64::from(self.mapping_ring())
    }

    fn path_bytes(&self) -> u64 {
        let of = |entries: u32, size: usize| u64::from(entries) * size as u64;
        let (spaces, ranges) = self.spaces();
        of(self.rule_buckets(), size_of::<RuleBucket>())
            + of(spaces, 8)
            + of(ranges, size_of::<SpaceRanges>())
            + of(self.walks(), size_of::<WalkState>())
            + of(self.path_slots(), size_of::<PathSlot>() + size_of::<SiteSlot>() + 16)
            + of(self.path_words(), 8)
            + of(self.pin_sites(), size_of::<PinSites>())
            + of(self.pin_pairs(), size_of::<PinPair>() + 4 + HASH_OVERHEAD as usize)
            + u64::from(self.snapshot_ring())
    }

    /// About how much kernel memory the maps take; those that grow on demand are counted in full.
    #[must_use]
    pub fn bytes(&self, slots: u32) -> u64 {
        let of = |entries: u32, size: usize| u64::from(entries) * size as u64;
        let hash = |entries: u32, size: usize| u64::from(entries) * (size as u64 + HASH_OVERHEAD);
        of(self.granules, size_of::<Slot>())
            + hash(self.index(), 24)
            + of(self.buckets(), size_of::<Bucket>())
            + hash(self.overflow(), size_of::<ObjectEntry>())
            + of(self.instances * slots, size_of::<Totals>())
            + of(self.instances, size_of::<SeriesState>())
            + hash(self.instances, 24)
            + hash(self.threads_behind(), size_of::<ThreadState>() + 8)
            + of(self.thread_slots(), size_of::<ThreadState>())
            + of((TARGET_WORDS + SERIES_WORDS + GRANULE_WORDS + HIST_WORDS) as u32, 8)
            + of(self.histograms(), size_of::<HistSlot>())
            + hash(self.histograms(), 24)
            + of(self.probes, size_of::<ProbeSpec>())
            + of(self.probes * slots, size_of::<ProbeCounts>())
            + of(self.granules, 4)
            + hash(self.targets, 12)
            + self.path_bytes()
            + self.growth_bytes()
            + u64::from(self.ring_bytes)
    }

    /// The nearest size of a ring buffer that the kernel accepts.
    #[must_use]
    pub fn ring(&self) -> u32 {
        self.ring_bytes.clamp(4_096, 1 << 30).next_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The defaults fit an ordinary machine, and shrink on a small one.
    #[test]
    fn sizes_follow_memory() {
        let roomy = Sizes::for_memory(8 << 30, 4);
        assert_eq!(roomy, Sizes::default());
        let small = Sizes::for_memory(256 << 20, 4);
        assert!(small.granules < roomy.granules && small.granules >= 4_096);
        assert!(small.bytes(4) <= 32 << 20 || small.granules == 4_096);
    }

    /// Counters are bounded: with 128 CPUs they take what they take with 32.
    #[test]
    fn many_processors_share_counters() {
        assert_eq!(
            [0, 1, 2, 6, 16, 33, 128, u32::MAX].map(Sizes::counter_slots),
            [1, 1, 2, 8, 16, 32, 32, 32]
        );
        let sizes = Sizes::default();
        let added = sizes.bytes(Sizes::counter_slots(128)) - sizes.bytes(Sizes::counter_slots(2));
        assert!(added < 10 << 20, "{added}");
    }

    /// Any number becomes a ring size that the kernel accepts.
    #[test]
    fn ring_sizes_are_powers_of_two() {
        for (asked, given) in [(0, 4_096), (5_000, 8_192), (4_096, 4_096), (u32::MAX, 1 << 30)] {
            assert_eq!(Sizes { ring_bytes: asked, ..Sizes::default() }.ring(), given);
        }
    }
}
