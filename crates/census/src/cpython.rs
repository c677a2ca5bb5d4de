//! The pools of `CPython`'s obmalloc (3.9 to 3.13, without symbols), and the Python types of the objects in them.
//!
//! A pool begins with a header of 48 bytes: blocks in use at 0, the list of free blocks at 8, the arena's number at 32,
//! the size index at 36, the offset of the next block that was never used at 40, the last possible one at 44. Pools have
//! 16 KiB, before 3.10 they have 4 KiB. Source: `Objects/obmalloc.c` and `Include/internal/pycore_obmalloc.h`.

mod types;

use std::collections::BTreeMap;

use self::types::Types;
use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Arena, Granules, Heap},
    space::{Region, Space, word_of},
};

/// Bytes of a pool's header.
const HEADER: u64 = 48;
/// Size classes: 16, 32, … 512 bytes.
const CLASSES: u64 = 32;
/// Bytes of a pool and of an arena: 3.10 and later, 3.9.
const LAYOUTS: [(u64, u64); 2] = [(16 << 10, 1 << 20), (4 << 10, 256 << 10)];
/// Headers that are asked for at once.
const AT_ONCE: usize = 4096;
/// Fewer pools than this may be chance.
const FEWEST: usize = 8;

/// A pool with a header that validates.
struct Pool {
    address: u64,
    arena: u64,
    /// Bytes of a block.
    size: u64,
    /// Blocks in use.
    used: u64,
    /// Blocks that fit.
    blocks: u64,
    free_list: u64,
    /// The offset of the first block that was never used.
    unused: u64,
    /// Resident bytes.
    resident: u64,
}

/// Looks for pools in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let found = LAYOUTS.map(|(pool, arena)| (pools(space, taken, pool), pool, arena));
    let (pools, pool, arena) = found.into_iter().max_by_key(|(pools, ..)| pools.len())?;
    if pools.iter().filter(|one| one.used > 0).count() < FEWEST {
        return None;
    }
    Some(sum(space, &pools, pool, arena))
}

fn pools(space: &Space<'_>, taken: &Taken, bytes: u64) -> Vec<Pool> {
    let (mut pools, mut places) = (Vec::new(), Vec::new());
    let add = |pools: &mut Vec<Pool>, places: &mut Vec<u64>, region: &Region<'_>| {
        let headers = space.read_each::<{ HEADER as usize }>(places);
        pools.extend(places.drain(..).zip(headers).filter_map(|(at, header)| {
            let found = pool(&header?, at, bytes)?;
            Some(Pool { resident: region.present_bytes(at, at + bytes), ..found })
        }));
    };
    for range in space.anonymous() {
        let region = space.region(range.start, range.end);
        let mut at = range.start.next_multiple_of(bytes);
        while at + bytes <= range.end {
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(bytes);
                continue;
            }
            if taken.end_of(at).is_none() {
                places.push(at);
            }
            at += bytes;
            if places.len() >= AT_ONCE {
                add(&mut pools, &mut places, &region);
            }
        }
        add(&mut pools, &mut places, &region);
    }
    pools
}

fn pool(header: &[u8; HEADER as usize], address: u64, bytes: u64) -> Option<Pool> {
    let half =
        |at: usize| Some(u64::from(u32::from_le_bytes(header.get(at..at + 4)?.try_into().ok()?)));
    let (used, arena, index) = (half(0)?, half(32)?, half(36)?);
    let (unused, last) = (half(40)?, half(44)?);
    let size = 16 * (index + 1);
    let blocks = (bytes - HEADER) / size;
    let is_pool = index < CLASSES
        && last == bytes - size
        && used <= blocks
        && unused >= HEADER
        && unused <= bytes
        && (unused - HEADER).is_multiple_of(size)
        && (unused - HEADER) / size >= used;
    let free_list = word_of(header, 8)?;
    let resident = 0;
    is_pool.then_some(Pool { address, arena, size, used, blocks, free_list, unused, resident })
}

fn sum(space: &Space<'_>, pools: &[Pool], pool_bytes: u64, arena_bytes: u64) -> Found {
    let mut heap = Heap { allocator: "cpython".to_owned(), ..Heap::default() };
    let mut classes = BySize::default();
    let mut arenas: BTreeMap<u64, Arena> = BTreeMap::new();
    let mut types = Types::new(space);
    let mut granules = Granules { unit: "pool".to_owned(), ..Granules::default() };
    let mut held_bytes = 0;
    for pool in pools {
        heap.resident_bytes += pool.resident;
        let arena = arenas.entry(pool.arena).or_default();
        arena.live_objects += pool.used;
        arena.live_bytes += pool.used * pool.size;
        heap.live_objects += pool.used;
        heap.live_bytes += pool.used * pool.size;
        let live = (pool.used, pool.used * pool.size);
        space.note_granule(&mut heap.map, pool.address, pool_bytes, live);
        if pool.used == 0 {
            granules.empty += 1;
            continue;
        }
        held_bytes += pool.resident;
        classes.add(pool.size, pool.used, pool_bytes);
        types.count(pool, pool_bytes);
    }
    granules.empty_bytes = granules.empty * pool_bytes;
    let full = pools.iter().filter(|pool| pool.used > 0 && pool.used == pool.blocks);
    granules.full = full.count() as u64;
    granules.full_bytes = granules.full * pool_bytes;
    let partly = pools.iter().filter(|pool| pool.used < pool.blocks);
    granules.held = held(partly.map(|pool| (pool.used, pool_bytes)));
    // An arena goes back as a whole: what is held is all of it.
    heap.mapped_bytes = arenas.len() as u64 * arena_bytes;
    heap.free_bytes = heap.mapped_bytes.saturating_sub(heap.live_bytes);
    heap.granules = granules;
    heap.classes = classes.finish();
    heap.types = types.finish(arena_bytes);
    heap.arenas = arenas
        .into_iter()
        .map(|(number, arena)| Arena { number, mapped_bytes: arena_bytes, ..arena })
        .collect();
    let taken = pools.iter().map(|pool| (pool.address, pool.address + pool_bytes)).collect();
    Found { heap, held_bytes, taken, notes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Pieces, anonymous};

    const BASE: u64 = 0x7f00_0000_0000;
    const POOL: u64 = 16 << 10;
    const POOLS: u64 = 16;
    /// Where types and names are.
    const DATA: u64 = 0x7e00_0000_0000;

    /// Pools of 64-byte blocks, of which each but the first has three in use, and one of the four that it gave out is free.
    fn memory() -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((BASE, vec![0; (POOLS * POOL) as usize]));
        memory.pieces.push((DATA, vec![0; 4096]));
        let (type_type, point, names) = (DATA, DATA + 0x400, DATA + 0x800);
        memory.put(type_type, &[1, type_type, 0, names]);
        memory.put(point, &[1, type_type, 0, names + 8]);
        memory.put(
            names,
            &[u64::from_le_bytes(*b"type\0\0\0\0"), u64::from_le_bytes(*b"Point\0\0\0")],
        );
        for pool in 0..POOLS {
            let at = BASE + pool * POOL;
            let used = if pool == 0 { 0 } else { 3 };
            let free = at + HEADER + 64;
            memory.put(at, &[used, if pool == 0 { 0 } else { free }, 0, 0]);
            let unused = if pool == 0 { HEADER } else { HEADER + 4 * 64 };
            memory.put(at + 32, &[3 << 32, unused | (POOL - 64) << 32]);
            if pool > 0 {
                // An object, a free block, one behind a header of the collector, and one of no type.
                memory.put(at + HEADER, &[1, point]);
                memory.put(free, &[0]);
                memory.put(at + HEADER + 128, &[at, at, 7, point]);
                memory.put(at + HEADER + 192, &[42, 43]);
            }
        }
        memory
    }

    fn ranges() -> Vec<crate::space::Range> {
        vec![anonymous(BASE, POOLS * POOL), anonymous(DATA, 4096)]
    }

    /// Blocks in use by class, pools by blocks, and types of what is live.
    #[test]
    fn pools_and_types() {
        let memory = memory();
        let found =
            find(&Space::new(ranges(), &memory), &Taken::default()).expect("there are pools");
        let heap = found.heap;
        assert_eq!((heap.live_objects, heap.live_bytes), (45, 45 * 64));
        assert_eq!((heap.granules.empty, heap.granules.held[0].granules), (1, 15));
        assert_eq!((heap.classes[0].size, heap.classes[0].granules), (64, Some(15)));
        let point = heap.types.iter().find(|one| one.name == "Point").expect("the type is found");
        assert_eq!((point.objects, point.bytes, point.arenas), (30, 30 * 64, 1));
        assert_eq!(heap.types.iter().map(|one| one.objects).sum::<u64>(), 45);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever stands in pools and types, the census ends and counts no more than there is room for.
        #[test]
        fn hostile(words in prop::collection::vec((any::<bool>(), 0..POOLS * POOL / 8, any::<u64>(), 0..3u8), 0..100)) {
            let mut memory = memory();
            for (in_data, at, word, kind) in words {
                let word = match kind { 0 => word, 1 => BASE + word % (POOLS * POOL), _ => DATA + word % 4096 };
                memory.put(if in_data { DATA + at % 512 * 8 } else { BASE + at * 8 }, &[word]);
            }
            if let Some(found) = find(&Space::new(ranges(), &memory), &Taken::default()) {
                prop_assert!(found.heap.live_bytes <= POOLS * POOL);
            }
        }
    }
}
