//! The map of pages of mimalloc 3.

use super::{
    super::map::{
        arena::{self, Layout as ArenaLayout},
        page::{self, Layout as PageLayout, Start},
    },
    *,
};
use crate::space::RangeKind;

const DATA: u64 = 0x1000_0000;
const TABLE: u64 = 0x3000_0000;
const PART: u64 = 0x4000_0000;
const ARENA: u64 = 0x2_0000_0000;
const ARENA_BYTES: u64 = 32 << 20;
const THREAD: u64 = 0x7000;

struct World {
    memory: Pieces,
    ranges: Vec<Range>,
    /// Where the page's description is.
    page: u64,
}

/// An arena with a page of 64-byte blocks: ten were handed out, three are in use, and one of these another thread has
/// freed. Behind it a slice of which nothing is known, if that is wanted.
fn world(layout: &PageLayout, arena: &ArenaLayout, has_unknown: bool) -> World {
    let own = if arena.offset > 0 { 10 } else { 2 };
    let page = ARENA + own * SLICE;
    let mut memory = Pieces::default();
    let ranges = vec![
        Range { kind: RangeKind::File, ..anonymous(DATA, 4096) },
        anonymous(TABLE, 4096 + SLICE),
        anonymous(PART, SLICE),
        anonymous(ARENA, ARENA_BYTES),
    ];
    let written = (own + 2) * SLICE;
    memory.pieces.extend([(DATA, vec![0; 4096]), (TABLE, vec![0; 4096 + SLICE as usize])]);
    memory.pieces.extend([(PART, vec![0; SLICE as usize]), (ARENA, vec![0; written as usize])]);
    memory.untouched.push((ARENA + written, ARENA + ARENA_BYTES));
    memory.put(DATA + 64, &[TABLE]);
    memory.put(TABLE, &[TABLE + 4096]);
    memory.put(TABLE + (ARENA >> 29) * 8, &[PART]);
    memory.put(PART + (page >> 16 & 0x1fff) * 8, &[page]);
    put_arena(&mut memory, arena, own, u64::from(has_unknown));
    put_page(&mut memory, layout, page, [ARENA + arena.offset, own | 1 << 32]);
    World { memory, ranges, page }
}

fn put_arena(memory: &mut Pieces, layout: &ArenaLayout, own: u64, unknown: u64) {
    let at = ARENA + layout.offset;
    let free = at + 0x400;
    memory.put(at + layout.slices as u64, &[ARENA_BYTES / SLICE]);
    memory.put(at + layout.own as u64, &[own]);
    memory.put(at + layout.free as u64, &[free, free + 448 + 64]);
    memory.put(free, &[1]);
    memory.put(free + 448, &[!0 << (own + 1 + unknown), !0, !0, !0, !0, !0, !0, !0]);
}

fn put_page(memory: &mut Pieces, layout: &PageLayout, page: u64, origin: [u64; 2]) {
    let begin = match layout.start {
        Start::Address => page + 256,
        Start::Words => 256 / 8,
        Start::Bytes => 256,
    };
    let keys = layout.keys.map(|_| keys(page));
    let blocks = |from: u64, to: u64| (from..to).map(|at| page + 256 + at * 64).collect::<Vec<_>>();
    let mut words = vec![
        (layout.thread, THREAD),
        (layout.free, list(memory, &blocks(3, 7), keys)),
        (layout.local, list(memory, &blocks(7, 10), keys)),
        (layout.freed, list(memory, &blocks(2, 3), keys) | 1),
        (layout.size, 64),
        (layout.begin, begin),
        (layout.memory, origin[0]),
        (layout.memory + 8, origin[1]),
        (layout.memory + 16, layout.arena),
    ];
    let encoded = layout.keys.zip(keys);
    words.extend(encoded.into_iter().flat_map(|(at, [one, two, _])| [(at, one), (at + 8, two)]));
    for (at, word) in words {
        memory.put(page + at as u64, &[word]);
    }
    for (at, half) in [(layout.used, 3), (layout.capacity, 10), (layout.reserved, 100)] {
        part(memory, page + at as u64, 16, half);
    }
}

fn mapped(world: &World) -> Option<Heap> {
    let space = Space::new(world.ranges.clone(), &world.memory);
    find(&space, &Taken::default()).map(|found| found.heap)
}

/// What the map lists is read in every layout, and what an arena does not account for is unknown; a page that makes no
/// sense is.
#[test]
fn map_of_pages() {
    for (layout, arena) in
        page::LAYOUTS.iter().flat_map(|page| arena::LAYOUTS.iter().map(move |arena| (page, arena)))
    {
        let mut world = world(layout, arena, true);
        let found = mapped(&world).expect("there is a map");
        assert_eq!((found.live_objects, found.live_bytes, found.cached_bytes), (2, 128, 64));
        assert_eq!((found.mapped_bytes, found.unknown_bytes), (ARENA_BYTES, SLICE));
        // One less in use than there are.
        part(&mut world.memory, world.page + layout.used as u64, 16, 2);
        let found = mapped(&world).expect("there is a map");
        assert_eq!((found.live_objects, found.unknown_bytes), (0, 2 * SLICE));
        // More in use than there are.
        part(&mut world.memory, world.page + layout.used as u64, 16, 30);
        let found = mapped(&world).expect("there is a map");
        assert_eq!((found.live_objects, found.unknown_bytes), (0, SLICE));
        // Without its map, nothing is read.
        world.memory.put(DATA + 64, &[0]);
        assert!(mapped(&world).is_none());
    }
}

/// Seeds of the fuzz target `heaps`: each layout of a page, and of an arena.
#[test]
fn as_seeds() {
    for (index, (page, arena)) in page::LAYOUTS.iter().zip(&arena::LAYOUTS).enumerate() {
        let world = world(page, arena, false);
        seeds::check(&format!("mimalloc-3-{index}"), &world.memory, &world.ranges, "");
    }
}

/// The fields of a page and of an arena.
const PAGES: [fn(&mut PageLayout) -> &mut usize; 10] = [
    |one| &mut one.used,
    |one| &mut one.capacity,
    |one| &mut one.reserved,
    |one| &mut one.size,
    |one| &mut one.free,
    |one| &mut one.local,
    |one| &mut one.freed,
    |one| &mut one.begin,
    |one| &mut one.thread,
    |one| &mut one.memory,
];
const ARENAS: [fn(&mut ArenaLayout) -> &mut usize; 3] =
    [|one| &mut one.slices, |one| &mut one.own, |one| &mut one.free];

/// Where one field of a page or an arena lies elsewhere, nothing is read, or it is unknown.
#[test]
fn shifted_map() {
    for layout in page::LAYOUTS {
        let arena = arena::LAYOUTS[4];
        let mut moved: Vec<PageLayout> = PAGES
            .iter()
            .map(|field| {
                let mut layout = layout;
                *field(&mut layout) += 8;
                layout
            })
            .collect();
        let keys = layout.keys.map(|keys| keys + 8);
        moved.extend(keys.map(|keys| PageLayout { keys: Some(keys), ..layout }));
        for (index, layout) in moved.iter().enumerate() {
            let heap = mapped(&world(layout, &arena, false));
            assert!(is_doubted_or_right(heap.as_ref()), "{index}: {heap:?}");
        }
    }
    for layout in arena::LAYOUTS {
        for (index, field) in ARENAS.iter().enumerate() {
            let mut layout = layout;
            *field(&mut layout) += 8;
            let heap = mapped(&world(&page::LAYOUTS[0], &layout, false));
            assert!(is_doubted_or_right(heap.as_ref()), "{index}: {heap:?}");
        }
    }
}

fn is_doubted_or_right(heap: Option<&Heap>) -> bool {
    heap.is_none_or(|heap| {
        heap.unknown_bytes > 0 || (heap.live_objects, heap.cached_bytes) == (2, 64)
    })
}

/// Where a word of the map lies elsewhere, nothing is read, or what it lists is unknown.
#[test]
fn shifted_table() {
    for at in [DATA + 64, TABLE, TABLE + (ARENA >> 29) * 8, PART + 16] {
        let mut world = world(&page::LAYOUTS[0], &arena::LAYOUTS[0], false);
        let moved = Space::new(world.ranges.clone(), &world.memory).word(at);
        world.memory.put(at, &[0, moved.expect("it is written")]);
        let heap = mapped(&world);
        assert!(is_doubted_or_right(heap.as_ref()), "{at:x}: {heap:?}");
    }
}

proptest! {
    /// Where a field lies anywhere else, nothing is read, or it is unknown.
    #[test]
    fn moved_map(
        (layout, arena) in (0..page::LAYOUTS.len(), 0..arena::LAYOUTS.len()),
        (field, by, up) in (0..PAGES.len() + ARENAS.len(), 1..8usize, any::<bool>()),
    ) {
        let (mut layout, mut arena) = (page::LAYOUTS[layout], arena::LAYOUTS[arena]);
        let at = match PAGES.get(field) {
                Some(field) => field(&mut layout),
                None => ARENAS[field - PAGES.len()](&mut arena),
            };
            *at = if up { *at + by * 8 } else { at.saturating_sub(by * 8) };
        let words = [layout.size, layout.free, layout.local, layout.freed, layout.begin, layout.thread];
        let halves = [layout.used, layout.capacity, layout.reserved].map(|at| (at as u64, 2));
        let longer = [(layout.memory as u64, 24)].into_iter();
        let longer = longer.chain(layout.keys.map(|at| (at as u64, 16)));
        if !(are_apart(words.map(|at| (at as u64, 8)).into_iter().chain(halves).chain(longer))) {
 return Ok(());
 }
        if !(are_apart([
            (arena.slices as u64, 8),
            (arena.own as u64, 8),
            (arena.free as u64, 16),
        ])) {
 return Ok(());
 }
        let heap = mapped(&world(&layout, &arena, false));
        prop_assert!(is_doubted_or_right(heap.as_ref()), "{heap:?}");
    }

    /// Whatever map, pages and arenas say, the census ends and counts no more than there is.
    #[test]
    fn hostile_map(
        (layout, arena) in (0..page::LAYOUTS.len(), 0..arena::LAYOUTS.len()),
        words in prop::collection::vec((0..5u8, 0..512u64, any::<u64>(), 0..3u8), 0..40),
    ) {
        let arena = &arena::LAYOUTS[arena];
        let mut world = world(&page::LAYOUTS[layout], arena, true);
        for (place, at, word, kind) in words {
            let place = [
                DATA,
                TABLE,
                PART + (ARENA >> 16 & 0x1fff) * 8,
                ARENA + arena.offset,
                world.page,
            ][usize::from(place)];
            let word = match kind {
                0 => word,
                1 => ARENA + word % ARENA_BYTES / SLICE * SLICE,
                _ => word % 1024,
            };
            world.memory.put(place + at % 64 * 8, &[word]);
        }
        if let Some(heap) = mapped(&world) {
            prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for (page, arena) in page::LAYOUTS.iter().zip(&arena::LAYOUTS) {
        let world = world(page, arena, true);
        crate::testing::cut_short(&world.ranges, &world.memory);
    }
}
