//! Synthetic heaps, built from the layouts of the sources: one for each design that glibc has had.

use super::super::{
    chunks::OF_THREAD,
    layout::{CACHES, CacheLayout, LAYOUTS, Layout, PARAMS, ParamsLayout},
};
use crate::{
    space::{PAGE, Range, RangeKind},
    testing::{Pieces, anonymous},
};

pub(super) const HEAP: u64 = 0x5555_0000_0000;
pub(super) const DATA: u64 = 0x7f00_0000_0000;
pub(super) const PAGES: u64 = 64;
/// Where the main arena's structure is, and `sbrk_base`.
pub(super) const STATE: u64 = DATA + 256;
pub(super) const BASE: u64 = DATA + 3072;
/// A thread's arena, its second heap, and two chunks with mappings of their own.
pub(super) const FIRST: u64 = 0x7e00_0000_0000;
pub(super) const SECOND: u64 = FIRST + (64 << 20);
const THREADS_END: u64 = SECOND + (64 << 20);
pub(super) const HEAP_BYTES: u64 = 4 * PAGE;
pub(super) const MAPPED: u64 = 0x7d00_0000_0000;
pub(super) const MAPPED_BYTES: u64 = 6 * PAGE;

/// What a version of glibc looks like.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) name: &'static str,
    pub(super) layout: &'static Layout,
    pub(super) cache: &'static CacheLayout,
    pub(super) params: &'static ParamsLayout,
    pub(super) heap_info: u64,
    /// Whether pointers in lists are masked.
    pub(super) masks: bool,
}

/// A version of each combination that there was.
pub(super) fn versions() -> [Version; 6] {
    let of = |name, layout: usize, cache: usize, params: usize, heap_info, masks| Version {
        name,
        layout: &LAYOUTS[layout],
        cache: &CACHES[cache],
        params: &PARAMS[params],
        heap_info,
        masks,
    };
    [
        of("2.27", 0, 0, 0, 32, false),
        of("2.30", 0, 1, 0, 32, false),
        of("2.32", 0, 1, 0, 32, true),
        of("2.35", 0, 1, 1, 48, true),
        of("2.42", 0, 2, 1, 48, true),
        of("2.43", 1, 2, 1, 48, true),
    ]
}

pub(super) struct World {
    pub(super) memory: Pieces,
    pub(super) ranges: Vec<Range>,
    pub(super) version: Version,
    /// Bytes that each list entry's second word has.
    key: u64,
}

impl World {
    /// A heap of some pages whose main arena has these chunks: their sizes, and whether each is in use. `top` follows.
    pub(super) fn new(version: Version, chunks: &[(u64, bool)]) -> Self {
        Self::large(version, PAGES * PAGE, chunks)
    }

    /// As [`World::new`], with so many bytes.
    pub(super) fn large(version: Version, bytes: u64, chunks: &[(u64, bool)]) -> Self {
        let mut memory = Pieces::default();
        memory.pieces.push((HEAP, vec![0; bytes as usize]));
        memory.pieces.push((DATA, vec![0; PAGE as usize]));
        let main = Range { kind: RangeKind::Heap, ..anonymous(HEAP, bytes) };
        let data = Range { kind: RangeKind::File, ..anonymous(DATA, PAGE) };
        let mut world = Self { memory, ranges: vec![main, data], version, key: 0x5eed_0000_5eed };
        let top = world.chunks(HEAP, HEAP + bytes, chunks);
        world.state(STATE, top, STATE, bytes);
        world.params((0, 0));
        world
    }

    /// Chunks from `at` to `end`; where the last of them, which is free, begins.
    pub(super) fn chunks(&mut self, mut at: u64, end: u64, chunks: &[(u64, bool)]) -> u64 {
        let mut before = (0, true);
        let rest = chunks.iter().map(|(size, _)| size).sum::<u64>();
        for (size, in_use) in chunks.iter().chain([&(end - at - rest, false)]) {
            let foot = if before.1 { 0 } else { before.0 };
            let of_thread =
                if *in_use && (FIRST..THREADS_END).contains(&at) { OF_THREAD } else { 0 };
            self.memory.put(at, &[foot, size | u64::from(before.1) | of_thread]);
            (at, before) = (at + size, (*size, *in_use));
        }
        at - before.0
    }

    /// An arena's structure without free chunks in its bins.
    pub(super) fn state(&mut self, at: u64, top: u64, next: u64, bytes: u64) {
        let layout = self.version.layout;
        self.memory.put(at + layout.top, &[top, 0]);
        for bin in 0..127 {
            let bin = at + layout.bins + bin * 16;
            self.memory.put(bin, &[bin - 16, bin - 16]);
        }
        self.memory.put(at + layout.next, &[next, 0, 1, bytes, bytes + 4 * PAGE]);
    }

    /// `mp_`, with what it counts: objects with mappings of their own, and their bytes.
    pub(super) fn params(&mut self, (count, bytes): (u64, u64)) {
        let new = self.version.params.huge_pages.is_some();
        let numbers: [u64; 4] = [count, 65_536, count + 1, 0];
        let packed = if new {
            // Behind the flags of huge pages; the last one is in front of a gap.
            [numbers[0] << 32, numbers[1] | numbers[2] << 32, numbers[3]]
        } else {
            [1 << 20, numbers[0] | numbers[1] << 32, numbers[2] | numbers[3] << 32]
        };
        self.memory.put(BASE - 72, &[8, 0, 0, 0]);
        self.memory.put(BASE - 40, &packed);
        self.memory.put(BASE - 16, &[bytes, bytes + PAGE, HEAP, 64, 1032, 7, 0]);
    }

    /// A thread's arena of two heaps: in the first a chunk of 64 bytes and a page that is free, in the second two chunks of
    /// 64 bytes and `top`.
    pub(super) fn thread_arena(&mut self) {
        let (info, layout) = (self.version.heap_info, self.version.layout);
        for at in [FIRST, SECOND] {
            self.memory.pieces.push((at, vec![0; HEAP_BYTES as usize]));
            self.ranges.push(anonymous(at, HEAP_BYTES));
        }
        let state = FIRST + info;
        let start = (state + layout.bytes).next_multiple_of(16);
        let used = FIRST + HEAP_BYTES - 32 - start - PAGE - 64;
        let end = self.chunks(start, FIRST + HEAP_BYTES - 32, &[(64, true), (used, true)]);
        self.memory.put(end + PAGE, &[PAGE, 16, 16, 1]);
        let top = self.chunks(SECOND + info, SECOND + HEAP_BYTES, &[(64, true), (64, true)]);
        self.state(state, top, STATE, 2 * HEAP_BYTES);
        self.memory.put(STATE + layout.next, &[state]);
        self.memory.put(FIRST, &[state, 0, HEAP_BYTES, HEAP_BYTES]);
        self.memory.put(SECOND, &[state, FIRST, HEAP_BYTES, HEAP_BYTES]);
    }

    /// Two chunks with mappings of their own, side by side, and what `mp_` counts of them.
    pub(super) fn mapped(&mut self) {
        self.memory.pieces.push((MAPPED, vec![0; (MAPPED_BYTES + PAGE) as usize]));
        self.ranges.push(anonymous(MAPPED, MAPPED_BYTES + PAGE));
        let less = self.version.layout.mapped_less;
        self.memory.put(MAPPED, &[0, (4 * PAGE - less) | 2]);
        self.memory.put(MAPPED + 4 * PAGE, &[0, (2 * PAGE - less) | 2]);
        self.params((2, MAPPED_BYTES));
    }

    /// The thread's cache in the chunk at `cache`, with these chunks in one list.
    pub(super) fn cache(&mut self, cache: u64, list: u64, chunks: &[u64]) {
        let layout = self.version.cache;
        let counter = |list: u64| cache + 16 + list * layout.width;
        let most = if layout.counts_left { 7 } else { 0 };
        let mut bytes = vec![0; (layout.lists * layout.width) as usize];
        for one in 0..layout.lists {
            let count = if one == list { chunks.len() as u64 } else { 0 };
            let value = if layout.counts_left { most - count } else { count };
            bytes[(counter(one) - cache - 16) as usize] = value as u8;
        }
        self.memory.write(cache + 16, &bytes);
        let entry = cache + 16 + layout.lists * layout.width + list * 8;
        self.memory.put(entry, &[chunks.first().map_or(0, |chunk| chunk + 16)]);
        self.list(chunks, 16);
    }

    /// Chunks that lead to each other; pointers lead `offset` bytes into them.
    pub(super) fn list(&mut self, chunks: &[u64], offset: u64) {
        for (index, chunk) in chunks.iter().enumerate() {
            let (at, next) = (chunk + 16, chunks.get(index + 1).map_or(0, |next| next + offset));
            let next = if self.version.masks { next ^ (at >> 12) } else { next };
            self.memory.put(at, &[next]);
            if offset > 0 {
                self.memory.put(at + 8, &[self.key]);
            }
        }
    }
}
