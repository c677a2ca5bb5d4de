use proptest::prelude::*;

use super::{
    layout::{GO_PAGE, LAYOUTS, Layout},
    *,
};
use crate::{
    space::Range,
    testing::{Pieces, anonymous, seeds},
};

const HEAP: u64 = 0xc0 << 32;
const HEAP_BYTES: u64 = 8 << 20;
const DATA: u64 = 0x50_0000;
const BSS: u64 = DATA + 4096;
/// `allspans`, and the slice of address ranges before it.
const SLICE: u64 = BSS + 2048;
const RANGES: u64 = SLICE - 176;
const LIST: u64 = 0x7f00_0000_0000;
const LIST_BYTES: u64 = 16 << 10;
/// The address ranges, and the descriptions.
const RANGE: u64 = LIST + (4 << 10);
const SPANS: u64 = LIST + (8 << 10);
const COUNT: u64 = 12;
const SWEEP: u64 = 6;
/// Bytes of a description, and of what surrounds them.
const STEP: u64 = 160;

/// What a description says.
#[derive(Clone, Copy)]
struct Described {
    page: u64,
    pages: u64,
    elements: u64,
    used: u64,
    class: u64,
    state: u64,
    size: u64,
    limit: u64,
}

/// The spans of the tests: twelve of 64-byte objects without pointers of which three are live, one of objects of 48
/// bytes with pointers, a large one of two pages, an empty one, stacks, and the runtime's own.
fn described(layout: &Layout) -> Vec<Described> {
    let span = |page, class, size, elements, used| Described {
        page,
        pages: 1,
        elements,
        used,
        class,
        state: 1,
        size,
        limit: elements * size,
    };
    // Green Tea where it can be, and bitmaps.
    let (marked, both) = if layout.inline { (126, 165) } else { (128, 170) };
    let mut all: Vec<Described> = (0..COUNT).map(|page| span(page, 13, 64, marked, 3)).collect();
    all.push(span(COUNT, 10, 48, both, both));
    all.push(Described { pages: 2, limit: 9000, ..span(COUNT + 1, 0, 2 * GO_PAGE, 1, 1) });
    all.push(span(COUNT + 3, 13, 64, marked, 0));
    let by_hand = Described { state: 2, limit: GO_PAGE, ..span(COUNT + 4, 0, 2048, 0, 2) };
    all.push(by_hand);
    all.push(Described { page: COUNT + 5, size: 0, used: 0, ..by_hand });
    // Freed: what it says does not count.
    all.push(Described { page: 0, state: 0, ..by_hand });
    all
}

/// Memory with these spans, listed where `is_listed`, in a layout, each field at its offset and `moved` behind it.
fn memory_with(layout: &Layout, is_listed: bool, moved: impl Fn(usize) -> u64) -> Pieces {
    let mut memory = Pieces::default();
    memory.pieces.push((DATA, vec![0; 8192]));
    memory.pieces.push((LIST, vec![0; LIST_BYTES as usize]));
    let mut in_use = 0;
    let spans = described(layout);
    for (number, span) in (0..).zip(&spans) {
        let (at, start) = (SPANS + number * STEP, HEAP + span.page * GO_PAGE);
        let mut field = |index: usize, offset: usize, words: &[u64]| {
            memory.put(at + offset as u64 + moved(index), words);
        };
        let elements = if layout.elements_bytes == 2 { span.elements << 16 } else { span.elements };
        field(0, layout.start, &[start]);
        field(1, layout.pages, &[span.pages]);
        field(2, layout.elements / 8 * 8, &[elements]);
        field(3, layout.sweep, &[SWEEP]);
        field(4, layout.tail, &[span.used | span.class << 16 | span.state << 24]);
        field(5, layout.tail + 8, &[span.size]);
        field(6, layout.tail + 16, &[start + span.limit]);
        memory.put(LIST + number * 8, &[at]);
        in_use += if span.state == 1 { span.pages } else { 0 };
    }
    if is_listed {
        memory.put(RANGES, &[RANGE, 1, 16, HEAP_BYTES]);
        memory.put(RANGE, &[HEAP, HEAP + HEAP_BYTES]);
        memory.put(SLICE - 8, &[SWEEP, LIST, spans.len() as u64, 8192, in_use]);
    }
    memory
}

fn memory(layout: &Layout, is_listed: bool) -> Pieces {
    memory_with(layout, is_listed, |_| 0)
}

fn ranges() -> Vec<Range> {
    let data = Range { kind: RangeKind::File, ..anonymous(DATA, 4096) };
    vec![data, anonymous(BSS, 4096), anonymous(HEAP, HEAP_BYTES), anonymous(LIST, LIST_BYTES)]
}

fn walk(memory: &Pieces) -> Option<Found> {
    find(&Space::new(ranges(), memory), &Taken::default())
}

/// Each layout is read: objects by size, what one object fills, stacks and the runtime apart, nothing unknown.
#[test]
fn layouts() {
    for layout in &LAYOUTS {
        let found = walk(&memory(layout, true)).expect("there is a heap");
        let heap = &found.heap;
        let both = if layout.inline { 165 } else { 170 };
        assert_eq!(found.notes, Vec::<String>::new(), "{}", layout.versions);
        assert_eq!((heap.mapped_bytes, heap.unknown_bytes), (HEAP_BYTES, 0));
        assert_eq!(heap.live_objects, 3 * COUNT + both + 3);
        assert_eq!(heap.live_bytes, 3 * COUNT * 64 + both * 48 + 4 * GO_PAGE);
        assert_eq!(heap.free_bytes, HEAP_BYTES - heap.live_bytes);
        assert_eq!((heap.granules.full, heap.granules.empty), (3, 1));
        let class = |size| heap.classes.iter().find(|class| class.size == size).expect("the class");
        assert_eq!((class(64).objects, class(64).granules), (3 * COUNT, Some(COUNT + 1)));
        assert_eq!((class(48).objects, class(2 * GO_PAGE).objects), (both, 1));
        let types: Vec<_> = heap.types.iter().map(|one| (one.name.as_str(), one.bytes)).collect();
        assert_eq!(types, [(STACKS, GO_PAGE), (RUNTIME, GO_PAGE)]);
        assert_eq!(found.taken, [(HEAP, HEAP + HEAP_BYTES)]);
    }
}

/// Seeds of the fuzz target `heaps`: each layout, without a list, with marks in bitmaps and in spans (Green Tea), and
/// with a heap at an address that the runtime has chosen by chance.
#[test]
fn as_seeds() {
    for (layout, version) in LAYOUTS.iter().zip(["1.20", "1.21", "1.27"]) {
        seeds::check(&format!("go-{version}"), &memory(layout, true), &ranges(), "");
    }
    let layout = &LAYOUTS[2];
    seeds::check("unlisted-go", &memory(layout, false), &ranges(), "");
    let bitmap = unswept(&LAYOUTS[0], SWEEP - 2, 0b101, [0, 0]);
    seeds::check("go-bitmap", &bitmap, &ranges(), "");
    let mut inline = unswept(layout, SWEEP - 2, 0, [0b101, 13]);
    seeds::check("go-green-tea", &inline, &ranges(), "");
    let by = 0x1234 << 28;
    let mut ranges = ranges();
    for range in ranges.iter_mut().filter(|range| range.start == HEAP) {
        (range.start, range.end) = (range.start + by, range.end + by);
    }
    for (at, piece) in &mut inline.pieces {
        for word in piece.as_chunks_mut::<8>().0 {
            let value = u64::from_le_bytes(*word);
            let is_inside = (HEAP..=HEAP + HEAP_BYTES).contains(&value);
            *word = (value + if is_inside { by } else { 0 }).to_le_bytes();
        }
        *at += if *at == HEAP { by } else { 0 };
    }
    seeds::check("go-random-base", &inline, &ranges, "");
}

/// Without the list, spans are found, and what is of none is unknown.
#[test]
fn without_the_list() {
    for layout in &LAYOUTS {
        let found = walk(&memory(layout, false)).expect("there is a heap");
        let heap = &found.heap;
        assert_eq!(heap.unknown_bytes, HEAP_BYTES - (COUNT + 6) * GO_PAGE, "{}", layout.versions);
        assert_eq!(heap.classes.len(), 3);
        assert!(found.notes[0].contains("list of spans"), "{:?}", found.notes);
    }
}

/// A layout of which one field is elsewhere is not read: all is unknown, or nothing is found.
#[test]
fn moved_fields() {
    for layout in &LAYOUTS {
        for (field, by) in (0..7).flat_map(|field| [(field, 8), (field, 16)]) {
            let moved = |one| if one == field { by } else { 0 };
            // Without the list, the collector's generation is not known.
            for is_listed in if field == 3 { vec![true] } else { vec![true, false] } {
                let Some(found) = walk(&memory_with(layout, is_listed, moved)) else { continue };
                let heap = &found.heap;
                let known = heap.mapped_bytes - heap.unknown_bytes;
                assert_eq!((known, heap.live_objects), (0, 0), "{} {field} {by}", layout.versions);
                assert!(found.notes[0].contains("no known layout"), "{:?}", found.notes);
            }
        }
    }
}

/// What the list has in other places is not taken for it.
#[test]
fn moved_list() {
    for word in 0..9 {
        let mut memory = memory(&LAYOUTS[2], true);
        let at = if word < 4 { RANGES + word * 8 } else { SLICE - 8 + (word - 4) * 8 };
        memory.put(at, &[3 << 40 | 5]);
        let Some(found) = walk(&memory) else { continue };
        assert!(found.heap.unknown_bytes > 0 && !found.notes.is_empty(), "{word}");
    }
}

/// Spans in use that are missing are unknown, and so is one that makes no sense.
#[test]
fn missing_spans() {
    let mut memory = memory(&LAYOUTS[2], true);
    memory.put(SPANS + 96, &[3 | 15 << 16 | 1 << 24]);
    let found = walk(&memory).expect("there is a heap");
    assert_eq!((found.heap.unknown_bytes, found.notes.len()), (GO_PAGE, 1));
    memory.put(SLICE + 24, &[COUNT + 14]);
    let found = walk(&memory).expect("there is a heap");
    assert_eq!(found.heap.unknown_bytes, 11 * GO_PAGE);
}

/// Descriptions in store were never touched; if some may be swapped out, they are unknown.
#[test]
fn untouched_descriptions() {
    let mut memory = memory(&LAYOUTS[2], true);
    let count = described(&LAYOUTS[2]).len() as u64;
    memory.absent.push(LIST + (12 << 10));
    memory.put(LIST + count * 8, &[LIST + (12 << 10), LIST + (12 << 10) + STEP]);
    memory.put(SLICE + 8, &[count + 2]);
    let unknown = |swap| {
        let mut ranges = ranges();
        ranges[3].swap = swap;
        let found = find(&Space::new(ranges, &memory), &Taken::default());
        found.expect("there is a heap").heap.unknown_bytes
    };
    assert_eq!((unknown(0), unknown(4096)), (0, 2 * GO_PAGE));
}

/// Where the tests have a bitmap of marks, and the span that it is of.
const BITMAP: u64 = LIST + (6 << 10);

/// A span of 64-byte objects without pointers, three in use, that is not swept, and what is marked of it.
fn unswept(layout: &Layout, sweep: u64, bitmap: u64, inline: [u64; 2]) -> Pieces {
    let mut memory = memory(layout, true);
    memory.put(SPANS + layout.sweep as u64, &[sweep]);
    memory.put(SPANS + layout.marks as u64, &[BITMAP]);
    memory.put(BITMAP, &[bitmap]);
    // The last byte is the class.
    memory.pieces.push((HEAP, vec![0; 32 * GO_PAGE as usize]));
    memory.put(HEAP + GO_PAGE - 64, &[inline[0]]);
    memory.put(HEAP + GO_PAGE - 8, &[inline[1] << 56]);
    memory
}

/// Live objects of the span that is not swept, and what is said.
fn live(memory: &Pieces) -> (u64, Vec<String>) {
    let found = walk(memory).expect("there is a heap");
    let class = found.heap.classes.iter().find(|class| class.size == 64).expect("the class");
    (class.objects - 3 * (COUNT - 1), found.notes)
}

/// Of spans that are not swept, what is marked is live.
#[test]
fn marked() {
    for layout in &LAYOUTS {
        // Marks of objects that the span does not have are none.
        let (bitmap, inline) = if layout.inline { (0, [0b101, 13]) } else { (0b101, [0, 0]) };
        for sweep in [SWEEP - 2, SWEEP - 1, SWEEP + 1] {
            let memory = unswept(layout, sweep, bitmap, inline);
            assert_eq!(live(&memory), (2, vec![]), "{} {sweep}", layout.versions);
        }
        for sweep in [SWEEP, SWEEP + 3] {
            let memory = unswept(layout, sweep, bitmap, inline);
            assert_eq!(live(&memory), (3, vec![]), "{} {sweep}", layout.versions);
        }
    }
}

/// Marks that the sweeper moves are found where they were, or where they are.
#[test]
fn moved_marks() {
    for (bitmap, inline) in [(0b11, 0), (0, 0b11), (0b11, 0b11)] {
        let memory = unswept(&LAYOUTS[2], SWEEP - 2, bitmap, [inline, 13]);
        assert_eq!(live(&memory), (2, vec![]));
    }
}

/// What cannot be marks is none: all objects count as live, and that is said.
#[test]
fn no_marks() {
    let said = |memory: &Pieces| {
        let (live, notes) = live(memory);
        assert!(live == 3 && notes.len() == 1 && notes[0].contains("(1 spans)"), "{notes:?}");
    };
    // More than are in use.
    said(&unswept(&LAYOUTS[0], SWEEP - 2, 0b1111, [0, 0]));
    said(&unswept(&LAYOUTS[2], SWEEP - 2, 0, [0b1111, 13]));
    // Marks of another class, and none yet of a span that is being swept.
    said(&unswept(&LAYOUTS[2], SWEEP - 2, 0, [0b1, 12]));
    said(&unswept(&LAYOUTS[2], SWEEP - 1, 0, [0, 13]));
    for by in [4, 3 << 40] {
        let mut memory = unswept(&LAYOUTS[0], SWEEP - 2, 0b1, [0, 0]);
        memory.put(SPANS + LAYOUTS[0].marks as u64, &[BITMAP + by]);
        said(&memory);
    }
    // Some spans have room for marks, others have not.
    let mut memory = unswept(&LAYOUTS[2], SWEEP - 2, 0, [0b1, 13]);
    memory.put(SPANS + STEP + 48, &[128 << 16]);
    memory.put(SPANS + STEP + 112, &[HEAP + GO_PAGE + 128 * 64]);
    said(&memory);
}

/// The last bitmap in memory ends where the memory does.
#[test]
fn last_bitmap() {
    let mut memory = unswept(&LAYOUTS[0], SWEEP - 2, 0, [0, 0]);
    memory.put(SPANS + LAYOUTS[0].marks as u64, &[LIST + LIST_BYTES - 16]);
    memory.put(LIST + LIST_BYTES - 16, &[0, 1 << 63]);
    assert_eq!(live(&memory), (1, vec![]));
}

/// A bitmap in store was never touched: nothing is marked. If some may be swapped out, that is not known.
#[test]
fn untouched_bitmap() {
    let layout = &LAYOUTS[0];
    let mut memory = unswept(layout, SWEEP - 2, 0, [0, 0]);
    memory.absent.push(LIST + (12 << 10));
    memory.put(SPANS + layout.marks as u64, &[LIST + (12 << 10)]);
    let used = |swap| {
        let mut ranges = ranges();
        ranges[3].swap = swap;
        let found = find(&Space::new(ranges, &memory), &Taken::default());
        found.expect("there is a heap").heap.live_objects
    };
    assert_eq!(used(4096) - used(0), 3);
}

/// A Go program without a heap that is known is named with its version.
#[test]
fn version() {
    let mut memory = Pieces::default();
    memory.pieces.push((DATA, vec![0; 8192]));
    memory.write(DATA, b"\xff Go buildinf:\x08\x02");
    memory.write(DATA + 32, b"\x08go1.99.1");
    let found = walk(&memory).expect("there is a note");
    assert_eq!(found.heap.mapped_bytes, 0);
    assert_eq!(found.notes, ["go: the heap of go1.99.1 was not found"]);
}

/// Memory that a stack pointer lies in is the heap's if it has spans, and no stack without proof.
#[test]
fn stacks_in_the_heap() {
    let memory = memory(&LAYOUTS[2], true);
    let mut ranges = ranges();
    let stack = 0x7f80_0000_0000;
    ranges.push(anonymous(stack, 8 << 10));
    let mut space = Space::new(ranges, &memory);
    let found = crate::heaps::heaps(&mut space, &[HEAP, stack]);
    assert_eq!((found.found.len(), found.stack_bytes), (1, 0));
}

proptest! {
    /// Descriptions with a field anywhere else: all is unknown, or nothing is found, or it is right.
    #[test]
    fn moved(
        layout in 0..LAYOUTS.len(),
        is_listed: bool,
        (field, words) in (0..7usize, 1..8u64),
    ) {
        let layout = &LAYOUTS[layout];
        let moved = |one| if one == field { words * 8 } else { 0 };
        let right = walk(&memory(layout, true)).map(|found| found.heap.live_objects);
        if let Some(Found { heap, notes, .. }) = walk(&memory_with(layout, is_listed, moved)) {
            let is_told = heap.unknown_bytes > 0 && !notes.is_empty();
            prop_assert!(is_told || Some(heap.live_objects) == right, "{heap:?} {notes:?}");
        }
    }

    /// Whatever stands there, spans do not overlap, the parts add up, and the census ends.
    #[test]
    fn hostile(
        layout in 0..LAYOUTS.len(),
        is_listed: bool,
        words in prop::collection::vec((0..5u64, 0..1024u64, any::<u64>(), 0..3u8), 0..60),
    ) {
        let mut memory = memory(&LAYOUTS[layout], is_listed);
        for (part, at, word, near) in words {
            let word = match near {
                0 => word,
                1 => HEAP + word % HEAP_BYTES / GO_PAGE * GO_PAGE,
                _ => word % 64,
            };
            let at = match part {
                0 => RANGES + at % 32 * 8,
                1 => LIST + at % 64 * 8,
                2 => RANGE + at % 4 * 8,
                _ => SPANS + at % 512 * 8,
            };
            memory.put(at, &[word]);
        }
        if let Some(Found { heap, held_bytes, .. }) = walk(&memory) {
            prop_assert!(heap.live_bytes + heap.unknown_bytes <= heap.mapped_bytes);
            prop_assert!(held_bytes <= heap.resident_bytes);
            prop_assert!(heap.mapped_bytes <= HEAP_BYTES + LIST_BYTES + 4096);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for layout in &LAYOUTS {
        crate::testing::cut_short(&ranges(), &memory(layout, true));
        crate::testing::cut_short(&ranges(), &memory(layout, false));
    }
}
