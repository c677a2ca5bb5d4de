use proptest::prelude::*;

use super::{
    layout::{HEAP_ALIGN, PROOF, SMALLEST},
    *,
};
use crate::{
    space::{Range, RangeKind},
    testing::anonymous,
};

mod moves;
mod seeds;
mod shifts;
mod world;

use world::{
    BASE, DATA, FIRST, HEAP, HEAP_BYTES, MAPPED, MAPPED_BYTES, PAGES, SECOND, STATE, Version,
    World, versions,
};

fn found(world: &World) -> Option<Found> {
    find(&Space::new(world.ranges.clone(), &world.memory), &Taken::default())
}

fn census(world: &World) -> Heap {
    found(world).expect("there is a heap").heap
}

fn new() -> Version {
    versions()[3]
}

/// Chunks in use are live, the others and `top` are free; pages count the objects that touch them.
#[test]
fn chunks_and_pages() {
    // A page's worth of free chunks between two live ones, then `top`.
    let world = World::new(new(), &[(64, true), (3 * PAGE, false), (64, true), (0x60, true)]);
    let heap = census(&world);
    assert_eq!((heap.live_objects, heap.live_bytes), (3, 64 + 64 + 0x60));
    assert_eq!(heap.free_bytes + heap.live_bytes, PAGES * PAGE);
    assert_eq!((heap.unknown_bytes, heap.cached_bytes), (0, 0));
    let held: u64 = heap.granules.held.iter().map(|held| held.granules).sum();
    assert_eq!((held, heap.granules.empty), (2, PAGES - 2));
    // Two whole pages between them, and all pages of `top` but the first.
    assert_eq!(heap.trimmable_bytes, Some((2 + PAGES - 4) * PAGE));
    let class = |size| heap.classes.iter().find(|class| class.size == size).unwrap();
    assert_eq!((class(56).objects, class(56).alone, class(0x58).alone), (2, 1, 0));
}

/// All of a version: a cache, a fastbin, a thread's arena of two heaps, and chunks with mappings of their own.
fn whole(version: Version) -> World {
    let cache = version.cache.chunk;
    let large = if version.cache.counts_left { 1088 } else { 64 };
    let chunks =
        [(cache, true), (32, true), (32, true), (48, true), (64, true), (large, true), (80, true)];
    let mut world = World::new(version, &chunks);
    let at = |offset: u64| HEAP + cache + offset;
    world.thread_arena();
    world.mapped();
    let list = if version.cache.counts_left { 64 } else { 2 };
    world.cache(HEAP, list, &[at(176)]);
    if let Some((_, fastbins)) = version.layout.fastbins {
        world.list(&[at(112)], 0);
        world.memory.put(STATE + fastbins + 16, &[at(112)]);
    }
    world
}

/// Each version is read rightly: what lives, what is free, what caches keep, and what would be given back.
#[test]
fn all_versions() {
    for version in versions() {
        let world = whole(version);
        let Found { heap, notes, .. } = found(&world).expect(version.name);
        let name = version.name;
        assert_eq!((heap.unknown_bytes, notes), (0, Vec::new()), "{name}");
        let large = if version.cache.counts_left { 1088 } else { 64 };
        let fast = if version.layout.fastbins.is_some() { 0 } else { 64 };
        assert_eq!((heap.cached_bytes, heap.mapped_alone_bytes), (large, MAPPED_BYTES), "{name}");
        let of_main = version.cache.chunk + 32 + 32 + 48 + 80 + fast;
        assert_eq!(heap.arenas[0].live_bytes, of_main, "{name}");
        assert_eq!(heap.arenas[0].mapped_bytes, PAGES * PAGE, "{name}");
        let begin = version.heap_info + version.layout.bytes.next_multiple_of(16);
        let of_thread = HEAP_BYTES - 32 - begin - PAGE + 128;
        assert_eq!(heap.arenas[1].live_bytes, of_thread, "{name}");
        assert_eq!(heap.arenas[1].mapped_bytes, 2 * HEAP_BYTES, "{name}");
        assert_eq!(heap.arenas.len(), 2, "{name}");
        assert_eq!(heap.trimmable_bytes, Some((PAGES - 1) * PAGE), "{name}");
    }
}

/// What is in a fastbin is free, what is in a thread's cache is cached; both look in use. Pointers are masked.
#[test]
fn caches() {
    let cache = 0x290;
    let chunks = [(cache, true), (32, true), (32, true), (48, true), (64, true)];
    let mut world = World::new(new(), &chunks);
    let at = |offset: u64| HEAP + cache + offset;
    // Two chunks of 32 bytes in the first list, one of 64 in a fastbin.
    world.cache(HEAP, 0, &[at(0), at(32)]);
    world.list(&[at(112)], 0);
    world.memory.put(STATE + 16 + 16, &[at(112)]);
    let heap = census(&world);
    assert_eq!((heap.live_objects, heap.live_bytes), (2, cache + 48));
    assert_eq!(heap.cached_bytes, 64);
    assert_eq!(heap.free_bytes + heap.live_bytes + heap.cached_bytes, PAGES * PAGE);
    // The second one leads nowhere: what the cache counts beyond it is unknown.
    world.memory.put(HEAP + 16, &[3]);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert_eq!((heap.cached_bytes, heap.unknown_bytes, notes.len()), (64, 32, 2), "{notes:?}");
    // Without a cache at all, that is said.
    world.memory.put(HEAP + 16, &[0x1234_5678]);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert_eq!((heap.cached_bytes, notes.len()), (0, 1), "{notes:?}");
}

/// A chain that breaks is found again behind the break; what lies between is unknown, and so is what is swapped out.
#[test]
fn breaks() {
    let chunks: Vec<(u64, bool)> = (0..1001).map(|index| (64, index % 2 == 0)).collect();
    let mut world = World::new(new(), &chunks);
    world.memory.put(HEAP + 64 * 100 + 8, &[7]);
    let heap = census(&world);
    assert!((64..=1024).contains(&heap.unknown_bytes), "{}", heap.unknown_bytes);
    assert!(heap.live_objects >= 490, "{}", heap.live_objects);
    world.memory.absent.push(HEAP + 5 * PAGE);
    let heap = census(&world);
    assert!((PAGE..=PAGE + 2048).contains(&heap.unknown_bytes), "{}", heap.unknown_bytes);
    let sum = heap.live_bytes + heap.free_bytes + heap.unknown_bytes;
    assert_eq!(sum, PAGES * PAGE, "every byte is one of these");
}

/// A heap whose last chunk is swapped out, or all of it, is still glibc's, and unknown.
#[test]
fn swapped() {
    for version in versions() {
        let mut world = whole(version);
        // `top` begins in the first page, and ends the heap.
        world.memory.absent.push(HEAP);
        let heap = census(&world);
        assert!((PAGE..=PAGES * PAGE).contains(&heap.unknown_bytes), "{}", heap.unknown_bytes);
        world.memory.absent.extend((1..PAGES).map(|page| HEAP + page * PAGE));
        let heap = census(&world);
        assert_eq!((heap.arenas[0].live_bytes, heap.trimmable_bytes), (0, None));
        assert!(heap.unknown_bytes >= PAGES * PAGE, "{}", heap.unknown_bytes);
    }
}

/// Chunks with mappings of their own are held against what glibc counts of them: what is too much or missing is unknown.
#[test]
fn mapped_chunks() {
    for version in [versions()[4], versions()[5]] {
        let mut world = World::new(version, &[(64, true)]);
        world.mapped();
        let heap = census(&world);
        assert_eq!((heap.live_objects, heap.mapped_alone_bytes), (3, MAPPED_BYTES));
        assert_eq!((heap.granules.full, heap.unknown_bytes), (6, 0));
        world.params((1, 4 * PAGE));
        let Found { heap, notes, .. } = found(&world).unwrap();
        assert_eq!((heap.mapped_alone_bytes, heap.unknown_bytes), (4 * PAGE, 2 * PAGE));
        assert!(notes.iter().any(|note| note.contains("mappings of their own")), "{notes:?}");
        world.params((3, MAPPED_BYTES + 9 * PAGE));
        let heap = census(&world);
        assert_eq!((heap.mapped_alone_bytes, heap.unknown_bytes), (MAPPED_BYTES, 9 * PAGE));
        // Huge pages are said in the first word, from 2.43 on.
        world.params((2, MAPPED_BYTES));
        world.memory.put(MAPPED, &[1]);
        let of_huge = if version.layout.mapped_less > 0 { 0 } else { 4 * PAGE };
        assert_eq!(census(&world).unknown_bytes, of_huge);
    }
}

/// Heaps of threads that no arena leads to are unknown, and nothing is said of what would be given back.
#[test]
fn broken_ring() {
    for version in versions() {
        let mut world = whole(version);
        let state = FIRST + version.heap_info;
        for next in [0, state + 8, FIRST + 8] {
            // The ring does not come back to the main arena.
            world.memory.put(state + version.layout.next, &[next]);
            let Found { heap, notes, .. } = found(&world).unwrap();
            assert!(heap.trimmable_bytes.is_none() && !notes.is_empty(), "{next:x} {heap:?}");
        }
        // It does not come to the thread's arena at all.
        world.memory.put(STATE + version.layout.next, &[STATE]);
        let Found { heap, notes, .. } = found(&world).unwrap();
        assert_eq!((heap.arenas.len(), heap.unknown_bytes), (1, 2 * HEAP_BYTES));
        assert!(heap.trimmable_bytes.is_none() && !notes.is_empty());
        // Its heaps do not say either whose they are. It leads to the main arena still.
        world.memory.put(state + version.layout.next, &[STATE]);
        world.memory.put(FIRST, &[0]);
        world.memory.put(SECOND, &[64]);
        let Found { heap, notes, .. } = found(&world).unwrap();
        assert_eq!((heap.arenas.len(), heap.unknown_bytes), (1, HEAP_BYTES));
        assert!(heap.trimmable_bytes.is_none() && !notes.is_empty());
    }
}

/// A thread's arena whose heaps lead in a circle, have other sizes than it says, or that does not end at its top.
#[test]
fn arenas_that_do_not_add_up() {
    let version = new();
    let state = FIRST + version.heap_info;
    let changes: [(u64, u64); 5] = [
        (SECOND + 8, SECOND),
        (state + version.layout.system_mem, 3 * HEAP_BYTES),
        (state + version.layout.top, SECOND + version.heap_info),
        (SECOND + 16, HEAP_BYTES - PAGE),
        (FIRST, state + 16),
    ];
    for (at, word) in changes {
        let mut world = whole(version);
        world.memory.put(at, &[word]);
        let Found { heap, notes, .. } = found(&world).unwrap();
        assert_eq!(heap.arenas.len(), 1, "{at:x}");
        assert!(heap.unknown_bytes >= HEAP_BYTES && heap.trimmable_bytes.is_none(), "{at:x}");
        assert!(!notes.is_empty());
    }
}

/// A static program: its own data before the first chunk, and a heap that is no multiple of a page.
#[test]
fn static_program() {
    let mut world = World::new(new(), &[]);
    let (start, bytes) = (HEAP + 0x2a0, PAGES * PAGE - 0x2a0);
    let top = world.chunks(start, HEAP + PAGES * PAGE, &[(64, true), (PAGE, false), (64, true)]);
    world.state(STATE, top, STATE, bytes);
    world.memory.put(BASE, &[start]);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert_eq!((heap.live_bytes, heap.mapped_bytes, heap.unknown_bytes), (128, bytes, 0));
    assert!(heap.trimmable_bytes.is_some() && notes.len() == 1, "{notes:?}");
    // Where glibc does not say where it began, chunks may be missing.
    world.memory.put(BASE, &[0]);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert_eq!((heap.live_bytes, heap.unknown_bytes), (128, 0x2a0), "{notes:?}");
    assert!(heap.trimmable_bytes.is_none());
}

/// An arena that changes while it is read: bins that lead elsewhere, and a `top` that moves, at every other reading.
fn moving_world(version: Version) -> World {
    let mut world = whole(version);
    let first = HEAP + version.cache.chunk;
    for state in [STATE, FIRST + version.heap_info] {
        for bin in 0..50 {
            world.memory.torn.push((state + version.layout.bins + bin * 16, first));
        }
    }
    world.memory.torn.push((STATE + version.layout.top, HEAP + 4096));
    world
}

/// It is read nevertheless.
#[test]
fn moving() {
    for version in versions() {
        let world = moving_world(version);
        let Found { heap, .. } = found(&world).expect(version.name);
        assert_eq!((heap.arenas.len(), heap.unknown_bytes), (2, 0), "{}", version.name);
    }
}

/// A main arena that `brk` does not move: two regions with an object between them that has a mapping of its own. A region
/// that is not found is unknown.
#[test]
fn mapped_main_arena() {
    for version in versions() {
        let mut world = World::new(version, &[(64, true), (PAGE, false), (64, true)]);
        world.ranges[0].kind = RangeKind::Anonymous;
        world.thread_arena();
        world.memory.pieces.push((MAPPED, vec![0; (MAPPED_BYTES + PAGE) as usize]));
        world.ranges.push(anonymous(MAPPED, MAPPED_BYTES + PAGE));
        let end = MAPPED + 4 * PAGE;
        let marks = world.chunks(MAPPED, end - 32, &[(128, true), (256, true)]);
        world.memory.put(end - 32, &[end - 32 - marks, 16, 0, 17]);
        let less = version.layout.mapped_less;
        world.memory.put(end, &[0, (2 * PAGE - less) | 2]);
        world.params((1, 2 * PAGE));
        let system_mem = STATE + version.layout.system_mem;
        world.memory.put(system_mem, &[(PAGES + 4) * PAGE, (PAGES + 9) * PAGE]);
        let Found { heap, notes, .. } = found(&world).expect(version.name);
        let name = version.name;
        assert_eq!((heap.arenas.len(), heap.unknown_bytes), (2, 0), "{name} {notes:?}");
        assert_eq!(heap.arenas[0].live_bytes, 64 + 64 + 128 + 256, "{name}");
        assert_eq!(heap.arenas[0].mapped_bytes, (PAGES + 4) * PAGE, "{name}");
        assert_eq!(heap.mapped_alone_bytes, 2 * PAGE, "{name}");
        // In huge pages of hugetlbfs it is as well read, but what would be given back is not known.
        world.ranges[0].hugetlb = PAGES * PAGE;
        let found_there = found(&world).expect(version.name);
        assert_eq!(found_there.heap, Heap { trimmable_bytes: None, ..heap }, "{name}");
        assert_eq!(found_there.notes.len(), notes.len() + 1, "{name}");
        world.memory.put(MAPPED + 8, &[7]);
        let Found { heap, notes, .. } = found(&world).expect(version.name);
        assert_eq!(heap.unknown_bytes, 4 * PAGE, "{name} {notes:?}");
        assert!(heap.trimmable_bytes.is_none() && !notes.is_empty(), "{name}");
    }
}

/// A heap whose arena has an unknown layout is unknown, with the version that the library names; without a name it is
/// of no known heap.
#[test]
fn unknown_layout() {
    let mut world = World::new(new(), &[(64, true); 64]);
    world.memory.put(STATE + 96, &[0]);
    assert!(found(&world).is_none());
    let banner = b"GNU C Library (Example GLIBC 2.99-1) stable release version 2.99.\nCopyright";
    world.memory.pieces.push((DATA + PAGE, vec![0; PAGE as usize]));
    world.memory.write(DATA + PAGE + 64, banner);
    let constants =
        Range { kind: RangeKind::File, writable: false, ..anonymous(DATA + PAGE, PAGE) };
    world.ranges.push(constants);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert_eq!((heap.live_objects, heap.unknown_bytes), (0, PAGES * PAGE));
    assert!(heap.trimmable_bytes.is_none() && notes[0].starts_with("glibc 2.99: "), "{notes:?}");
}

/// Heaps of huge pages are aligned to four of them.
#[test]
fn huge_heaps() {
    let mut world = World::new(new(), &[(64, true)]);
    let at = FIRST + HEAP_ALIGN / 2 + (8 << 20);
    world.memory.pieces.push((at, vec![0; HEAP_BYTES as usize]));
    world.ranges.push(anonymous(at, HEAP_BYTES));
    let state = at + 48;
    let top = world.chunks(state + 2208, at + HEAP_BYTES, &[(64, true)]);
    world.state(state, top, STATE, HEAP_BYTES);
    world.memory.put(STATE + 2160, &[state]);
    world.memory.put(at, &[state, 0, HEAP_BYTES, HEAP_BYTES]);
    assert_eq!(census(&world).arenas.len(), 1);
    world.memory.put(BASE - 48, &[2 << 20]);
    let heap = census(&world);
    assert_eq!((heap.arenas.len(), heap.unknown_bytes), (2, 0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(256), ..ProptestConfig::default() })]

    /// Whatever stands in a heap, the census ends, and says of each byte one thing at most.
    #[test]
    fn hostile(words in prop::collection::vec((0..PAGES * 512, any::<u64>(), 0..4u8), 0..200), absent in prop::collection::vec(0..PAGES, 0..8)) {
        let chunks: Vec<(u64, bool)> = (0..800).map(|index| (0x20 + index % 40 * 16, index % 3 > 0)).collect();
        let fits: Vec<(u64, bool)> = chunks
            .into_iter()
            .scan(0, |sum, chunk| { *sum += chunk.0; Some((*sum, chunk)) })
            .take_while(|(sum, _)| *sum < (PAGES - 2) * PAGE)
            .map(|(_, chunk)| chunk)
            .collect();
        let mut world = World::new(new(), &fits);
        for (at, word, kind) in words {
            // Random words, small sizes, and pointers into the heap.
            let word = match kind { 0 => word, 1 => word % 4096, 2 => HEAP + word % (PAGES * PAGE), _ => word & 0xfff | 1 };
            world.memory.put(HEAP + at * 8, &[word]);
        }
        world.memory.absent = absent.into_iter().map(|page| HEAP + page * PAGE).collect();
        let space = Space::new(world.ranges, &world.memory);
        if let Some(found) = find(&space, &Taken::default()) {
            let heap = found.heap;
            prop_assert!(heap.live_bytes + heap.free_bytes + heap.unknown_bytes <= PAGES * PAGE + 64, "{heap:?}");
            prop_assert!(heap.trimmable_bytes.unwrap_or(0) <= PAGES * PAGE);
            prop_assert!(space.read_bytes() < 1 << 30);
        }
    }
}

/// Cases of a property: `PROPTEST_CASES`, or so many.
fn cases(default: u32) -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for version in versions() {
        let world = whole(version);
        crate::testing::cut_short(&world.ranges, &world.memory);
    }
}
