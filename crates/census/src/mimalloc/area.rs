//! What was read of mimalloc: segments and arenas, their pages, and what a page says of its blocks.

use crate::space::Space;

/// Bytes of a slice: segments and arenas are divided into them.
pub(super) const SLICE: u64 = 64 << 10;
/// The lowest bits of the head of a list of freed blocks say who may take them.
pub(super) const FLAGS: u64 = 3;
/// Keys are random numbers, which are larger than this.
pub(super) const FEWEST_KEYS: u64 = 1 << 16;

/// A page with blocks of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Bytes of a block, blocks that fit, and those in use.
    pub(super) size: u64,
    pub(super) reserved: u64,
    pub(super) used: u64,
    /// The first block that another thread has freed.
    pub(super) freed: u64,
    /// Others that were freed so, and wait in a list of the heap.
    pub(super) waiting: u64,
    /// What the list's links are encoded with, and what the last one says.
    pub(super) keys: Option<[u64; 3]>,
    pub(super) blocks: Blocks,
}

impl Page {
    pub(super) fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// Stretches of memory: first address, first address after.
pub(super) type Stretches = Vec<(u64, u64)>;

/// A segment, an arena, or a page that has memory to itself.
#[derive(Debug, Default)]
pub(super) struct Area {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) pages: Vec<Page>,
    pub(super) free: Stretches,
    /// What the allocator keeps for itself.
    pub(super) own: Stretches,
    /// What is listed, and makes no sense.
    pub(super) unknown: Stretches,
}

impl Area {
    pub(super) fn end(&self) -> u64 {
        self.address + self.bytes
    }

    pub(super) fn unknown(address: u64, end: u64) -> Self {
        Self { address, bytes: end - address, unknown: vec![(address, end)], ..Self::default() }
    }
}

/// What was read.
#[derive(Default)]
pub(super) struct Read {
    pub(super) areas: Vec<Area>,
    pub(super) notes: Vec<String>,
}

/// Where a description has a number, and how many bits that takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    at: u64,
    bits: u32,
}

impl Place {
    pub(super) const fn new(at: u64, bits: u32) -> Self {
        Self { at, bits }
    }

    pub(super) fn read(self, space: &Space<'_>) -> Option<u64> {
        let word = space.word(self.at / 8 * 8)?;
        Some(word >> (self.at % 8 * 8) & u64::MAX >> (64 - self.bits))
    }
}

/// What a page says of its blocks, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Blocks that were handed out once, and the lists of free ones.
    pub(super) capacity: u64,
    pub(super) heads: [u64; 2],
    /// Blocks in use, the above, and the lists.
    pub(super) places: [Place; 4],
}

/// Whether a word is the head of a list of a page's freed blocks, or of an empty one.
pub(super) fn is_list(head: u64, start: u64, end: u64) -> bool {
    let block = head & !FLAGS;
    block == 0 || (block.is_multiple_of(8) && (start..end.saturating_sub(7)).contains(&block))
}
