//! Where memory grows, as both sides see it: keys and values of the maps of page faults and mappings.
//!
//! A *cell* is what one call path of one target does to its memory in one way: it faults, or calls one of a few
//! system calls. While it does so, what the kernel adds to or takes from the process's resident memory is the
//! cell's: the kernel reports the new size at each change (`kmem:rss_stat`), so the differences of all cells add up to
//! the change of the whole.

use bytemuck::{Pod, Zeroable};

use crate::unwind::{PATH_SEED, path_hash};

/// In which way memory changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Cause {
    /// The program touches a page that is not there, or may not be touched so yet.
    Fault = 1,
    /// The kernel does so in its name, as `read` into a fresh buffer.
    KernelFault = 2,
    /// `brk`.
    Brk = 3,
    /// `mmap`.
    Mmap = 4,
    /// `munmap`.
    Munmap = 5,
    /// `mremap`.
    Mremap = 6,
    /// `madvise`.
    Madvise = 7,
    /// None of these, in one of the process's threads: any other system call.
    Other = 8,
    /// From outside: reclaim, another process, the end of the address space.
    Outside = 9,
}

impl Cause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Fault,
        Self::KernelFault,
        Self::Brk,
        Self::Mmap,
        Self::Munmap,
        Self::Mremap,
        Self::Madvise,
        Self::Other,
        Self::Outside,
    ];

    /// Checks a raw value.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u32 == raw)
    }
}

/// Kinds of resident memory, as `kmem:rss_stat` numbers them.
pub mod member {
    /// Pages of files.
    pub const FILE: usize = 0;
    /// Anonymous pages.
    pub const ANON: usize = 1;
    /// Pages in swap, which are not resident.
    pub const SWAP: usize = 2;
    /// Pages of shared memory.
    pub const SHMEM: usize = 3;
    /// How many there are.
    pub const COUNT: usize = 4;
}

/// Bits of a page fault's error code on x86-64.
pub mod fault {
    /// The page is there; the access is not allowed, or not yet (copy on write).
    pub const PRESENT: u64 = 1;
    /// A write.
    pub const WRITE: u64 = 1 << 1;
    /// The fetch of an instruction.
    pub const INSTRUCTION: u64 = 1 << 4;
}

/// One cell: an entry of `GROWTH_CELLS`. Counters are added to by all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GrowthCell {
    /// The target.
    pub target: u32,
    /// A [`Cause`]; written last, 0 while the cell is not filled.
    pub cause: u32,
    /// One more than the path's number, 0: not known; with [`with_stack`] also a stack of the kernel.
    pub path: u32,
    /// Zero.
    pub reserved: u32,
    /// Faults, or calls.
    pub events: u64,
    /// Faults that were writes.
    pub writes: u64,
    /// Faults at pages that were there.
    pub present: u64,
    /// Faults at instructions.
    pub instructions: u64,
    /// What resident memory has changed by, in bytes, by [`member`]; signed.
    pub rss: [i64; member::COUNT],
}

/// The hash of a cell. `path` is one more than its number.
#[inline(always)]
#[must_use]
pub const fn cell_hash(target: u32, cause: u32, path: u32) -> u64 {
    let whose = (target as u64) << 32 | path as u64;
    let hash = path_hash(path_hash(PATH_SEED, whose), cause as u64);
    if hash == 0 { 1 } else { hash }
}

/// Entries of `KERNEL_STACKS`; the last one is not used.
pub const KERNEL_STACKS: u32 = 1024;
/// Bits of a cell's `path` that are the path's number.
const PATH_BITS: u32 = 22;

/// A cell's `path`, of one more than a path's number and one more than the number of a stack of the kernel; 0 is none.
#[inline(always)]
#[must_use]
pub const fn with_stack(path: u32, stack: u32) -> u32 {
    path | stack << PATH_BITS
}

/// The two of them again.
#[inline(always)]
#[must_use]
pub const fn path_and_stack(path: u32) -> (u32, u32) {
    (path & ((1 << PATH_BITS) - 1), path >> PATH_BITS)
}

/// What is known of a target's memory: a value of `GROWTH_TARGETS`, by target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GrowthTarget {
    /// The kernel's number for the address space in `kmem:rss_stat`; 0: not seen yet.
    pub mm_id: u64,
    /// Bit per [`member`] whose size is known.
    pub known: u64,
    /// Sizes in bytes at the last change, by [`member`].
    pub last: [u64; member::COUNT],
    /// The most that `last` was, each for itself.
    pub peak: [u64; member::COUNT],
}

/// What a thread is doing: an entry of `GROWTH_THREADS`, by the thread id's low bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct GrowthThread {
    /// Whose it is (`pid_tgid`).
    pub pid_tgid: u64,
    /// The cell: one more than its number; 0: none.
    pub cell: u64,
    /// The page that is touched; 0 where it does no such thing.
    pub page: u64,
}

/// Entries of `GROWTH_THREADS`; a power of two.
pub const GROWTH_THREADS: usize = 65_536;

/// Bytes of a page.
pub const PAGE: u64 = 4096;
/// Bytes of a region: of a page table, and of a huge page.
pub const REGION: u64 = 2 << 20;
/// Words of a region's bits, one bit per page.
pub const REGION_WORDS: usize = (REGION / PAGE / 64) as usize;

/// Key of `TOUCHED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(C)]
pub struct RegionKey {
    /// The target.
    pub target: u32,
    /// Zero.
    pub reserved: u32,
    /// The region's address, in regions.
    pub region: u64,
}

/// Value of `TOUCHED`: which pages of a region were touched since the target is observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RegionPages {
    /// One bit per page.
    pub words: [u64; REGION_WORDS],
}

/// The system call of a mapping record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum MapKind {
    /// `brk` has returned: the new break is in `result`, what was asked for in `address`.
    Brk = 1,
    /// `mmap` has returned: `result` is the address.
    Mmap = 2,
    /// `munmap` begins. It is reported before it happens, so that the next user of the address is reported later.
    MunmapBegins = 3,
    /// `munmap` has returned: `result` is 0, or an error.
    Munmap = 4,
    /// `mremap` begins.
    MremapBegins = 5,
    /// `mremap` has returned: `result` is the new address, or an error.
    Mremap = 6,
    /// `madvise` has returned.
    Madvise = 7,
}

impl MapKind {
    /// Checks a raw value.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Brk,
            2 => Self::Mmap,
            3 => Self::MunmapBegins,
            4 => Self::Munmap,
            5 => Self::MremapBegins,
            6 => Self::Mremap,
            7 => Self::Madvise,
            _ => return None,
        })
    }
}

/// One system call that changes mappings: a record of `MAPPINGS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct MapRecord {
    /// A [`MapKind`].
    pub kind: u32,
    /// The target.
    pub target: u32,
    /// The thread.
    pub tid: u32,
    /// One more than the number of the call path; 0: not known.
    pub path: u32,
    /// First argument: an address.
    pub address: u64,
    /// Second argument: a length.
    pub length: u64,
    /// Third argument: `mmap`'s protection, `mremap`'s new length, `madvise`'s advice.
    pub third: u64,
    /// Fourth argument: flags of `mmap` and `mremap`.
    pub flags: u64,
    /// What it returned, if it has.
    pub result: u64,
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raw values are checked, and every cause is found by its own.
    #[test]
    fn raw_values() {
        for cause in Cause::ALL {
            assert_eq!(Cause::from_raw(cause as u32), Some(cause));
        }
        assert!(Cause::from_raw(0).is_none() && Cause::from_raw(10).is_none());
        assert!(MapKind::from_raw(0).is_none() && MapKind::from_raw(8).is_none());
        assert_eq!(MapKind::from_raw(6), Some(MapKind::Mremap));
    }

    /// A path and a stack come apart again, the largest too.
    #[test]
    fn stacks_of_the_kernel() {
        for both in [(0, 0), (7, 0), (0, 9), ((1 << 22) - 1, KERNEL_STACKS - 1)] {
            assert_eq!(path_and_stack(with_stack(both.0, both.1)), both);
        }
        assert_eq!(with_stack(7, 0), 7);
    }

    /// Cells differ by target, cause and path.
    #[test]
    fn cells_are_apart() {
        let hashes =
            [cell_hash(1, 1, 1), cell_hash(2, 1, 1), cell_hash(1, 2, 1), cell_hash(1, 1, 2)];
        for (at, hash) in hashes.iter().enumerate() {
            assert!(*hash != 0 && !hashes[..at].contains(hash));
        }
    }
}
