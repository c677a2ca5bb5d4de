//! The spans of Go's heap (1.16 and later), without symbols.
//!
//! A span is a run of pages of 8 KiB with objects of one size; its description lies outside of the heap: the first
//! address at 24, the number of pages at 32, and in its `TAILS` objects in use (16 bits), class (8 bits, twice the size
//! class, 1 more without pointers), state (8 bits: 1 in use, 2 by hand: stacks), then the size of an object and the end
//! of the last one. What validates: the size is that of the class, objects fill the run, no more are in use than fit.
//! Objects that the collector has not swept yet count as live. Source: `runtime/mheap.go` and `sizeclasses.go`.

use std::collections::BTreeMap;

use crate::{
    found::{Found, Taken, pieces},
    granules::{BySize, held},
    model::{Granules, Heap, Type},
    space::{Range, RangeKind, Space, word_of},
};

/// Bytes of a page of Go.
const GO_PAGE: u64 = 8 << 10;
/// The places of the tail: 1.16 to 1.19 and 1.22 on, 1.20, 1.21, and what later ones may have.
const TAILS: [usize; 4] = [96, 104, 112, 120];
const TAIL_BYTES: usize = 24;
/// The heap begins where this remains of an address, unless something else is mapped there.
const ARENA: u64 = 0xc0 << 32;
const ARENA_MASK: u64 = (1 << 40) - 1;
/// Most memory that is searched for descriptions, and a span's most pages.
const MAX_SEARCHED: u64 = 1 << 30;
const MAX_PAGES: u64 = 1 << 27;
/// Mappings that a span lies in, at most: huge pages are advised of parts.
const MAX_MAPPINGS: usize = 64;
/// Fewer spans than this may be chance.
const FEWEST: usize = 8;
/// What spans by hand are for.
const BY_HAND: &str = "(stacks and the runtime)";
/// Bytes of an object by size class.
const SIZES: [u64; 68] = [
    0, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256, 288, 320,
    352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792,
    2048, 2304, 2688, 3072, 3200, 3456, 4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728,
    10240, 10880, 12288, 13568, 14336, 16384, 18432, 19072, 20480, 21760, 24576, 27264, 28672,
    32768,
];

/// A span, by hand where an object has no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    bytes: u64,
    size: u64,
    fit: u64,
    used: u64,
}

type Spans = BTreeMap<u64, Span>;

/// Looks for spans; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let is_arena = |range: &&Range| range.start & ARENA_MASK == ARENA;
    space.anonymous().find(is_arena)?;
    let mut spans = TAILS.map(|_| Spans::new());
    let mut searched = 0;
    for range in space.anonymous().filter(|range| !is_arena(range)) {
        let bounds = (range.start, range.end);
        searched += pieces(space, bounds, taken, MAX_SEARCHED - searched, |piece| {
            for description in (0..piece.len()).step_by(8).map(|at| &piece[at..]) {
                collect(space, description, &mut spans);
            }
        });
    }
    let spans = spans.into_iter().max_by_key(Spans::len).filter(|spans| spans.len() >= FEWEST)?;
    let mut found = sum(space, taken, without_overlaps(spans));
    if searched >= MAX_SEARCHED {
        found.notes.push("go: not all memory was searched for spans".to_owned());
    }
    Some(found)
}

/// Takes the span of a description, for each place that its tail can have.
fn collect(space: &Space<'_>, description: &[u8], spans: &mut [Spans; TAILS.len()]) {
    let word = |at| word_of(description, at).unwrap_or_default();
    let (start, pages) = (word(24), word(32));
    // Most words are neither, and it costs least to say so.
    if start == 0 || !start.is_multiple_of(GO_PAGE) || !(1..MAX_PAGES).contains(&pages) {
        return;
    }
    for (tail, spans) in TAILS.iter().zip(spans) {
        spans.extend(span(space, description, *tail).map(|span| (start, span)));
    }
}

/// The span that a description with this tail is of; `None` where it makes no sense.
fn span(space: &Space<'_>, description: &[u8], tail: usize) -> Option<Span> {
    let (start, pages) = (word_of(description, 24)?, word_of(description, 32)?);
    let tail = description.get(tail..tail + TAIL_BYTES)?;
    let (counts, size, limit) = (word_of(tail, 0)?, word_of(tail, 8)?, word_of(tail, 16)?);
    let (used, class, state) = (counts & 0xffff, counts >> 16 & 0xff, counts >> 24 & 0xff);
    let bytes = pages.checked_mul(GO_PAGE)?;
    let end = start.checked_add(bytes)?;
    if limit <= start || limit > end || !is_heap(space, start, end) {
        return None;
    }
    match (state, class >> 1) {
        (2, _) => (limit == end).then_some(Span { bytes, size: 0, fit: 1, used: 1 }),
        (1, 0) => (size == bytes && used <= 1 && end - limit < GO_PAGE).then_some(Span {
            bytes,
            size,
            fit: 1,
            used,
        }),
        (1, class) => {
            let is_size = SIZES.get(usize::try_from(class).ok()?) == Some(&size);
            let fit = (limit - start).checked_div(size)?;
            // From 1.22 on a bitmap may follow the objects: a bit for each word.
            let is_full = end - limit < size + bytes / 64 && fit * size == limit - start;
            (is_size && is_full && used <= fit).then_some(Span { bytes, size, fit, used })
        }
        _ => None,
    }
}

/// Whether anonymous memory lies there, in mappings that touch each other. Untouched ones count.
fn is_heap(space: &Space<'_>, start: u64, end: u64) -> bool {
    let mut at = start;
    for _ in 0..MAX_MAPPINGS {
        match space.range_at(at) {
            Some(range) if range.kind == RangeKind::Anonymous => at = range.end,
            _ => return false,
        }
        if at >= end {
            return true;
        }
    }
    false
}

/// Spans in ascending order; of two that overlap, the first.
fn without_overlaps(spans: Spans) -> Vec<(u64, Span)> {
    let mut kept: Vec<(u64, Span)> = Vec::with_capacity(spans.len());
    for (start, span) in spans {
        if kept.last().is_none_or(|(before, other)| before + other.bytes <= start) {
            kept.push((start, span));
        }
    }
    kept
}

fn sum(space: &Space<'_>, taken: &Taken, spans: Vec<(u64, Span)>) -> Found {
    let mut heap = Heap { allocator: "go".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "span".to_owned(), ..Granules::default() };
    let (mut classes, mut by_hand) = (BySize::default(), Type::default());
    let (mut partly, mut held_bytes) = (Vec::new(), 0);
    let (mut ranges, mut spans) = (Vec::new(), spans.into_iter().peekable());
    let anonymous = space.ranges.iter().filter(|range| range.kind == RangeKind::Anonymous);
    for range in anonymous.filter(|range| taken.end_of(range.start).is_none()) {
        let (first, end) = (range.start, range.end);
        if spans.peek().is_none_or(|(start, _)| *start >= end) {
            continue;
        }
        ranges.push((first, end));
        let region = space.region(first, end);
        heap.mapped_bytes += end - first;
        heap.resident_bytes += region.present_bytes(first, end);
        while let Some((start, span)) = spans.next_if(|(start, _)| *start < end) {
            let Span { bytes, size, fit, used } = span;
            let resident = region.present_bytes(start, (start + bytes).min(end));
            held_bytes += if used > 0 { resident } else { 0 };
            let live = if size == 0 { bytes } else { used * size };
            heap.live_objects += used;
            heap.live_bytes += live;
            space.note_granule(&mut heap.map, start, bytes, (used, live));
            if size == 0 {
                by_hand.objects += 1;
                by_hand.bytes += bytes;
            } else {
                classes.add(size, used, bytes);
            }
            match (used, fit) {
                (0, _) => {
                    (granules.empty, granules.empty_bytes) =
                        (granules.empty + 1, granules.empty_bytes + bytes);
                }
                (_, 1) => {
                    (granules.full, granules.full_bytes) =
                        (granules.full + 1, granules.full_bytes + bytes);
                }
                _ => partly.push((used, bytes)),
            }
        }
    }
    if by_hand.objects > 0 {
        let (spans, bytes) = (by_hand.objects, by_hand.bytes);
        let name = BY_HAND.to_owned();
        let by_hand =
            Type { name, arenas: spans, arenas_alone: spans, alone_bytes: bytes, ..by_hand };
        heap.types.push(by_hand);
    }
    heap.free_bytes = heap.mapped_bytes.saturating_sub(heap.live_bytes);
    granules.held = held(partly.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    let note = "go: objects that the collector has not swept yet count as live";
    Found { heap, held_bytes, taken: ranges, notes: vec![note.to_owned()] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Pieces, anonymous};

    const SPANS: u64 = 0x7f00_0000_0000;
    const COUNT: u64 = 10;

    /// Spans of a page with 64-byte objects, of which three are live, one of two pages that one object fills, and a
    /// stack; their descriptions have a tail at 104.
    fn memory() -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((SPANS, vec![0; 8 << 10]));
        let mut put = |number: u64, page: u64, pages: u64, counts: u64, size: u64| {
            let (at, start) = (SPANS + 8 + number * 160, ARENA + page * GO_PAGE);
            memory.put(at + 24, &[start, pages]);
            memory.put(at + 104, &[counts, size, start + pages * GO_PAGE]);
        };
        (0..COUNT).for_each(|number| put(number, number, 1, 3 | 13 << 16 | 1 << 24, 64));
        put(COUNT, COUNT, 2, 1 | 1 << 16 | 1 << 24, 2 * GO_PAGE);
        put(COUNT + 1, COUNT + 2, 1, 2 << 24, 77);
        memory
    }

    fn ranges() -> Vec<Range> {
        vec![anonymous(ARENA, 4 << 20), anonymous(SPANS, 8 << 10)]
    }

    /// Objects by size, what one object fills, stacks apart; a class that does not have the size is no span.
    #[test]
    fn spans() {
        let mut memory = memory();
        let walk = |memory: &Pieces| {
            find(&Space::new(ranges(), memory), &Taken::default()).expect("there are spans").heap
        };
        let heap = walk(&memory);
        assert_eq!((heap.live_objects, heap.mapped_bytes), (3 * COUNT + 2, 4 << 20));
        assert_eq!(heap.live_bytes, COUNT * 3 * 64 + 3 * GO_PAGE);
        assert_eq!((heap.granules.full, heap.granules.held[0].granules), (2, COUNT));
        assert_eq!((heap.types[0].objects, heap.types[0].bytes), (1, GO_PAGE));
        let class = heap.classes.iter().find(|class| class.size == 64).expect("the class");
        assert_eq!((class.objects, class.granules), (3 * COUNT, Some(COUNT)));
        memory.put(SPANS + 8 + 104, &[3 | 15 << 16 | 1 << 24]);
        assert_eq!(walk(&memory).live_objects, 3 * COUNT - 1);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever the descriptions say, spans do not overlap, and the census ends.
        #[test]
        fn hostile(words in prop::collection::vec((0..1024u64, any::<u64>(), any::<bool>()), 0..60)) {
            let mut memory = memory();
            for (at, word, near) in words {
                let word = if near { ARENA + word % (4 << 20) / GO_PAGE * GO_PAGE } else { word };
                memory.put(SPANS + at * 8, &[word]);
            }
            if let Some(found) = find(&Space::new(ranges(), &memory), &Taken::default()) {
                prop_assert!(found.heap.live_bytes <= found.heap.mapped_bytes);
            }
        }
    }
}
