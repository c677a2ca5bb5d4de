use proptest::prelude::*;

use super::{
    caches::{LAYOUTS, Layout as ClassLayout},
    sizes::LARGEST,
    span::{LAYOUT, Layout, PAGE_BITS},
    *,
};
use crate::{
    model::Heap,
    space::{Memory as _, PAGE, Range, RangeKind},
    testing::{Pieces, anonymous, are_apart, seeds},
};

const DATA: u64 = 0x7c00_0000_0000;
const DATA_BYTES: u64 = 64 << 10;
const CLASSES: u64 = DATA + 0x1000;
/// The map of pages, and the part of it that lists the heap's.
const MAP: u64 = 0x7d00_0000_0000;
const MAP_BYTES: u64 = 1 << 20;
const PART: u64 = 0x7d10_0000_0000;
const PART_BYTES: u64 = 2 << 20;
const SPANS: u64 = 0x7e00_0000_0000;
const CACHE: u64 = 0x7e10_0000_0000;
const HEAP: u64 = 0x5555_0000_0000;
const COUNT: u64 = 10;
const BYTES: u64 = 1 << PAGE_BITS;
const SIZES: usize = 46;

struct World {
    memory: Pieces,
    ranges: Vec<Range>,
}

/// Spans of a page with 32-byte objects, of which five are in use, one that an object fills, one that is free. Of the
/// objects, two are in a class's cache and one is in a thread's.
fn world(layout: &Layout, class: &ClassLayout) -> World {
    let mut memory = Pieces::default();
    for (at, bytes) in [(DATA, DATA_BYTES), (SPANS, PAGE), (CACHE, 2 * PAGE), (HEAP, PAGE)] {
        memory.pieces.push((at, vec![0; bytes as usize]));
    }
    let sizes: Vec<u64> = sizes().collect();
    assert_eq!(sizes.len(), SIZES);
    for (size, at) in sizes.iter().zip((DATA + 0x100..).step_by(4)) {
        half(&mut memory, at, *size);
    }
    put_map(&mut memory);
    put_spans(&mut memory, layout);
    put_classes(&mut memory, class);
    for (size, at) in sizes.iter().zip((CACHE..).step_by(32)) {
        half(&mut memory, at + 24, *size);
    }
    memory.put(CACHE + 3 * 32, &[HEAP + 96, 1]);
    memory.put(CACHE + 128 * 32, &[32]);
    let ranges = vec![
        Range { kind: RangeKind::File, ..anonymous(DATA, DATA_BYTES) },
        Range { kind: RangeKind::File, ..anonymous(MAP, MAP_BYTES) },
        anonymous(PART, PART_BYTES),
        anonymous(SPANS, PAGE),
        anonymous(CACHE, 2 * PAGE),
        Range { kind: RangeKind::Heap, ..anonymous(HEAP, 32 * BYTES) },
    ];
    World { memory, ranges }
}

fn sizes() -> impl Iterator<Item = u64> {
    [0, 8].into_iter().chain((1..44).map(|class| class * 16)).chain([LARGEST])
}

fn half(memory: &mut Pieces, at: u64, value: u64) {
    let mut word = [0; 8];
    assert!(memory.read(at / 8 * 8, &mut word));
    memory.put(at / 8 * 8, &[u64::from_le_bytes(word) | value << (at % 8 * 8)]);
}

/// The pages of the map that lead to the heap's spans are present.
fn put_map(memory: &mut Pieces) {
    let root = MAP + (HEAP >> 31) * 8;
    for (start, end, at) in [(MAP, MAP + MAP_BYTES, root), (PART, PART + PART_BYTES, PART)] {
        let page = at / PAGE * PAGE;
        memory.pieces.push((page, vec![0; PAGE as usize]));
        memory.untouched.extend([(start, page), (page + PAGE, end)]);
    }
    memory.put(root, &[PART]);
    let pages = (0..COUNT).chain([COUNT; 2]).chain([COUNT + 2; 3]);
    for (number, page) in pages.zip(0..) {
        memory.put(PART + page * 8, &[description(number)]);
    }
}

fn description(number: u64) -> u64 {
    SPANS + 8 + number * 56
}

fn put_spans(memory: &mut Pieces, layout: &Layout) {
    let mut put = |number: u64, pages: u64, objects: u64, [used, class, location]: [u64; 3]| {
        let link = if location > 0 { SPANS } else { 0 };
        let bits = used << layout.used | class << layout.class | location << layout.location;
        let at = description(number);
        for (field, word) in [
            (layout.links, link),
            (layout.links + 8, link),
            (layout.objects, objects),
            (layout.bits, bits),
            (layout.pages, pages),
            (layout.page, HEAP / BYTES + number),
        ] {
            memory.put(at + field as u64, &[word]);
        }
    };
    for number in 0..COUNT {
        put(number, 1, HEAP + number * BYTES + 64, [5, 3, 0]);
    }
    put(COUNT, 2, 0, [0, 0, 0]);
    put(COUNT + 2, 3, 0, [0, 0, 1]);
}

fn put_classes(memory: &mut Pieces, layout: &ClassLayout) {
    for class in 0..SIZES as u64 {
        let at = CLASSES + class * layout.bytes;
        let list = at + layout.list as u64;
        memory.put(list + 16, &[list, list]);
        memory.put(at + layout.class as u64, &[class]);
        memory.put(at + layout.used as u64, &[4 << 32, 4]);
    }
    let at = CLASSES + 3 * layout.bytes;
    memory.put(at + layout.spans as u64, &[COUNT]);
    memory.put(at + layout.free as u64, &[COUNT * (BYTES / 32 - 5)]);
    memory.put(at + layout.slots as u64, &[HEAP + 128, HEAP + 160]);
    memory.put(at + layout.used as u64, &[1 | 4 << 32]);
    memory.put(HEAP + 128, &[HEAP + 160]);
}

impl World {
    fn found(&self) -> Option<(Heap, Vec<String>)> {
        let space = Space::new(self.ranges.clone(), &self.memory);
        find(&space, &Taken::default()).map(|found| (found.heap, found.notes))
    }

    fn heap(&self) -> Heap {
        self.found().expect("there are spans").0
    }
}

const LIVE: u64 = 5 * COUNT + 1 - 3;

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    for (index, class) in LAYOUTS.iter().enumerate() {
        let World { memory, ranges } = world(&LAYOUT, class);
        seeds::check(&format!("tcmalloc-{index}"), &memory, &ranges, "");
    }
}

/// Objects by size, what one object fills, what is free, what caches have; a span without free objects that is not full
/// is unknown, and a class whose spans do not add up.
#[test]
fn spans() {
    for layout in LAYOUTS {
        let mut world = world(&LAYOUT, &layout);
        let (heap, notes) = world.found().expect("there are spans");
        assert_eq!((heap.live_objects, heap.mapped_bytes), (LIVE, (COUNT + 5) * BYTES));
        assert_eq!((heap.cached_bytes, heap.unknown_bytes), (3 * 32, 0));
        assert_eq!(heap.live_bytes, (LIVE - 1) * 32 + 2 * BYTES);
        assert_eq!((heap.granules.full, heap.granules.empty_bytes), (1, 3 * BYTES));
        assert_eq!(heap.granules.held[0].granules, COUNT);
        assert_eq!(notes, Vec::<String>::new());
        // The class has one more free object than its spans.
        let free = CLASSES + 3 * layout.bytes + layout.free as u64;
        world.memory.put(free, &[COUNT * (BYTES / 32 - 5) + 1]);
        let heap = world.heap();
        assert_eq!((heap.live_objects, heap.unknown_bytes), (1, COUNT * BYTES));
        world.memory.put(free, &[(COUNT - 1) * (BYTES / 32 - 5)]);
        world.memory.put(free - 8, &[COUNT - 1]);
        world.memory.put(description(9) + 32, &[0]);
        let heap = world.heap();
        assert_eq!((heap.live_objects, heap.unknown_bytes), (LIVE - 5, BYTES));
        // Without the map.
        world.ranges.remove(1);
        assert_eq!(world.heap().live_objects, LIVE - 5);
        world.memory.put(DATA + 0x100, &[0]);
        assert!(world.found().is_none(), "no table");
    }
}

/// The fields of a span, by bytes and by bits, and those of a class.
const FIELDS: [fn(&mut Layout) -> &mut usize; 5] = [
    |one| &mut one.page,
    |one| &mut one.pages,
    |one| &mut one.links,
    |one| &mut one.objects,
    |one| &mut one.bits,
];
const BITS: [fn(&mut Layout) -> &mut u32; 3] =
    [|one| &mut one.used, |one| &mut one.class, |one| &mut one.location];
const CLASS_FIELDS: [fn(&mut ClassLayout) -> &mut usize; 6] = [
    |one| &mut one.class,
    |one| &mut one.list,
    |one| &mut one.spans,
    |one| &mut one.free,
    |one| &mut one.slots,
    |one| &mut one.used,
];

/// Where one field of a span lies elsewhere, nothing is read, or it is unknown; where one of a class does, that is noted.
#[test]
fn shifted() {
    let mut worlds = Vec::new();
    for field in FIELDS {
        let mut layout = LAYOUT;
        *field(&mut layout) += 8;
        worlds.push(world(&layout, &LAYOUTS[0]));
    }
    for (field, by) in BITS.iter().flat_map(|field| [(field, 1), (field, 8)]) {
        let mut layout = LAYOUT;
        *field(&mut layout) += by;
        worlds.push(world(&layout, &LAYOUTS[0]));
    }
    for class in LAYOUTS {
        for field in CLASS_FIELDS {
            let mut class = class;
            *field(&mut class) += 8;
            worlds.push(world(&LAYOUT, &class));
        }
        worlds.push(world(&LAYOUT, &ClassLayout { bytes: class.bytes + 8, ..class }));
    }
    for (index, world) in worlds.iter().enumerate() {
        let found = world.found();
        assert!(is_doubted_or_right(found.as_ref()), "{index}: {found:?}");
    }
}

fn is_doubted_or_right(found: Option<&(Heap, Vec<String>)>) -> bool {
    found.is_none_or(|(heap, notes)| {
        let is_noted = notes.iter().any(|note| note.contains("count as live"));
        let is_right = (heap.live_objects, heap.cached_bytes) == (LIVE, 3 * 32);
        heap.unknown_bytes > 0 || is_noted || is_right
    })
}

proptest! {
    /// Where a field lies anywhere else, nothing is read, or it is unknown, or noted.
    #[test]
    fn moved(
        class in 0..LAYOUTS.len(),
        (kind, field, by, up) in (0..3u8, 0..6usize, 1..=6u8, any::<bool>()),
    ) {
        let (mut layout, mut class) = (LAYOUT, LAYOUTS[class]);
        let to = |at: usize, most: usize| {
                let by = usize::from(by) * 8;
                if up { at + by } else { at.saturating_sub(by) }.min(most)
            };
            match kind {
                0 => {
                    let at = FIELDS[field % FIELDS.len()](&mut layout);
                    *at = to(*at, 48);
                }
                1 => {
                    let at = BITS[field % BITS.len()](&mut layout);
                    *at = if up { *at + u32::from(by) } else { at.saturating_sub(u32::from(by)) };
                }
                _ => {
                    let at = CLASS_FIELDS[field](&mut class);
                    *at = to(*at, 1152);
                }
            }
        let words = [(layout.page, 8), (layout.pages, 8), (layout.links, 16), (layout.objects, 8)];
        let words = words.into_iter().chain([(layout.bits, 8)]);
        let bits = [(layout.used, 16), (layout.class, 8), (layout.location, 2)];
        let of_class =
            [(class.class, 8), (class.list, 32), (class.spans, 8), (class.free, 8), (class.slots, 16)];
        let of_class = of_class.into_iter().chain([(class.used, 16)]);
        let wide = |(at, bytes): (usize, u64)| (at as u64, bytes);
        if !(are_apart(words.map(wide)) && are_apart(of_class.map(wide))) {
 return Ok(());
 }
        if !(are_apart(bits.map(|(at, bits)| (u64::from(at), bits)))) {
 return Ok(());
 }
        let found = world(&layout, &class).found();
        prop_assert!(is_doubted_or_right(found.as_ref()), "{found:?}");
    }

    /// Whatever the descriptions, classes and caches say, spans do not overlap, and the census ends.
    #[test]
    fn hostile(
        layout in 0..LAYOUTS.len(),
        words in prop::collection::vec((0..5u8, 0..512u64, any::<u64>(), 0..4u8), 0..60),
    ) {
        let mut world = world(&LAYOUT, &LAYOUTS[layout]);
        for (place, at, word, kind) in words {
            let place = [SPANS, CLASSES + 3 * LAYOUTS[layout].bytes, CACHE, PART, HEAP]
                [usize::from(place)];
            let word = match kind {
                0 => word,
                1 => HEAP / BYTES + word % 32,
                2 => HEAP + word % (32 * BYTES),
                _ => word % 64,
            };
            world.memory.put(place + at * 8, &[word]);
        }
        if let Some((heap, _)) = world.found() {
            prop_assert!(heap.mapped_bytes <= 33 * BYTES);
            prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for layout in LAYOUTS {
        let world = world(&LAYOUT, &layout);
        crate::testing::cut_short(&world.ranges, &world.memory);
    }
}
