//! Call paths and sites, as both sides see them: keys and values of their maps.
//!
//! A path's number is its position in a table of hashes that only grows; so is a site's. The program that puts a hash
//! in a free position, by one compare-and-swap, has made the entry and fills what belongs to it; others use the
//! number at once. A hash of 64 bits stands for what it was made of.

use bytemuck::{Pod, Zeroable};

use crate::{
    granule::{Generation, SlotNumber},
    unwind::{Cursor, MAX_PATH, PATH_SEED, path_hash},
};

/// Hashes in a bucket of a table of hashes.
pub const HASH_WAYS: usize = 8;

/// A bucket of a table of hashes: one cache line; 0 is a free position. Positions are filled in order.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub struct HashBucket {
    /// The hashes.
    pub hashes: [u64; HASH_WAYS],
}

/// Which of `buckets` (a power of two, two at least) a hash belongs to; where it is full, the next one serves
/// ([`spare_bucket`]).
#[inline(always)]
#[must_use]
pub const fn hash_bucket(hash: u64, buckets: u32) -> u32 {
    (hash >> 32) as u32 & (buckets - 1)
}

/// The bucket that serves where `bucket` is full.
#[inline(always)]
#[must_use]
pub const fn spare_bucket(bucket: u32) -> u32 {
    bucket ^ 1
}

/// Why a path ends: a value of [`PathSlot::end`]. The slot is filled once this is not 0.
pub mod end {
    /// At the start of its thread.
    pub const START: u32 = 1;
    /// At code that cannot be unwound.
    pub const STOP: u32 = 2;
    /// At a part of the stack that could not be read.
    pub const UNREADABLE: u32 = 3;
    /// It is deeper than is followed.
    pub const TOO_DEEP: u32 = 4;
    /// Not in the kernel: the rest was sent to user space.
    pub const SENT: u32 = 5;
    /// It should have been sent, and found no room in the ring.
    pub const NOT_SENT: u32 = 6;
}

/// One path: an entry of `PATHS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PathSlot {
    /// Where its return addresses stand in `PATH_WORDS`, innermost first.
    pub at: u32,
    /// How many they are.
    pub frames: u32,
    /// One of [`end`]; written last.
    pub end: u32,
    /// Zero.
    pub reserved: u32,
}

/// What [`PathSlot::at`] is where `PATH_WORDS` had no more room.
pub const NO_WORDS: u32 = u32::MAX;

/// Threads whose names a site keeps.
pub const SITE_THREADS: usize = 4;

/// One site: an entry of `SITES`. Counters are added to by all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SiteSlot {
    /// The series.
    pub series: u32,
    /// One more than the path's number; 0 while the slot is not filled.
    pub path: u32,
    /// Where the granules were opened; 0: unknown.
    pub place: u64,
    /// Objects allocated.
    pub allocated: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Objects that were freed after the pinned close of their granule.
    pub pins_freed: u64,
    /// Their bytes.
    pub pin_bytes_freed: u64,
    /// Granules of theirs, each once.
    pub granules: u64,
    /// Those pins that were near misses.
    pub near: u64,
    /// Those that were moderately late.
    pub moderate: u64,
    /// Those that were later.
    pub fundamental: u64,
    /// First allocation (`CLOCK_MONOTONIC` ns).
    pub first_ns: u64,
    /// Last allocation.
    pub last_ns: u64,
    /// A bit per hash of a thread id that was seen.
    pub threads_seen: u64,
    /// Names that are taken, and then some if there were more.
    pub threads: u64,
    /// Names of threads, NUL-padded.
    pub names: [[u64; 2]; SITE_THREADS],
}

/// How late a pin is freed, by the lifetime of its granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Late {
    /// Less than a tenth of the lifetime.
    Near,
    /// Up to ten times the lifetime.
    Moderate,
    /// Later.
    Fundamental,
}

/// Classifies a pin by its delay and its granule's lifetime.
#[inline(always)]
#[must_use]
pub const fn late(delay_ns: u64, lifetime_ns: u64) -> Late {
    // Divided instead of multiplied: a product would need 128 bits, which BPF does not have.
    if delay_ns < lifetime_ns.div_ceil(10) {
        Late::Near
    } else if delay_ns.div_ceil(10) <= lifetime_ns {
        Late::Moderate
    } else {
        Late::Fundamental
    }
}

/// The hash of a site.
#[inline(always)]
#[must_use]
pub const fn site_hash(series: u32, path: u32, place: u64) -> u64 {
    let hash = path_hash(path_hash(PATH_SEED, (series as u64) << 32 | path as u64), place);
    if hash == 0 { 1 } else { hash }
}

/// Sites per granule that are noted beside it; those of granules with more are in `PIN_PAIRS`.
pub const PIN_WAYS: usize = 8;

/// The sites for which a granule is counted among those that they pin: an entry of `PIN_SITES`, by the granule's slot.
/// Each word holds one more than the site's number, and the generation; words of other generations are free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct PinSites {
    /// The words.
    pub words: [u64; PIN_WAYS],
}

/// A word of [`PinSites`].
#[inline(always)]
#[must_use]
pub const fn pin_word(site: u32, generation: Generation) -> u64 {
    (generation.number() as u64) << 32 | (site as u64 + 1)
}

/// Key of `PIN_PAIRS`: a granule that is counted among those that a site pins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Pod, Zeroable)]
#[repr(C)]
pub struct PinPair {
    /// The site.
    pub site: u32,
    /// The granule's slot.
    pub slot: SlotNumber,
    /// Its generation.
    pub generation: Generation,
    /// Zero.
    pub reserved: u32,
}

/// Ranges of code in one address space.
pub const CODE_RANGES: usize = 8;

/// Where code lies in an address space, coarsely: an entry of `SPACE_RANGES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SpaceRanges {
    /// Which space; another one's entry says nothing.
    pub space: u64,
    /// From, and how many bytes; ascending, the unused ones empty.
    pub ranges: [[u64; 2]; CODE_RANGES],
}

/// Entries of `SPACE_RANGES`; a power of two.
pub const SPACE_SLOTS: usize = 1024;
/// Entries of `SPACES`; a power of two.
pub const SPACES: usize = 65_536;

/// Bytes of stack that a window holds.
pub const WINDOW_BYTES: usize = 2048;

/// Working memory of one walk up a stack: an entry of `WALKS`, taken by one program at a time.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct WalkState {
    /// Not 0: it is in use.
    pub busy: u64,
    /// The frame that was reached.
    pub at: Cursor,
    /// The address space.
    pub space: u32,
    /// The target.
    pub target: u32,
    /// Frames found.
    pub frames: u32,
    /// Why the walk has ended, one of [`crate::unwind::step`] or of [`end`].
    pub end: u32,
    /// The hash of what was found.
    pub hash: u64,
    /// The hash without the last address.
    pub hash_before: u64,
    /// The thread (`pid_tgid`).
    pub pid_tgid: u64,
    /// Address of the window's first byte.
    pub window_at: u64,
    /// Bytes of it that were read.
    pub window_len: u64,
    /// Bytes of stack that were read beyond the frame that was reached.
    pub extent: u64,
    /// How far the last word is that could be a code address: there is no frame beyond.
    pub reach: u64,
    /// The return addresses.
    pub addresses: [u64; MAX_PATH],
    /// A part of the stack.
    pub window: [u64; WINDOW_BYTES / 8],
}

/// Bytes of stack in a small, a middle and a large snapshot.
pub const SNAPSHOT_SMALL: usize = 4 << 10;
/// See [`SNAPSHOT_SMALL`].
pub const SNAPSHOT_MIDDLE: usize = 12 << 10;
/// See [`SNAPSHOT_SMALL`].
pub const SNAPSHOT_LARGE: usize = 32 << 10;

/// Calls of ours in a snapshot whose return addresses the kernel has replaced.
pub const SNAPSHOT_CALLS: usize = crate::maps::MAX_FRAMES;

/// What precedes the stack in a record of `SNAPSHOTS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct SnapshotHead {
    /// The frame from which on nothing is known.
    pub at: Cursor,
    /// The path that is to be completed.
    pub path: u32,
    /// The address space.
    pub space: u32,
    /// The target.
    pub target: u32,
    /// The process.
    pub tgid: u32,
    /// Bytes of stack that follow, from the cursor's stack pointer on.
    pub bytes: u64,
    /// Stack addresses of calls of ours, and the return addresses that stood there; zeros are none.
    pub calls: [[u64; 2]; SNAPSHOT_CALLS],
}

/// A record of `SNAPSHOTS` with `WORDS` words of stack.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Snapshot<const WORDS: usize> {
    /// What it is.
    pub head: SnapshotHead,
    /// The stack.
    pub stack: [u64; WORDS],
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tenth and ten times the lifetime are where classes change.
    #[test]
    fn lateness() {
        assert_eq!(late(99, 1_000), Late::Near);
        assert_eq!(late(100, 1_000), Late::Moderate);
        assert_eq!(late(10_000, 1_000), Late::Moderate);
        assert_eq!(late(10_001, 1_000), Late::Fundamental);
        assert_eq!(late(1, 0), Late::Fundamental);
        assert_eq!(late(u64::MAX, u64::MAX), Late::Moderate);
    }

    /// A full bucket's spare is another one, and has the first for its own.
    #[test]
    fn buckets_have_spares() {
        for hash in [0, 1 << 32, u64::MAX] {
            let bucket = hash_bucket(hash, 8);
            assert!(bucket < 8 && spare_bucket(bucket) < 8 && spare_bucket(bucket) != bucket);
            assert_eq!(spare_bucket(spare_bucket(bucket)), bucket);
        }
    }
}
