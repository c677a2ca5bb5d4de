use proptest::prelude::*;

use super::{
    segments::{Entry, Header, LAYOUTS},
    *,
};
use crate::{
    space::Range,
    testing::{Pieces, anonymous},
};

const BASE: u64 = 0x7f00_0000_0000;
const COOKIE: u64 = 0x1234_5678_9abc_def0;

/// Writes the low bits of a word, and keeps the others.
fn part(memory: &mut Pieces, at: u64, bits: u32, value: u64) {
    let word = at / 8 * 8;
    let mut bytes = [0; 8];
    assert!(crate::space::Memory::read(memory, word, &mut bytes));
    let (shift, mask) = (at % 8 * 8, u64::MAX >> (64 - bits));
    let kept = u64::from_le_bytes(bytes) & !(mask << shift);
    memory.put(word, &[kept | (value & mask) << shift]);
}

/// Writes an entry: slices, blocks that fit, blocks in use, and their size.
fn entry(memory: &mut Pieces, at: u64, layout: &Entry, [count, fit, used, size]: [u64; 4]) {
    part(memory, at, 32, count);
    part(memory, at + 10, 16, fit);
    part(memory, at + 12, 16, fit);
    part(memory, at + layout.used, 16, used);
    part(memory, at + layout.size, if layout.is_wide { 64 } else { 32 }, size);
    if let Some(keys) = layout.keys.filter(|_| size > 0) {
        memory.put(at + keys, &[0x1111_2222_3333_4444, 0x5555_6666_7777_8888]);
    }
}

/// A page of 64-byte blocks with three in use, an empty one, a block that has a page to itself, and a free rest.
fn segment(memory: &mut Pieces, base: u64, header: &Header, layout: &Entry) {
    memory.pieces.push((base, vec![0; 256 << 10]));
    let whole = header.bytes / SLICE;
    let fields = [
        (header.used, 3),
        (header.cookie, base ^ COOKIE),
        (header.slices, whole),
        (header.own, 1),
        (header.kind, 0),
        (header.entries, whole),
    ];
    for (at, value) in fields {
        memory.put(base + at, &[value]);
    }
    let rows = [
        (0, [1, 0, 0, 0]),
        (1, [1, 1000, 3, 64]),
        (2, [1, 1000, 0, 64]),
        (3, [2, 1, 1, 100_000]),
        (5, [whole - 5, 0, 0, 0]),
    ];
    for (slice, values) in rows {
        entry(memory, base + header.array + slice * layout.bytes, layout, values);
    }
}

fn memory(header: &Header, layout: &Entry) -> Pieces {
    let mut memory = Pieces::default();
    segment(&mut memory, BASE, header, layout);
    memory
}

fn found(memory: &Pieces, bytes: u64) -> Option<Heap> {
    let space = Space::new(vec![anonymous(BASE, bytes)], memory);
    find(&space, &Taken::default()).map(|found| found.heap)
}

/// Every known layout is read; blocks that other threads have freed are taken off.
#[test]
fn layouts() {
    for (index, (header, layout)) in LAYOUTS.iter().enumerate() {
        let mut memory = memory(header, layout);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        let live = (heap.live_objects, heap.live_bytes, heap.unknown_bytes);
        assert_eq!(live, (4, 3 * 64 + 100_000, 0), "{index}");
        assert_eq!((heap.granules.full, heap.granules.held[0].objects_max), (1, Some(4)));
        assert_eq!(heap.mapped_bytes, header.bytes);
        if layout.keys.is_some() {
            continue;
        }
        // One was freed by another thread, and one waits in the heap's list.
        let block = BASE + SLICE + 128;
        memory.put(BASE + header.array + layout.bytes + layout.freed, &[block | 2]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.cached_bytes), (2, 128), "{index}");
        // A list that leads out of its page.
        memory.put(block, &[BASE + 8]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.unknown_bytes), (1, SLICE), "{index}");
        // One page less than the segment says.
        memory.put(BASE + header.used, &[4]);
        assert!(found(&memory, header.bytes).is_none(), "{index}");
    }
}

/// Where one field lies elsewhere, nothing is read, or it is unknown.
#[test]
fn shifted() {
    let headers: [fn(&mut Header) -> &mut u64; 6] = [
        |one| &mut one.used,
        |one| &mut one.cookie,
        |one| &mut one.slices,
        |one| &mut one.own,
        |one| &mut one.entries,
        |one| &mut one.array,
    ];
    let entries: [fn(&mut Entry) -> &mut u64; 3] =
        [|one| &mut one.used, |one| &mut one.size, |one| &mut one.bytes];
    for (header, layout) in &LAYOUTS {
        let mut moved = Vec::new();
        for field in headers {
            let mut header = *header;
            *field(&mut header) += 8;
            moved.push((header, *layout));
        }
        for field in entries {
            let mut layout = *layout;
            *field(&mut layout) += 8;
            moved.push((*header, layout));
        }
        for (index, (header, layout)) in moved.iter().enumerate() {
            let heap = found(&memory(header, layout), header.bytes);
            let is_whole = heap.as_ref().is_some_and(|heap| heap.unknown_bytes == 0);
            let is_right = heap.as_ref().is_some_and(|heap| heap.live_objects == 4);
            assert!(!is_whole || is_right, "{index}: {heap:?}");
        }
    }
}

/// A segment is committed in part; one that its cookie tells, and that does not validate, is unknown.
#[test]
fn parts() {
    let (header, layout) = &LAYOUTS[4];
    let mut memory = memory(header, layout);
    segment(&mut memory, BASE + header.bytes, header, layout);
    let rest = Range {
        writable: false,
        ..anonymous(BASE + header.bytes + (256 << 10), header.bytes - (256 << 10))
    };
    let ranges = vec![anonymous(BASE, header.bytes + (256 << 10)), rest];
    let heap = |memory: &Pieces| {
        let space = Space::new(ranges.clone(), memory);
        find(&space, &Taken::default()).expect("there are segments").heap
    };
    assert_eq!((heap(&memory).live_objects, heap(&memory).unknown_bytes), (8, 0));
    memory.put(BASE + header.bytes + header.own, &[2]);
    let heap = heap(&memory);
    assert_eq!((heap.live_objects, heap.unknown_bytes), (4, header.bytes));
}

proptest! {
    /// Whatever the structures say, lists in circles included, the census ends and counts no more than there is.
    #[test]
    fn hostile(
        layout in 0..LAYOUTS.len(),
        words in prop::collection::vec((0..8192u64, any::<u64>(), any::<bool>()), 0..40),
    ) {
        let (header, layout) = &LAYOUTS[layout];
        let mut memory = memory(header, layout);
        for (at, word, near) in words {
            let at = if near { at % 60 + header.used / 8 } else { at };
            memory.put(BASE + at * 8, &[if near { word % 1024 } else { BASE + word % (256 << 10) }]);
        }
        if let Some(heap) = found(&memory, header.bytes) {
            prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
        }
    }
}

const DATA: u64 = 0x1000_0000;
const TABLE: u64 = 0x3000_0000;
const PART: u64 = 0x4000_0000;
const ARENA: u64 = 0x2_0000_0000;
const ARENA_BYTES: u64 = 32 << 20;

/// An arena of 3.3 with a page of 64-byte blocks, three of them in use, and a slice of which nothing is known.
fn arena() -> (Pieces, Vec<Range>) {
    let mut memory = Pieces::default();
    let ranges = vec![
        Range { kind: RangeKind::File, ..anonymous(DATA, 4096) },
        anonymous(TABLE, 4096 + SLICE),
        anonymous(PART, SLICE),
        anonymous(ARENA, ARENA_BYTES),
    ];
    memory.pieces.extend([(DATA, vec![0; 4096]), (TABLE, vec![0; 4096 + SLICE as usize])]);
    memory.pieces.extend([(PART, vec![0; SLICE as usize]), (ARENA, vec![0; 4 * SLICE as usize])]);
    memory.untouched.push((ARENA + 4 * SLICE, ARENA + ARENA_BYTES));
    memory.put(DATA + 64, &[TABLE]);
    memory.put(TABLE, &[TABLE + 4096]);
    memory.put(TABLE + (ARENA >> 29) * 8, &[PART]);
    let page = ARENA + 2 * SLICE;
    memory.put(PART + (page >> 16 & 0x1fff) * 8, &[page]);
    let free = ARENA + 0x400;
    memory.put(ARENA, &[ARENA, ARENA_BYTES, 4, 8, 0, 512, 2]);
    memory.put(ARENA + 104, &[free, free + 448 + 64]);
    memory.put(free, &[1]);
    memory.put(free + 448, &[!0 << 4, !0, !0, !0, !0, !0, !0, !0]);
    memory.put(page + 16, &[3 | 10 << 16 | 100 << 32, 0, 1, 64, page + 128]);
    memory.put(page + 96, &[ARENA, 2 | 1 << 32, 7]);
    (memory, ranges)
}

fn mapped((memory, ranges): &(Pieces, Vec<Range>)) -> Option<Heap> {
    let space = Space::new(ranges.clone(), memory);
    find(&space, &Taken::default()).map(|found| found.heap)
}

/// What the map lists is read, and what an arena does not account for is unknown; a page that makes no sense is.
#[test]
fn map_of_pages() {
    let mut heap = arena();
    let found = mapped(&heap).expect("there is a map");
    assert_eq!((found.live_objects, found.live_bytes), (3, 192));
    assert_eq!((found.mapped_bytes, found.unknown_bytes), (ARENA_BYTES, SLICE));
    let page = ARENA + 2 * SLICE;
    // More in use than there are.
    heap.0.put(page + 16, &[30 | 10 << 16 | 100 << 32]);
    let found = mapped(&heap).expect("there is a map");
    assert_eq!((found.live_objects, found.unknown_bytes), (0, SLICE));
    // Without its map, nothing is read.
    heap.0.put(DATA + 64, &[0]);
    assert!(mapped(&heap).is_none());
}

/// Where one word of a page, an arena or the map lies elsewhere, nothing is read, or it is unknown.
#[test]
fn shifted_map() {
    let page = ARENA + 2 * SLICE;
    for at in [16, 40, 48, 96, 104, 112]
        .map(|at| page + at)
        .into_iter()
        .chain([40, 48, 104, 112].map(|at| ARENA + at).into_iter().chain([TABLE]))
    {
        let mut heap = arena();
        let mut word = [0; 8];
        assert!(crate::space::Memory::read(&heap.0, at, &mut word));
        heap.0.put(at, &[0, u64::from_le_bytes(word)]);
        let found = mapped(&heap);
        let live = found.as_ref().map_or(0, |heap| heap.live_objects);
        let is_doubted = found.as_ref().is_none_or(|heap| {
            heap.unknown_bytes > SLICE || heap.mapped_bytes < ARENA_BYTES || live == 0
        });
        assert!(is_doubted, "{at:x}: {found:?}");
    }
}

proptest! {
    /// Whatever map, pages and arenas say, the census ends and counts no more than there is.
    #[test]
    fn hostile_map(words in prop::collection::vec((0..5u8, 0..512u64, any::<u64>(), 0..3u8), 0..40)) {
        let mut heap = arena();
        for (place, at, word, kind) in words {
            let place = [DATA, TABLE, PART + (ARENA >> 16 & 0x1fff) * 8, ARENA, ARENA + 2 * SLICE]
                [usize::from(place)];
            let word = match kind {
                0 => word,
                1 => ARENA + word % ARENA_BYTES / SLICE * SLICE,
                _ => word % 1024,
            };
            heap.0.put(place + at % 64 * 8, &[word]);
        }
        if let Some(heap) = mapped(&heap) {
            prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
        }
    }
}
