//! What a process has mapped, and how it is read.

use crate::present::Present;

/// Memory of a process, or of a test.
pub(crate) trait Memory {
    /// Fills `bytes` from `address` on; whether all of them could be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Fills `bytes` with as many from each of these addresses, which divide it evenly; how many of them could be read
    /// before one that could not.
    fn read_each(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        let each = bytes.len() / addresses.len().max(1);
        let mut parts = addresses.iter().zip(bytes.chunks_exact_mut(each.max(1)));
        parts.position(|(at, part)| !self.read(*at, part)).unwrap_or(addresses.len())
    }

    /// The pages from `start` to `end` that are present. Others are not to be read.
    fn present(&self, start: u64, end: u64) -> Present;

    /// The pages from `start` to `end` that are parts of huge pages; `None` where that is not known.
    fn huge(&self, _start: u64, _end: u64) -> Option<Present> {
        None
    }

    /// Whether all pages from `start` to `end` are guard pages, which fault; `None` where that is not known.
    fn guarded(&self, _start: u64, _end: u64) -> Option<bool> {
        None
    }

    /// Whether [`Memory::present`] costs nothing where nothing is present.
    fn skips_holes(&self) -> bool {
        true
    }

    /// Fills `bytes` with what the mapped file has there; whether it could be read. The process takes no part.
    fn read_file(&self, _address: u64, _bytes: &mut [u8]) -> bool {
        false
    }

    /// The mangled name of the class whose vtable has this address, by its symbol.
    fn vtable(&self, _address: u64) -> Option<String> {
        None
    }
}

/// What a range is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeKind {
    /// `[heap]`: what `brk` moves.
    Heap,
    /// Anonymous memory.
    Anonymous,
    /// `[stack]`: that of the first thread.
    Stack,
    /// A mapped file.
    File,
    /// Shared memory without a file on disk.
    Shared,
}

impl RangeKind {
    /// Whether it is memory that an allocator may have of the system.
    pub(crate) fn may_be_heap(self) -> bool {
        matches!(self, Self::Heap | Self::Anonymous)
    }
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: RangeKind,
    pub(crate) writable: bool,
    /// Resident bytes.
    pub(crate) rss: u64,
    /// Swapped bytes.
    pub(crate) swap: u64,
    /// Resident bytes in transparent huge pages.
    pub(crate) huge: u64,
    /// Of the resident bytes, those in huge pages of hugetlbfs.
    pub(crate) hugetlb: u64,
}

impl Range {
    /// Whether heaps may be in it.
    pub(crate) fn is_heap(&self) -> bool {
        self.writable && self.kind.may_be_heap()
    }
}
