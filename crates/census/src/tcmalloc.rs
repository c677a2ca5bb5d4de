//! The spans of gperftools' tcmalloc (2.10), without symbols.
//!
//! A span is a run of pages of 8 KiB; its description of 48 bytes has the first page's number at 0, the number of pages
//! at 8, its neighbours in a list at 16 and 24, free objects at 32, and at 40 objects in use (16 bits), size class (8
//! bits), where it is (2 bits: 0 in use, 1 free, 2 free and given back). Sizes of classes are in a table in the
//! library's data, which is found by what it begins with. What validates: fewer objects are in use than fit just where
//! there are free ones, which lie in the span. Objects in caches count as live. Source: `src/span.h`, `src/common.h`.

use std::collections::BTreeMap;

use crate::{
    found::{Found, Taken, pieces},
    granules::{BySize, held},
    model::{Granules, Heap},
    space::{Range, RangeKind, Space, word_of},
};

/// Bits of an address within a page of tcmalloc.
const PAGE_BITS: u32 = 13;
/// Bytes of a description.
const SPAN: usize = 48;
/// Most classes, bytes of an object of the last one, and fewest that make a table.
const MAX_CLASSES: usize = 128;
const LARGEST: u64 = 256 << 10;
const FEWEST_CLASSES: usize = 40;
/// Most data that is searched for the table, and most memory for descriptions.
const MAX_DATA: u64 = 64 << 20;
const MAX_SEARCHED: u64 = 4 << 30;
/// Fewer spans than this may be chance.
const FEWEST: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    bytes: u64,
    size: u64,
    fit: u64,
    used: u64,
    is_free: bool,
}

type Spans = BTreeMap<u64, Span>;

/// Looks for spans; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let sizes = sizes(space)?;
    let (mut spans, mut left) = (Spans::new(), MAX_SEARCHED);
    for range in memory(space) {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            let descriptions = piece.windows(SPAN).step_by(8);
            spans.extend(descriptions.filter_map(|one| span(space, taken, one, &sizes)));
        });
    }
    if spans.len() < FEWEST {
        return None;
    }
    let mut found = sum(space, &without_overlaps(spans));
    if left == 0 {
        found.notes.push("tcmalloc: not all memory was searched for spans".to_owned());
    }
    Some(found)
}

/// Memory that tcmalloc has from the system, by `brk` too.
fn memory<'a>(space: &'a Space<'_>) -> impl Iterator<Item = &'a Range> {
    let kinds = [RangeKind::Heap, RangeKind::Anonymous];
    space.ranges.iter().filter(move |range| range.writable && kinds.contains(&range.kind))
}

/// The table of sizes by class.
fn sizes(space: &Space<'_>) -> Option<Vec<u64>> {
    let (mut table, mut left) = (None, MAX_DATA);
    for (index, range) in space.ranges.iter().enumerate() {
        // The data of an object, or what follows it without a file (.bss).
        let before = index.checked_sub(1).and_then(|before| space.ranges.get(before));
        let follows =
            before.is_some_and(|one| one.kind == RangeKind::File && one.end == range.start);
        let is_data =
            range.kind == RangeKind::File || (range.kind == RangeKind::Anonymous && follows);
        if !range.writable || !is_data {
            continue;
        }
        left -= pieces(space, (range.start, range.end), &Taken::default(), left, |piece| {
            let mut found = (0..piece.len()).step_by(4).filter_map(|at| sizes_at(&piece[at..]));
            table = table.take().or_else(|| found.next());
        });
        if table.is_some() {
            break;
        }
    }
    table
}

/// The table that begins here: 0, 8, 16, and then each one larger, in words of four or eight bytes.
fn sizes_at(bytes: &[u8]) -> Option<Vec<u64>> {
    let half =
        |at: usize| Some(u32::from_le_bytes(bytes.get(at * 4..at * 4 + 4)?.try_into().ok()?));
    // Of words of eight bytes, the upper halves are 0.
    let width = match (half(0)?, half(1)?, half(2)?, half(4)?) {
        (0, 8, 16, _) => 1,
        (0, 0, 8, 16) => 2,
        _ => return None,
    };
    let mut sizes = vec![0];
    while sizes.len() < MAX_CLASSES
        && let Some(size) = half(sizes.len() * width).map(u64::from)
        && size.is_multiple_of(8)
        && (sizes[sizes.len() - 1] + 1..=LARGEST).contains(&size)
    {
        sizes.push(size);
    }
    (sizes.len() >= FEWEST_CLASSES && sizes.last() == Some(&LARGEST)).then_some(sizes)
}

/// The span that a description is of; `None` where it makes no sense.
fn span(
    space: &Space<'_>,
    taken: &Taken,
    description: &[u8],
    sizes: &[u64],
) -> Option<(u64, Span)> {
    let word = |at| word_of(description, at);
    let (page, pages) = (word(0)?, word(8)?);
    if page == 0 || page >> (48 - PAGE_BITS) != 0 || pages == 0 || pages >> (48 - PAGE_BITS) != 0 {
        return None;
    }
    let (start, bytes) = (page << PAGE_BITS, pages << PAGE_BITS);
    let range = space.range_at(start)?;
    let is_heap = matches!(range.kind, RangeKind::Heap | RangeKind::Anonymous);
    if !is_heap || start + bytes > range.end || taken.end_of(start).is_some() {
        return None;
    }
    let (links, objects, bits) = ([word(16)?, word(24)?], word(32)?, word(40)?);
    let (used, class, location) = (bits & 0xffff, bits >> 16 & 0xff, bits >> 24 & 3);
    let is_link =
        |link: &u64| *link == 0 || (link.is_multiple_of(8) && space.range_at(*link).is_some());
    if !links.iter().all(is_link) {
        return None;
    }
    let all = Span { bytes, size: bytes, fit: 1, used: 1, is_free: false };
    let span = match (location, class) {
        (0, 0) => (links == [0, 0] && objects == 0 && used == 0).then_some(all)?,
        (0, class) => {
            let size = *sizes.get(usize::try_from(class).ok()?)?;
            let fit = bytes.checked_div(size)?;
            let is_inside =
                (start..start + bytes).contains(&objects) && (objects - start) % size == 0;
            let is_sane = used <= fit && if used < fit { is_inside } else { objects == 0 };
            is_sane.then_some(Span { size, fit, used, ..all })?
        }
        (1 | 2, 0) => (used == 0).then_some(Span { size: 0, used: 0, is_free: true, ..all })?,
        _ => return None,
    };
    Some((start, span))
}

/// Spans in ascending order; where two overlap, one is out of date: what is in use counts.
fn without_overlaps(spans: Spans) -> Vec<(u64, Span)> {
    let mut kept: Vec<(u64, Span)> = Vec::with_capacity(spans.len());
    for (start, span) in spans {
        match kept.last() {
            Some((before, other)) if before + other.bytes > start => {
                if other.is_free && !span.is_free {
                    kept.pop();
                    kept.push((start, span));
                }
            }
            _ => kept.push((start, span)),
        }
    }
    kept
}

fn sum(space: &Space<'_>, spans: &[(u64, Span)]) -> Found {
    let mut heap = Heap { allocator: "tcmalloc".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "span".to_owned(), ..Granules::default() };
    let (mut classes, mut partly, mut held_bytes) = (BySize::default(), Vec::new(), 0);
    for (start, span) in spans {
        let Span { bytes, size, fit, used, is_free } = *span;
        let resident = space.region(*start, start + bytes).present_bytes(*start, start + bytes);
        let live = used * size;
        heap.mapped_bytes += bytes;
        heap.resident_bytes += resident;
        heap.free_bytes += bytes.saturating_sub(live);
        heap.live_objects += used;
        heap.live_bytes += live;
        space.note_granule(&mut heap.map, *start, bytes, (used, live));
        if !is_free {
            classes.add(size, used, bytes);
        }
        held_bytes += if used > 0 { resident } else { 0 };
        match (used, fit) {
            (0, _) if resident > 0 => {
                (granules.empty, granules.empty_bytes) =
                    (granules.empty + 1, granules.empty_bytes + bytes);
            }
            (0, _) => {}
            (_, 1) => {
                (granules.full, granules.full_bytes) =
                    (granules.full + 1, granules.full_bytes + bytes);
            }
            _ => partly.push((used, bytes)),
        }
    }
    granules.held = held(partly.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    let taken = spans.iter().map(|(start, span)| (*start, start + span.bytes)).collect();
    let note = "tcmalloc: objects in the caches of threads and of size classes count as live";
    Found { heap, held_bytes, taken, notes: vec![note.to_owned()] }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        space::{Memory as _, PAGE},
        testing::{Pieces, anonymous},
    };

    const DATA: u64 = 0x7c00_0000_0000;
    const SPANS: u64 = 0x7e00_0000_0000;
    const HEAP: u64 = 0x5555_0000_0000;
    const COUNT: u64 = 10;
    const BYTES: u64 = 1 << PAGE_BITS;

    /// Spans of a page with 32-byte objects, of which five are in use, one that an object fills, one that is free.
    fn memory() -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((DATA, vec![0; PAGE as usize]));
        memory.pieces.push((SPANS, vec![0; PAGE as usize]));
        let sizes = [0, 8].into_iter().chain((1..44).map(|class| class * 16)).chain([LARGEST]);
        for (size, at) in sizes.zip((DATA + 0x100..).step_by(4)) {
            let mut word = [0; 8];
            assert!(memory.read(at / 8 * 8, &mut word));
            memory.put(at / 8 * 8, &[u64::from_le_bytes(word) | size << (at % 8 * 8)]);
        }
        let mut put = |number: u64, pages: u64, objects: u64, bits: u64| {
            let page = HEAP / BYTES + number;
            memory.put(SPANS + 8 + number * 48, &[page, pages, 0, 0, objects, bits]);
        };
        for number in 0..COUNT {
            put(number, 1, HEAP + number * BYTES + 64, 5 | 3 << 16);
        }
        put(COUNT, 2, 0, 0);
        put(COUNT + 2, 3, 0, 1 << 24);
        memory
    }

    fn ranges() -> Vec<Range> {
        let data = Range { kind: RangeKind::File, ..anonymous(DATA, PAGE) };
        let heap = Range { kind: RangeKind::Heap, ..anonymous(HEAP, 32 * BYTES) };
        vec![data, anonymous(SPANS, PAGE), heap]
    }

    /// Objects by size, what one object fills, what is free; a span without free objects that is not full is none.
    #[test]
    fn spans() {
        let mut memory = memory();
        let walk = |memory: &Pieces| {
            find(&Space::new(ranges(), memory), &Taken::default()).expect("there are spans").heap
        };
        let heap = walk(&memory);
        assert_eq!((heap.live_objects, heap.mapped_bytes), (5 * COUNT + 1, (COUNT + 5) * BYTES));
        assert_eq!(heap.live_bytes, COUNT * 5 * 32 + 2 * BYTES);
        assert_eq!((heap.granules.full, heap.granules.empty_bytes), (1, 3 * BYTES));
        assert_eq!(heap.granules.held[0].granules, COUNT);
        memory.put(SPANS + 8 + 32, &[0]);
        assert_eq!(walk(&memory).live_objects, 5 * COUNT - 4);
        memory.put(DATA + 0x100, &[0]);
        assert!(find(&Space::new(ranges(), &memory), &Taken::default()).is_none(), "no table");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever the descriptions say, spans do not overlap, and the census ends.
        #[test]
        fn hostile(words in prop::collection::vec((0..512u64, any::<u64>(), 0..3u8), 0..60)) {
            let mut memory = memory();
            for (at, word, kind) in words {
                let word = match kind { 0 => word, 1 => HEAP / BYTES + word % 32, _ => word % 64 };
                memory.put(SPANS + at * 8, &[word]);
            }
            if let Some(found) = find(&Space::new(ranges(), &memory), &Taken::default()) {
                prop_assert!(found.heap.mapped_bytes <= 33 * BYTES);
                prop_assert!(found.heap.live_bytes <= found.heap.mapped_bytes);
            }
        }
    }
}
