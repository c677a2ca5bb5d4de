//! The kinds of memory contexts, and the blocks that each has.
//!
//! A shape is a layout that some version of PostgreSQL has. Whether a context has it, its blocks say: they are linked
//! both ways, lie in memory, and add up to what the context says that it has. Sources: `aset.c`, `generation.c`,
//! `slab.c` and `bump.c` in `src/backend/utils/mmgr` of PostgreSQL 13 to 18.

use crate::{model::ContextKind, pages::Reader};

/// Offsets of what all contexts begin with; see the module above.
const MEM_ALLOCATED: u64 = 8;
/// Bytes of what all contexts begin with.
pub(super) const COMMON: u64 = 80;
/// Lists of free chunks in an `AllocSet`, by size: 8 bytes, 16 and so on.
const FREE_LISTS: u64 = 11;
/// The most free chunks that a block of a slab can have.
const MAX_SLAB_LISTS: u64 = 1 << 16;
/// Bytes of an `AllocSet`'s block that are its own: its context, the block before and after, and two pointers.
const SET_BLOCK: u64 = 40;
/// The number of the `AllocSet`s' method in what is before a chunk.
const SET_METHOD: u64 = 3;

/// A layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Bytes of its header; what is before a chunk.
    AllocSet {
        header: u64,
        chunk: Chunk,
    },
    /// Bytes of its header, where its list of blocks is, whether blocks name their context, and whether the first of
    /// them follows the header.
    Generation {
        header: u64,
        list: u64,
        names_context: bool,
        has_keeper: bool,
    },
    /// A list of blocks for each number of free chunks.
    SlabByFree,
    /// A list of empty blocks, and three for the others; sizes of 64 bits or of 32.
    SlabInThree {
        is_wide: bool,
    },
    Bump,
}

/// What is before a chunk of an `AllocSet`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    /// Its size and, if it is free, the next one.
    Sized,
    /// A word: the method, from this bit on the number of its list, and from bit 34 on how far its block begins before.
    Packed(u32),
}

/// All shapes. The first of two that match as well counts: an empty context says little.
pub(super) const SHAPES: [Shape; 11] = [
    Shape::AllocSet { header: 224, chunk: Chunk::Sized },
    Shape::AllocSet { header: 224, chunk: Chunk::Packed(4) },
    Shape::AllocSet { header: 200, chunk: Chunk::Packed(5) },
    Shape::Generation { header: 152, list: 136, names_context: false, has_keeper: true },
    Shape::Generation { header: 152, list: 136, names_context: true, has_keeper: true },
    Shape::Generation { header: 128, list: 112, names_context: true, has_keeper: true },
    Shape::Bump,
    Shape::SlabByFree,
    Shape::SlabInThree { is_wide: true },
    Shape::SlabInThree { is_wide: false },
    Shape::Generation { header: 112, list: 96, names_context: false, has_keeper: false },
];

impl Shape {
    pub(super) fn kind(self) -> ContextKind {
        match self {
            Self::AllocSet { .. } => ContextKind::AllocSet,
            Self::Generation { .. } => ContextKind::Generation,
            Self::SlabByFree | Self::SlabInThree { .. } => ContextKind::Slab,
            Self::Bump => ContextKind::Bump,
        }
    }
}

/// What a context's blocks add up to, as the server itself counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub(super) total: u64,
    pub(super) blocks: u64,
    /// `None` where not all of it is present.
    pub(super) free: Option<u64>,
}

/// A block: where it begins and ends, and its free bytes.
struct Block {
    start: u64,
    end: u64,
    free: u64,
}

impl Reader<'_> {
    /// The blocks of a context of this shape; `None` where it has another, or changes at this moment.
    pub(super) fn sums(&mut self, context: u64, shape: Shape) -> Option<Sums> {
        let allocated = self.word(context, MEM_ALLOCATED)?;
        match shape {
            Shape::AllocSet { header, chunk } => self.alloc_set(context, header, chunk, allocated),
            Shape::Generation { header, list, names_context, has_keeper } => {
                let field = if names_context { 24 } else { 16 };
                let (mut total, mut blocks, mut free, mut keeper) = (0u64, 0, 0u64, false);
                self.list(context + list, |reader, node| {
                    let [bytes, chunks, at, end] = reader.pages.words(node + field)?;
                    let is_named = !names_context || reader.word(node, 16)? == context;
                    let is_sane = is_named
                        && chunks >> 32 <= chunks & 0xffff_ffff
                        && end.checked_sub(bytes) == Some(node);
                    let block = reader.block(node, at, end, field + 32).filter(|_| is_sane)?;
                    keeper |= node == context + header;
                    (total, blocks) = (total.checked_add(bytes)?, blocks + 1);
                    free += block.free;
                    Some(())
                })?;
                let is_whole = allocated == total || has_keeper && allocated == total + header;
                let total = total.checked_add(header)?;
                let sums = Sums { total, blocks, free: Some(free) };
                (keeper == has_keeper && is_whole).then_some(sums)
            }
            Shape::SlabByFree => self.slab_by_free(context, allocated),
            Shape::SlabInThree { is_wide } => self.slab_in_three(context, is_wide, allocated),
            Shape::Bump => {
                let (header, mut keeper) = (COMMON + 32, false);
                let mut sums = Sums { free: Some(0), ..Sums::default() };
                self.list(context + COMMON + 16, |reader, node| {
                    let [at, end] = reader.pages.words(node + 16)?;
                    let block = reader.block(node, at, end, 32)?;
                    keeper |= node == context + header;
                    sums.add(end - node, block.free)
                })?;
                (keeper && sums.total.checked_add(header) == Some(allocated)).then_some(sums)
            }
        }
    }

    fn alloc_set(
        &mut self,
        context: u64,
        header: u64,
        chunk: Chunk,
        allocated: u64,
    ) -> Option<Sums> {
        let mut sums = Sums { total: header, ..Sums::default() };
        let (mut blocks, mut keeper, mut before, mut free) = (Vec::new(), false, 0, 0);
        let mut at = self.word(context, COMMON)?;
        while at != 0 {
            self.step()?;
            let [owner, link, next, unused, end] = self.pages.words(at)?;
            let block = self.block(at, unused, end, SET_BLOCK)?;
            if owner != context || link != before {
                return None;
            }
            keeper |= at == context + header;
            sums.total = sums.total.checked_add(end - at)?;
            sums.blocks += 1;
            free += block.free;
            blocks.push(block);
            (before, at) = (at, next);
        }
        if !keeper || sums.total != allocated {
            return None;
        }
        blocks.sort_unstable_by_key(|block| block.start);
        for list in 0..FREE_LISTS {
            let mut at = self.word(context, COMMON + 8 + list * 8)?;
            let size = 8 << list;
            while at != 0 {
                self.step()?;
                let last = blocks.partition_point(|block| block.start < at).checked_sub(1)?;
                let block = blocks.get(last).filter(|block| at < block.end)?;
                let Some([word, next]) = self.pages.words(at) else {
                    // The page is swapped out, or gone: nothing is wrong, but what is free is not known.
                    return Some(sums);
                };
                let (is_free, overhead) = match chunk {
                    Chunk::Sized => (word == size, 16),
                    Chunk::Packed(shift) => {
                        let is_listed =
                            word & 0xf == SET_METHOD && (word & ((1 << 34) - 1)) >> shift == list;
                        (is_listed && word >> 34 == at - block.start, 8)
                    }
                };
                free += size + overhead;
                if !is_free || free > sums.total {
                    return None;
                }
                at = next;
            }
        }
        Some(Sums { free: Some(free), ..sums })
    }

    fn slab_by_free(&mut self, context: u64, allocated: u64) -> Option<Sums> {
        let [_, chunk, bytes, header, counts, blocks] = self.pages.words(context + COMMON)?;
        let (chunks, lists) = (counts & 0xffff_ffff, (counts & 0xffff_ffff) + 1);
        let is_sane = chunk > 0
            && lists <= MAX_SLAB_LISTS
            && header == COMMON + 48 + lists * 16
            && chunks.checked_mul(chunk)? <= bytes;
        if !is_sane {
            return None;
        }
        let mut sums = Sums { total: header, blocks: 0, free: Some(0) };
        for free in 0..lists {
            self.list(context + COMMON + 48 + free * 16, |reader, node| {
                let own = reader.word(node, 16)? & 0xffff_ffff;
                reader.block(node, node, node.checked_add(bytes)?, 0)?;
                (own == free).then_some(())?;
                sums.add(bytes, own * chunk)
            })?;
        }
        let is_whole = sums.blocks == blocks & 0xffff_ffff && sums.total - header == allocated;
        is_whole.then_some(sums)
    }

    fn slab_in_three(&mut self, context: u64, is_wide: bool, allocated: u64) -> Option<Sums> {
        let low = |word: u64| word & 0xffff_ffff;
        let [first, second, third, fourth] = self.pages.words(context + COMMON)?;
        let (chunk, bytes, chunks, empty) = if is_wide {
            (second, third, low(fourth), COMMON + 40)
        } else {
            (first >> 32, low(second), second >> 32, COMMON + 24)
        };
        if chunk == 0 || chunks == 0 || chunks.checked_mul(chunk)? > bytes {
            return None;
        }
        let header = empty + 72;
        let mut sums = Sums { total: header, blocks: 0, free: Some(0) };
        // The empty ones come first: a list with a count.
        let lists = [0, 24, 40, 56].map(|offset| context + empty + offset);
        for (index, list) in lists.into_iter().enumerate() {
            let before = sums.blocks;
            self.list(list, |reader, node| {
                let start = node.checked_sub(32)?;
                let [owner, free] = reader.pages.words(start)?;
                let free = low(free);
                reader.block(start, start, start.checked_add(bytes)?, 0)?;
                (owner == context && free <= chunks).then_some(())?;
                sums.add(bytes, free * chunk)
            })?;
            if index == 0 && self.word(list, 16)? & 0xffff_ffff != sums.blocks - before {
                return None;
            }
        }
        (sums.total - header == allocated).then_some(sums)
    }

    /// Visits the nodes of a list that is linked both ways, and ends where it begins.
    fn list(
        &mut self,
        head: u64,
        mut each: impl FnMut(&mut Self, u64) -> Option<()>,
    ) -> Option<()> {
        let [last, mut node] = self.pages.words(head)?;
        let mut before = head;
        while node != head {
            self.step()?;
            let [back, next] = self.pages.words(node)?;
            if back != before {
                return None;
            }
            each(self, node)?;
            (before, node) = (node, next);
        }
        (last == before).then_some(())
    }

    /// A block from `start` to `end` that is used up to `at`: where it makes sense, and lies in memory.
    fn block(&self, start: u64, at: u64, end: u64, header: u64) -> Option<Block> {
        let is_sane = start.is_multiple_of(8)
            && start.checked_add(header).is_some_and(|first| first <= at)
            && at <= end
            && start < end
            && self.is_heap(start)
            && self.is_heap(end - 1);
        is_sane.then(|| Block { start, end, free: end - at })
    }
}

impl Sums {
    fn add(&mut self, bytes: u64, free: u64) -> Option<()> {
        self.total = self.total.checked_add(bytes)?;
        self.blocks += 1;
        self.free = Some(self.free?.checked_add(free)?);
        Some(())
    }
}
