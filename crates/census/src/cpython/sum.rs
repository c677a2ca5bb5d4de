//! Adds up what pools and arenas hold, and what of them is unknown.

use std::collections::BTreeMap;

use super::{
    arenas::{Arena, Entry, List},
    pools::{Content, HEADER, Pool, content, resident},
    runtime::Layout,
    types::Types,
};
use crate::{
    found::Found,
    granules::{BySize, HeldBySum},
    model::{self, Granules, Heap},
    region::Region,
    space::{Space, half_of},
};

/// How often an arena is read whose pools do not add up: the process runs.
const ARENA_ATTEMPTS: u32 = 3;
/// Pools of an arena whose list was not found.
const POOLS: u64 = 64;

/// The pools of an arena, by what their headers say.
#[derive(Default)]
struct Pools {
    used: Vec<Pool>,
    free: Vec<u64>,
    /// Not in memory.
    absent: u64,
    nonsense: u64,
}

impl Pools {
    /// Pools that are neither in use nor free, and by how many the arena has more or fewer free ones than were found.
    fn unknown(&self, arena: &Arena, pool_bytes: u64) -> u64 {
        let listed = arena.free.saturating_sub(arena.untouched(pool_bytes));
        let found = self.free.len() as u64;
        let unread = self.absent + self.nonsense;
        // Those that could not be read may be free.
        let wrong = found.saturating_sub(listed).max(listed.saturating_sub(found + unread));
        unread + wrong
    }
}

/// The heap so far.
pub(super) struct Sum<'a> {
    space: &'a Space<'a>,
    pool_bytes: u64,
    heap: Heap,
    classes: BySize,
    types: Option<Types<'a>>,
    granules: Granules,
    /// Pools that are not full, by live objects.
    partly: HeldBySum,
    held_bytes: u64,
    arena_bytes: u64,
    /// The number of the next list's first arena.
    base: u64,
    taken: Vec<(u64, u64)>,
    unknown_pools: u64,
    /// What pools are read into.
    buffer: Vec<u8>,
    notes: Vec<String>,
}

impl<'a> Sum<'a> {
    /// Without a layout no types are read.
    pub(super) fn new(space: &'a Space<'a>, pool_bytes: u64, layout: Option<Layout>) -> Self {
        Self {
            space,
            pool_bytes,
            heap: Heap { allocator: "cpython".to_owned(), ..Heap::default() },
            classes: BySize::default(),
            types: layout.map(|layout| Types::new(space, layout)),
            granules: Granules { unit: "pool".to_owned(), ..Granules::default() },
            partly: HeldBySum::default(),
            held_bytes: 0,
            arena_bytes: pool_bytes * POOLS,
            base: 0,
            taken: Vec::new(),
            unknown_pools: 0,
            buffer: Vec::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Adds the arenas that an interpreter lists.
    pub(super) fn list(&mut self, list: &List) {
        for arena in &list.arenas {
            self.arena(list, arena);
        }
        let numbers = list.arenas.iter().map(|arena| arena.index + 1);
        self.base += numbers.max().unwrap_or_default();
    }

    fn arena(&mut self, list: &List, arena: &Arena) {
        let mut arena = *arena;
        let mut pools = self.headers(&arena);
        for _ in 1..ARENA_ATTEMPTS {
            if pools.unknown(&arena, self.pool_bytes) == 0 {
                break;
            }
            match list.again(self.space, &arena, self.pool_bytes) {
                Entry::Arena(now) if now.address == arena.address => arena = now,
                Entry::Nonsense => break,
                // It was given back meanwhile.
                Entry::Arena(_) | Entry::Unused => return,
            }
            pools = self.headers(&arena);
        }
        let region = Region::new(self.space, arena.address, arena.address + arena.bytes);
        self.arena_bytes = arena.bytes;
        self.heap.mapped_bytes += arena.bytes;
        self.heap.resident_bytes += resident(&region, arena.address, arena.address + arena.bytes);
        self.taken.push((arena.address, arena.address + arena.bytes));
        self.unknown_pools += pools.unknown(&arena, self.pool_bytes);
        let mut one = model::Arena {
            number: self.base + arena.index,
            mapped_bytes: arena.bytes,
            ..model::Arena::default()
        };
        for pool in &pools.used {
            self.pool(pool, &region, &mut one);
        }
        for address in &pools.free {
            self.empty(*address, &region);
        }
        self.heap.arenas.push(one);
    }

    /// The pools of an arena that were ever used.
    fn headers(&self, arena: &Arena) -> Pools {
        let places: Vec<u64> =
            (arena.first..arena.carved).step_by(self.pool_bytes as usize).collect();
        let headers = self.space.read_each::<{ HEADER as usize }>(&places);
        let mut pools = Pools::default();
        for (at, header) in places.into_iter().zip(headers) {
            let Some(header) = header else {
                pools.absent += 1;
                continue;
            };
            match Pool::of(&header, at, self.pool_bytes) {
                _ if half_of(&header, 32) != Some(arena.index) => pools.nonsense += 1,
                _ if header[..4] == [0; 4] => pools.free.push(at),
                Some(pool) => pools.used.push(pool),
                None => pools.nonsense += 1,
            }
        }
        pools
    }

    /// Adds a pool that is in use.
    fn pool(&mut self, pool: &Pool, region: &Region<'_>, arena: &mut model::Arena) {
        let content = content(self.space, pool, self.pool_bytes, &mut self.buffer);
        let now = match &content {
            Content::Blocks(blocks) => blocks.pool,
            Content::Partly => *pool,
            Content::Broken => {
                self.unknown_pools += 1;
                return;
            }
        };
        if now.used() == 0 {
            self.empty(now.address, region);
            return;
        }
        let live = (now.used(), now.used() * now.size());
        self.space.note_granule(&mut self.heap.map, now.address, self.pool_bytes, live);
        self.held_bytes += resident(region, now.address, now.address + self.pool_bytes);
        self.heap.live_objects += live.0;
        self.heap.live_bytes += live.1;
        arena.live_objects += live.0;
        arena.live_bytes += live.1;
        self.classes.add(now.size(), now.used(), self.pool_bytes);
        if now.used() == now.blocks() {
            self.granules.full += 1;
        } else {
            self.partly.add(now.used(), self.pool_bytes);
        }
        if let Some(types) = &mut self.types {
            match &content {
                Content::Blocks(blocks) => {
                    for block in blocks.live() {
                        match block {
                            // The last block of a pool may end in a page that was never touched.
                            Some(block) => types.count(block, now.size(), arena.number),
                            None => types.count_unread(1, now.size(), arena.number),
                        }
                    }
                }
                _ => types.count_unread(now.used(), now.size(), arena.number),
            }
        }
        if let Content::Blocks(blocks) = content {
            self.buffer = blocks.bytes;
        }
    }

    fn empty(&mut self, address: u64, region: &Region<'_>) {
        self.space.note_granule(&mut self.heap.map, address, self.pool_bytes, (0, 0));
        if resident(region, address, address + self.pool_bytes) > 0 {
            self.granules.empty += 1;
        }
    }

    /// Adds pools of arenas whose list was not found: what else these arenas have is unknown.
    pub(super) fn unlisted(&mut self, pools: &[Pool]) {
        // Interpreters number their arenas alike.
        let mut arenas: BTreeMap<(u64, u64), model::Arena> = BTreeMap::new();
        let mut first = (0, 0);
        for pool in pools {
            let end = pool.address + self.pool_bytes;
            let region = Region::new(self.space, pool.address, end);
            self.heap.resident_bytes += resident(&region, pool.address, end);
            self.taken.push((pool.address, end));
            if pool.arena() != first.0 || pool.address.abs_diff(first.1) >= self.arena_bytes {
                first = (pool.arena(), pool.address);
            }
            let arena = arenas.entry(first).or_insert_with(|| model::Arena {
                number: pool.arena(),
                mapped_bytes: self.arena_bytes,
                ..model::Arena::default()
            });
            if pool.used() == 0 {
                self.empty(pool.address, &region);
            } else {
                self.pool(pool, &region, arena);
            }
        }
        let pools = pools.len() as u64;
        let listed = (arenas.len() as u64 * POOLS).max(pools);
        self.heap.mapped_bytes += listed * self.pool_bytes;
        self.heap.arenas.extend(arenas.into_values());
        self.heap.unknown_bytes += (listed - pools) * self.pool_bytes;
        self.notes.push(
            "cpython: the interpreter's list of arenas was not found: there may be more pools than these"
                .to_owned(),
        );
    }

    /// Adds pools that are not read.
    pub(super) fn unknown(&mut self, pools: &[Pool], pool_bytes: u64, why: &str) {
        for pool in pools {
            let end = pool.address + pool_bytes;
            let region = Region::new(self.space, pool.address, end);
            self.heap.resident_bytes += resident(&region, pool.address, end);
            self.taken.push((pool.address, end));
        }
        let bytes = pools.len() as u64 * pool_bytes;
        self.heap.mapped_bytes += bytes;
        self.heap.unknown_bytes += bytes;
        self.notes.push(format!("cpython: {} pools were not read: {why}", pools.len()));
    }

    pub(super) fn finish(mut self) -> Found {
        if self.unknown_pools > 0 {
            self.heap.unknown_bytes += self.unknown_pools * self.pool_bytes;
            self.notes.push(format!(
                "cpython: {} pools ({} KiB) are listed, and are swapped out or make no sense",
                self.unknown_pools,
                (self.unknown_pools * self.pool_bytes) >> 10
            ));
        }
        let mut heap = self.heap;
        let used = heap.live_bytes + heap.unknown_bytes;
        heap.free_bytes = heap.mapped_bytes.saturating_sub(used);
        self.granules.empty_bytes = self.granules.empty * self.pool_bytes;
        self.granules.full_bytes = self.granules.full * self.pool_bytes;
        self.granules.held = self.partly.finish();
        heap.granules = self.granules;
        heap.classes = self.classes.finish();
        heap.types = self.types.map_or_else(Vec::new, |types| types.finish(self.arena_bytes));
        heap.arenas.sort_by_key(|arena| arena.number);
        Found { heap, held_bytes: self.held_bytes, taken: self.taken, notes: self.notes }
    }
}
