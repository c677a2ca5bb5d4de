//! The pages that the map lists.

use super::{
    super::area::{Blocks, FEWEST_KEYS, Page, Place, SLICE, is_list},
    arena,
};
use crate::space::{PAGE, Space, word_of};

/// Slices of one block.
const MAX_SLICES: u64 = 1 << 24;
/// Slices of a page that the map lists, at most.
const MAX_RUN: u64 = 63;
/// Flags of a page's thread, and what the list of freed blocks says where a thread owns the page.
const THREAD_FLAGS: u64 = 7;
const OWNED: u64 = 1;
/// Bytes of a page's description that are read.
pub(super) const BYTES: usize = 136;

/// A page as the map lists it: its description, its first slice, and how many follow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Listed {
    pub(super) description: u64,
    pub(super) first: u64,
    pub(super) count: u64,
}

impl Listed {
    pub(super) fn start(&self) -> u64 {
        self.first * SLICE
    }

    pub(super) fn end(&self) -> u64 {
        (self.first + self.count) * SLICE
    }
}

/// How a page says where its blocks begin.
#[derive(Clone, Copy)]
pub(in crate::mimalloc) enum Start {
    Address,
    /// Words of 8 bytes from the description on, 32 bits.
    Words,
    /// Bytes from the description on.
    Bytes,
}

/// Where a page has what.
#[derive(Clone, Copy)]
pub(in crate::mimalloc) struct Layout {
    /// 16 bits each.
    pub(in crate::mimalloc) used: usize,
    pub(in crate::mimalloc) capacity: usize,
    pub(in crate::mimalloc) reserved: usize,
    pub(in crate::mimalloc) size: usize,
    /// Lists of free blocks, and of those that other threads have freed.
    pub(in crate::mimalloc) free: usize,
    pub(in crate::mimalloc) local: usize,
    pub(in crate::mimalloc) freed: usize,
    /// Where it says where its blocks begin, and how.
    pub(in crate::mimalloc) begin: usize,
    pub(in crate::mimalloc) start: Start,
    /// The thread that it belongs to, and flags.
    pub(in crate::mimalloc) thread: usize,
    /// Where its memory is from: arena and slice, or address and bytes; behind them the kind.
    pub(in crate::mimalloc) memory: usize,
    /// Kinds of memory: the system's first one, of three, and an arena's.
    pub(in crate::mimalloc) system: u64,
    pub(in crate::mimalloc) arena: u64,
    pub(in crate::mimalloc) keys: Option<usize>,
}

const OLD: Layout = Layout {
    used: 16,
    capacity: 18,
    reserved: 20,
    size: 40,
    free: 8,
    local: 24,
    freed: 32,
    begin: 48,
    start: Start::Address,
    thread: 0,
    memory: 96,
    system: 4,
    arena: 7,
    keys: None,
};
/// 3.0 to 3.3, 3.4, 3.6, then with encoded links: 3.2 and 3.3, 3.4.
pub(in crate::mimalloc) const LAYOUTS: [Layout; 5] = [
    OLD,
    Layout { start: Start::Words, memory: 88, ..OLD },
    Layout {
        used: 40,
        capacity: 56,
        reserved: 58,
        size: 32,
        free: 16,
        local: 24,
        freed: 64,
        begin: 48,
        start: Start::Bytes,
        thread: 8,
        memory: 104,
        system: 3,
        arena: 6,
        keys: None,
    },
    Layout { memory: 112, keys: Some(56), ..OLD },
    Layout { start: Start::Words, memory: 104, keys: Some(56), ..OLD },
];

/// Memory of a page: where its arena is and its slice there, if it is from one.
pub(super) struct Origin {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) arena: Option<(u64, u64)>,
}

/// The page that is listed, by the bytes of its description, and its memory; `None` where it makes no sense.
pub(super) fn page(
    space: &Space<'_>,
    layout: &Layout,
    listed: &Listed,
    bytes: &[u8],
) -> Option<(Page, Origin)> {
    let word = |at| word_of(bytes, at);
    let half = |at: usize| word(at / 8 * 8).map(|word| word >> (at % 8 * 8) & 0xffff);
    let [used, capacity, reserved] =
        [half(layout.used)?, half(layout.capacity)?, half(layout.reserved)?];
    let (size, freed, start) = (word(layout.size)?, word(layout.freed)?, word(layout.begin)?);
    let start = match layout.start {
        Start::Address => start,
        Start::Words => listed.description.checked_add((start & 0xffff_ffff) * 8)?,
        Start::Bytes => listed.description.checked_add(start)?,
    };
    let all = reserved.checked_mul(size)?;
    let end = start.checked_add(all)?;
    let origin = origin(layout, listed, [word(layout.memory)?, word(layout.memory + 8)?], {
        word(layout.memory + 16)? & 0xffff_ffff
    })?;
    let keys = match layout.keys.map(|at| Some([word(at)?, word(at + 8)?])) {
        Some(keys) => {
            let [first, second] = keys?;
            (first > FEWEST_KEYS && second > FEWEST_KEYS).then_some(())?;
            Some([first, second, listed.description])
        }
        None => None,
    };
    // The blocks begin in the first slice, or behind what aligns them.
    let slices = (start % SLICE + all).div_ceil(SLICE);
    let is_page = size > 0
        && size.is_multiple_of(8)
        && used <= capacity
        && capacity <= reserved
        && reserved > 0
        && origin.start <= start
        && end <= origin.end
        && (listed.count >= slices || listed.count >= MAX_RUN || listed.count + 1 == slices)
        && is_list(freed, start, end)
        && (word(layout.thread)? <= THREAD_FLAGS || freed & OWNED != 0)
        && space.is_anonymous(origin.start, origin.end);
    let (address, bytes) = (origin.start, origin.end - origin.start);
    let place = |at: usize, bits| Place::new(listed.description.saturating_add(at as u64), bits);
    let places = [
        place(layout.used, 16),
        place(layout.capacity, 16),
        place(layout.free, 64),
        place(layout.local, 64),
    ];
    let blocks = Blocks { capacity, heads: [word(layout.free)?, word(layout.local)?], places };
    let page = Page { address, bytes, size, reserved, used, freed, waiting: 0, keys, blocks };
    is_page.then_some((page, origin))
}

/// Where a page's memory is from, if that holds what is listed.
fn origin(layout: &Layout, listed: &Listed, [memory, size]: [u64; 2], kind: u64) -> Option<Origin> {
    let origin = if kind == layout.arena {
        let (slice, count) = (size & 0xffff_ffff, size >> 32);
        (slice < arena::MAX_SLICES && count < MAX_SLICES && memory.is_multiple_of(SLICE))
            .then_some(())?;
        // The description of an arena lies in its first slices.
        let begin = |offset: u64| memory.checked_sub(offset)?.checked_add(slice * SLICE);
        let start = arena::LAYOUTS.iter().find_map(|arena| {
            let start = begin(arena.offset)?;
            (start..start.saturating_add(count * SLICE)).contains(&listed.start()).then_some(start)
        })?;
        let end = start.checked_add(count * SLICE)?;
        Origin { start, end, arena: Some((memory, slice)) }
    } else if (layout.system..layout.system + 3).contains(&kind) {
        (memory.is_multiple_of(PAGE) && size.div_ceil(SLICE) <= MAX_SLICES).then_some(())?;
        Origin { start: memory, end: memory.checked_add(size)?, arena: None }
    } else {
        return None;
    };
    let holds =
        origin.start <= listed.start() && listed.end() <= origin.end.next_multiple_of(SLICE);
    holds.then_some(origin)
}
