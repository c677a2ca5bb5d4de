//! Keys and values of the maps. `drainprof-ebpf/src/maps.rs` declares the maps themselves.
//!
//! Arrays are memory-mapped by user space and read there without system calls; they are indexed
//! `cpu × n + i` where they are per CPU.

use bytemuck::{Pod, Zeroable};

use crate::{
    granule::{Generation, ParentWord, PinnedWord, SlotNumber},
    interp::Registers,
    spec::LABEL_BYTES,
    state::State,
};

/// The series index that stands for "none".
pub const NO_SERIES: u32 = u32::MAX;
/// Granules that can be nested in one another before a chain of them is no longer followed.
pub const MAX_NESTING: usize = 64;

/// How deep calls into probed functions can be nested in one thread.
pub const MAX_FRAMES: usize = 8;

/// Entries of `PROGRAM_NAMES`.
pub const PROGRAM_NAMES: u32 = 1_024;
/// Name of a program as the kernel has it: cut, and filled with zeros.
pub type ProgramName = [u8; 16];

/// What is done with processes of a name that are no targets: values of `PROGRAM_NAMES`.
pub mod program_flags {
    /// They become targets when they execute their program.
    pub const ENTER: u32 = 1;
    /// Their end is reported.
    pub const REPORT: u32 = 2;
}

/// Value of `TARGETS`, keyed by thread-group id (`u32`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct TargetValue {
    /// The target's index: one process incarnation, never reused in a session.
    pub target: u32,
    /// Bits of [`target_flags`].
    pub flags: u32,
}

/// Entries of `TARGET_WORDS`; a power of two.
pub const TARGET_WORDS: usize = 1024;
/// Entries of `SERIES_WORDS`; a power of two.
pub const SERIES_WORDS: usize = 1024;
/// Entries of the index of granule ids, where there is room for so many granules: closed ids are remembered for a while,
/// so that a second close is recognised.
#[must_use]
pub const fn index_entries(granules: u32) -> u32 {
    granules.saturating_mul(2).saturating_add(65_536)
}
/// Entries of `GRANULE_WORDS`; a power of two.
pub const GRANULE_WORDS: usize = 8192;
/// Entries of `HIST_WORDS`; a power of two.
pub const HIST_WORDS: usize = 1024;

/// A target in one word of `TARGET_WORDS`, in front of the map `TARGETS`: an array is looked up without a call.
/// It holds the target's index, the process (`tgid`, below 2²²: `PID_MAX_LIMIT`) and the flags; 0: nothing.
pub mod target_word {
    use super::{TARGET_WORDS, TargetValue};

    const TGID_MASK: u64 = (1 << 22) - 1;

    /// The word.
    #[inline(always)]
    #[must_use]
    pub const fn pack(tgid: u32, value: TargetValue) -> u64 {
        value.target as u64 | (tgid as u64 & TGID_MASK) << 32 | (value.flags as u64) << 54
    }

    /// The target, if the word is of this process.
    #[inline(always)]
    #[must_use]
    pub const fn unpack(word: u64, tgid: u32) -> Option<TargetValue> {
        if word != 0 && (word >> 32) & TGID_MASK == tgid as u64 {
            Some(TargetValue { target: word as u32, flags: (word >> 54) as u32 })
        } else {
            None
        }
    }

    /// Where a process's word may stand.
    #[inline(always)]
    #[must_use]
    pub const fn index(tgid: u32) -> u32 {
        tgid & (TARGET_WORDS as u32 - 1)
    }
}

/// Bits of [`TargetValue::flags`].
pub mod target_flags {
    /// Observed since before its first instruction: what was never opened in our sight was never opened.
    pub const FROM_START: u32 = 1;
    /// Children are followed.
    pub const FOLLOW: u32 = 1 << 1;
    /// A `CLONE_VM` child (vfork) that borrows its parent's memory until it calls exec.
    pub const BORROWED: u32 = 1 << 2;
}

/// Key of `SERIES`: one allocator instance of one target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct SeriesKey {
    /// The target's index.
    pub target: u32,
    /// [`crate::spec::ProbeSpec::allocator`].
    pub allocator: u32,
    /// The instance, 0 where the profile names none.
    pub instance: u64,
}

/// What is known of a series; one slot of `SERIES_STATE`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SeriesState {
    /// Whose series it is.
    pub key: SeriesKey,
    /// When it was first seen (`CLOCK_MONOTONIC` ns); written last, 0 while the slot is not ready.
    pub created_ns: u64,
    /// When its instance was destroyed; 0: it was not.
    pub destroyed_ns: u64,
    /// Granules open now.
    pub open_now: u64,
    /// The most that were open at once.
    pub open_peak: u64,
    /// Granules that are closed, pinned and not yet drained.
    pub retained_granules: u64,
    /// Their bytes, as far as bytes per granule are known.
    pub retained_bytes: u64,
    /// Granules that were open when the instance was destroyed.
    pub destroyed_open: u64,
}

/// Key of `INDEX`: which granule an id means now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct IndexKey {
    /// The series.
    pub series: u32,
    /// Zero.
    pub reserved: u32,
    /// The granule's id as the target has it.
    pub id: u64,
}

/// One granule: a slot of `GRANULES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Slot {
    /// Live count, flags and generation.
    pub state: State,
    /// The series that it belongs to.
    pub series: u32,
    /// Without object ids: late drains of earlier generations whose objects are counted with this one's
    /// and cannot be distinguished from them. They have drained once the count is zero.
    pub deferred: u32,
    /// Its id as the target has it.
    pub id: u64,
    /// When it was opened or last reset; 0 where its open was not seen.
    pub opened_ns: u64,
    /// When it was closed; 0 while open.
    pub closed_ns: u64,
    /// Return address of the call that opened it; 0 where unknown.
    pub place: u64,
    /// Bytes that it retains; 0 where unknown.
    pub bytes: u64,
    /// Bytes of its live objects, where sizes are known.
    pub live_bytes: u64,
    /// The parent's id; 0 where the profile names none.
    pub parent: u64,
    /// Where `[granule] nested`: the slot and generation of its parent. It is over as soon as that generation is closed,
    /// or over itself.
    pub parent_at: ParentWord,
    /// Where its label is in the target's memory, if it could not be read at the open: the page was not
    /// there yet, and a probe cannot wait for it. User space can.
    pub label_at: u64,
    /// Objects live at its close; while open those that it took over from its last generation.
    pub pinned_objects: PinnedWord,
    /// Its label, NUL-terminated; all zero where the profile names none.
    pub label: [u8; LABEL_BYTES],
}

/// Key of `OBJECTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct ObjectKey {
    /// The target's index.
    pub target: u32,
    /// The allocator; with the top bit set the series, where ids are unique per instance only.
    pub scope: u32,
    /// The object's id as the target has it.
    pub id: u64,
}

/// Value of `OBJECTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ObjectValue {
    /// The granule's slot, or [`SlotNumber::NONE`].
    pub slot: SlotNumber,
    /// The granule's generation, so that a stale entry is recognised.
    pub generation: Generation,
    /// The object's size in bytes; 0 where unknown.
    pub size: u64,
    /// The series that counts it.
    pub series: u32,
    /// One more than the number of its site; 0: none.
    pub site: u32,
    /// When it was allocated (`CLOCK_MONOTONIC` ns), by the first call of a chain of reallocs; 0 without a site.
    pub born_ns: u64,
}

/// Objects that a bucket of `OBJECT_BUCKETS` holds.
pub const WAYS: usize = 8;

/// An object with its key, in a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ObjectEntry {
    /// Which object.
    pub key: ObjectKey,
    /// What is known of it.
    pub value: ObjectValue,
}

/// One value of `OBJECT_BUCKETS`: objects whose keys hash to it. A bucket's tags fill one cache line.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Bucket {
    /// One per entry; see [`tag`].
    pub tags: [u64; WAYS],
    /// The entries.
    pub entries: [ObjectEntry; WAYS],
}

/// The word that says what an entry of a bucket is. A program that changes an entry owns it first: by a
/// compare-and-swap of its tag, which fails if the entry has changed hands since the tag was read, because each
/// use of it has a version of its own.
pub mod tag {
    use super::ObjectKey;

    /// The part that is the fingerprint of the key.
    pub const FINGERPRINT: u64 = 0xffff_ffff;
    /// One program alone may touch the entry; neither bit: it is free.
    pub const OWNED: u64 = 1 << 32;
    /// The entry holds an object.
    pub const FULL: u64 = 1 << 33;
    /// Both.
    pub const STATE: u64 = OWNED | FULL;
    /// One version.
    pub const VERSION: u64 = 1 << 34;

    /// The key's hash: the low half is the fingerprint, the high half selects the bucket.
    #[inline(always)]
    #[must_use]
    pub const fn hash(key: &ObjectKey) -> u64 {
        // Two rounds of multiply and fold, with odd constants from the golden ratio and √2.
        let whose = (key.scope as u64) << 32 | key.target as u64;
        let once = (key.id ^ whose.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let twice = (once ^ (once >> 32)).wrapping_mul(0xb504_f333_f9de_6485);
        twice ^ (twice >> 29)
    }

    /// Which of `buckets` a hash means.
    #[inline(always)]
    #[must_use]
    pub const fn bucket(hash: u64, buckets: u32) -> u32 {
        (((hash >> 32) * buckets as u64) >> 32) as u32
    }

    /// A full entry's tag without its version.
    #[inline(always)]
    #[must_use]
    pub const fn full(hash: u64) -> u64 {
        (hash & FINGERPRINT) | FULL
    }

    /// The tag without its version.
    #[inline(always)]
    #[must_use]
    pub const fn plain(tag: u64) -> u64 {
        tag & (STATE | FINGERPRINT)
    }

    /// Whether the entry is free.
    #[inline(always)]
    #[must_use]
    pub const fn is_free(tag: u64) -> bool {
        tag & STATE == 0
    }

    /// The tag with another state and fingerprint, in the same version.
    #[inline(always)]
    #[must_use]
    pub const fn with(tag: u64, plain: u64) -> u64 {
        (tag & !(STATE | FINGERPRINT)) | plain
    }
}

/// Counters of one series on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Totals {
    /// Opens seen.
    pub opened: u64,
    /// Granules first seen by an alloc or a close: their open was before the attach, or never.
    pub opened_before: u64,
    /// Closes with no live object (kind `drain`).
    pub drainable: u64,
    /// Closes with at least one live object (kind `drain`).
    pub pinned: u64,
    /// Closes that could not be decided.
    pub unknown: u64,
    /// Closes of the kinds that have no verdict (`bulk`, `slab`).
    pub closed_plain: u64,
    /// Resets.
    pub resets: u64,
    /// Granules that were opened again without a close in between; the earlier one is gone.
    pub reopened: u64,
    /// Objects allocated.
    pub allocated: u64,
    /// Objects freed one by one.
    pub freed: u64,
    /// Objects freed by the close or reset of their granule (kind `bulk`).
    pub freed_in_bulk: u64,
    /// Bytes allocated, where sizes are known.
    pub allocated_bytes: u64,
    /// Bytes freed, one by one or in bulk.
    pub freed_bytes: u64,
    /// Reallocs that succeeded.
    pub reallocs: u64,
    /// Pinned granules whose last pin was freed.
    pub late_drained: u64,
    /// Objects that were live at pinned closes, added up.
    pub pinned_objects: u64,
    /// Bytes of the granules of pinned closes, where known, added up.
    pub pinned_bytes: u64,
    /// Bytes of granules that were closed, where known, added up.
    pub closed_bytes: u64,
    /// Frees that the granule's count could not cover, or of unknown objects.
    pub unmatched_frees: u64,
    /// Of these, frees of objects that were seen, by the ids of objects, in granules whose close should have freed them
    /// (kind `bulk`).
    pub freed_after_close: u64,
    /// Closes of granules that were closed already.
    pub unmatched_closes: u64,
    /// Allocs in closed granules.
    pub allocs_after_close: u64,
    /// Objects that were replaced without a free; they count as freed too.
    pub replaced: u64,
    /// Granules that could not be followed for want of a slot; they are in `opened`.
    pub unfollowed: u64,
    /// Granules whose close has handed their objects over; no other close counts them.
    pub migrated: u64,
    /// Objects that were live at these closes, added up.
    pub migrated_objects: u64,
    /// Granules that ended with the granule that they were nested in; no close counts them.
    pub ended_with_parent: u64,
}

/// One counter of [`Totals`]; [`counter!`](crate::counter) names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter(usize);

impl Counter {
    /// The one that stands so many bytes into [`Totals`].
    ///
    /// # Panics
    /// Where none does; [`counter!`](crate::counter) asks while it is compiled.
    #[must_use]
    pub const fn at(offset: usize) -> Self {
        assert!(offset.is_multiple_of(8) && offset < size_of::<Totals>(), "no counter");
        Self(offset / 8)
    }

    /// Its number: the words of [`Totals`] before it.
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }
}

/// A counter of [`Totals`], by its field.
#[macro_export]
macro_rules! counter {
    ($field:ident) => {
        const { $crate::maps::Counter::at(core::mem::offset_of!($crate::maps::Totals, $field)) }
    };
}

impl Totals {
    /// Adds other counters.
    pub fn add(&mut self, more: &Self) {
        let sums: &mut [u64] = bytemuck::cast_slice_mut(core::slice::from_mut(self));
        let more: &[u64] = bytemuck::cast_slice(core::slice::from_ref(more));
        for (sum, more) in sums.iter_mut().zip(more) {
            *sum = sum.saturating_add(*more);
        }
    }

    /// Closes of all outcomes; what was migrated or ended with a parent is not closed.
    #[must_use]
    pub const fn closed(&self) -> u64 {
        self.drainable + self.pinned + self.unknown + self.closed_plain
    }

    /// Objects that are gone: freed one by one, in bulk, or replaced.
    #[must_use]
    pub const fn gone(&self) -> u64 {
        self.freed + self.freed_in_bulk + self.replaced
    }
}

/// Counters of one probe on one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ProbeCounts {
    /// Hits in traced processes, entries and returns counted apart.
    pub entries: u64,
    /// Returns.
    pub returns: u64,
    /// Hits whose `when` did not hold.
    pub rejected: u64,
    /// Hits whose expressions could not be computed.
    pub faults: u64,
}

/// A call on its way from entry to return.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Frame {
    /// Index of the probe's spec.
    pub spec: u32,
    /// 1: an object was taken out at entry.
    pub taken: u32,
    /// The spec's [`crate::spec::Role`].
    pub role: u32,
    /// The spec's allocator.
    pub allocator: u32,
    /// Stack pointer at entry, with which the return is matched.
    pub rsp: u64,
    /// Where the function begins: calls that are followed for several specs have one frame for each.
    pub rip: u64,
    /// The call's inputs, and what was computed from them.
    pub registers: Registers,
    /// The object that was taken out.
    pub taken_key: ObjectKey,
    /// Its entry.
    pub taken_value: ObjectValue,
    /// Allocs that were counted inside this call.
    pub nested_allocs: u64,
}

/// The calls of one thread that have not returned. Most threads have a slot of `THREAD_SLOTS`; those whose
/// slot is another's have an entry of `THREADS`, keyed by `pid_tgid`.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct ThreadState {
    /// In `THREAD_SLOTS`: the thread (`pid_tgid`); 0: none. In `THREADS` it is not used.
    pub owner: u64,
    /// How many frames are in use.
    pub depth: u32,
    /// The target that the frames belong to; another one means they are stale.
    pub target: u32,
    /// The frames, outermost first.
    pub frames: [Frame; MAX_FRAMES],
}

/// Value of `NOTED`: what the diagnostics of one CPU have noted. Programs can be preempted: a line may then name the other program's loss, and counters are
/// not touched by that.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Noted {
    /// Start of the current second.
    pub since: u64,
    /// Process and thread of the noted loss.
    pub pid_tgid: u64,
    /// The loss's number plus one; 0: nothing is noted.
    pub loss: u32,
    /// Lines logged in this second.
    pub logged: u32,
    /// Lines left out since the last one.
    pub left_out: u32,
    /// Zero.
    pub reserved: u32,
}

/// Key of a histogram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct HistKey {
    /// The series.
    pub series: u32,
    /// A [`crate::hist::Of`].
    pub of: u32,
    /// For lifetimes the place of opening, else 0.
    pub place: u64,
}

/// One histogram with its key: a slot of `HISTOGRAMS`.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct HistSlot {
    /// Whose it is. `key.of` is written last: 0 while the slot is not ready.
    pub key: HistKey,
    /// The histogram.
    pub hist: crate::hist::Hist,
}

/// Cursors that the kernel side advances: indices into `CURSORS`.
pub mod cursor {
    /// Next slot of `GRANULES` that was never used.
    pub const SLOT: u32 = 0;
    /// Next series.
    pub const SERIES: u32 = 1;
    /// Next target index.
    pub const TARGET: u32 = 2;
    /// Entries in `INDEX`.
    pub const INDEX: u32 = 3;
    /// Entries in `OBJECTS`: objects that found no room in their bucket.
    pub const OBJECTS: u32 = 4;
    /// Slots waiting in `FREE_SLOTS`.
    pub const FREE_SLOTS: u32 = 5;
    /// Next slot of `HISTOGRAMS`.
    pub const HIST: u32 = 6;
    /// Next word of `PATH_WORDS`.
    pub const PATH_WORD: u32 = 7;
    /// Entries in `PIN_PAIRS`.
    pub const PIN_PAIRS: u32 = 8;
    /// When a call was last lost (`CLOCK_MONOTONIC` ns): what was open then may have lost an object.
    pub const LOST_CALL: u32 = 9;
    /// How many cursors there are.
    pub const COUNT: u32 = 10;
}
