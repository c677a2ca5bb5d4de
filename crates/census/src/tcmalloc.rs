//! The spans of gperftools' tcmalloc (2.10 to 2.18), without symbols.
//!
//! A span is a run of pages of 8 KiB; its description of 48 bytes has the first page's number at 0, the number of pages
//! at 8, its neighbours in a list at 16 and 24, free objects at 32, and at 40 objects in use (16 bits), size class (8
//! bits), where it is (2 bits: 0 in use, 1 free, 2 free and given back). Sizes of classes are in a table in the
//! library's data, which is found by what it begins with. What validates: fewer objects are in use than fit just where
//! there are free ones, which lie in the span. A span without a class is one object; what its word at 32 says is out of
//! date. The map of pages says which spans there are, and completeness is proven from it: an entry that no valid span
//! accounts for is unknown. Without a map, descriptions are searched for in all memory. A thread's cache has 32 bytes for
//! each class: a list at 0, its length at 8, the class's size at 24; and behind 128 of these, the bytes of all of them:
//! what adds up is a cache. Objects in caches of size classes count as live. Source: `src/span.h`, `src/common.h`,
//! `src/pagemap.h`, `src/thread_cache.h`.

use std::collections::{BTreeMap, HashMap};

use crate::{
    found::{Found, Taken, pieces, pieces_at},
    granules::{BySize, held},
    model::{Granules, Heap},
    radix::{self, Shape},
    space::{Range, RangeKind, Space, word_of},
};

/// Bits of an address within a page of tcmalloc.
const PAGE_BITS: u32 = 13;
/// The map of pages.
const MAP: Shape = Shape { levels: &[17, 18], entry: 8, alignment: 8 };
/// Bytes of a description.
const SPAN: usize = 48;
/// Most classes, bytes of an object of the last one, and fewest that make a table.
const MAX_CLASSES: usize = 128;
const LARGEST: u64 = 256 << 10;
const FEWEST_CLASSES: usize = 40;
/// Most data that is searched for the table, and most memory for descriptions.
const MAX_DATA: u64 = 64 << 20;
const MAX_SEARCHED: u64 = 4 << 30;
/// Spans by which the map is looked for.
const SOME: usize = 16;
/// Fewer spans than this may be chance.
const FEWEST: usize = 8;

/// Bytes of a class in a thread's cache, of all of them, and of what follows that is read.
const LIST: usize = 32;
const LISTS: usize = MAX_CLASSES * LIST;
const CACHE: usize = LISTS + 8;

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
    let mut notes = Vec::new();
    let (spans, unknown) = match mapped(space, taken, &sizes, &mut notes) {
        Some(found) => found,
        None => searched(space, taken, &sizes, &mut notes)?,
    };
    let mut taken = taken.clone();
    taken.add(spans.iter().map(|(start, span)| (*start, start + span.bytes)));
    taken.add(unknown.iter().copied());
    let cached = caches(space, &taken, &sizes);
    let mut found = sum(space, &spans, &unknown, &cached);
    found.notes.append(&mut notes);
    Some(found)
}

/// Spans in ascending order, and the stretches that should be spans, and are none.
type Known = (Vec<(u64, Span)>, Vec<(u64, u64)>);

/// What the map of pages lists.
fn mapped(
    space: &Space<'_>,
    taken: &Taken,
    sizes: &[u64],
    notes: &mut Vec<String>,
) -> Option<Known> {
    let described = |at: u64| {
        let bytes: [u8; SPAN] = space.read_each(&[at])[..].first().copied().flatten()?;
        span(space, taken, &bytes, sizes)
    };
    let known = some(space, taken, sizes);
    let listed = radix::find(space, &MAP, &known, |word, description| word == description)?;
    let entries = &listed.entries;
    if !listed.is_whole {
        notes.push("tcmalloc: its map lists more pages than were read".to_owned());
    }
    let at = |page: u64| {
        let index = entries.binary_search_by_key(&page, |(page, _)| *page).ok()?;
        Some(entries[index].1)
    };
    let (mut known, mut tried) = (Spans::new(), HashMap::new());
    for (_, description) in entries {
        tried.entry(*description).or_insert_with(|| {
            let (start, span) = described(*description)?;
            let (first, pages) = (start >> PAGE_BITS, span.bytes >> PAGE_BITS);
            // What the map does not lead back to, is out of date.
            let is_listed =
                [first, first + pages - 1].iter().all(|page| at(*page) == Some(*description));
            is_listed.then(|| known.insert(start, span))
        });
    }
    let spans = without_overlaps(known);
    (spans.len() >= FEWEST).then(|| {
        let known = spans.iter().map(|(start, span)| (*start, start + span.bytes));
        let unknown = radix::unlisted(space, taken, known, &listed, PAGE_BITS);
        (spans, unknown)
    })
}

/// A few spans with objects of a class, each by its first page and its description.
fn some(space: &Space<'_>, taken: &Taken, sizes: &[u64]) -> Vec<(u64, u64)> {
    let (mut found, mut left) = (Vec::new(), MAX_SEARCHED);
    for range in memory(space) {
        left -= pieces_at(space, (range.start, range.end), taken, left, |at, piece| {
            for (one, at) in piece.windows(SPAN).step_by(8).zip((at..).step_by(8)) {
                let is_room = found.len() < SOME * SOME;
                let known = if is_room { span(space, taken, one, sizes) } else { None };
                if let Some((start, _)) = known.filter(|(_, span)| span.fit > 1) {
                    found.push((start >> PAGE_BITS, at));
                }
            }
        });
        if found.len() >= SOME * SOME {
            break;
        }
    }
    // From all of them: some may be out of date.
    let every = found.len().div_ceil(SOME).max(1);
    found.into_iter().step_by(every).collect()
}

/// What is found where all memory is searched for descriptions.
fn searched(
    space: &Space<'_>,
    taken: &Taken,
    sizes: &[u64],
    notes: &mut Vec<String>,
) -> Option<Known> {
    let (mut spans, mut left) = (Spans::new(), MAX_SEARCHED);
    for range in memory(space) {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            let descriptions = piece.windows(SPAN).step_by(8);
            spans.extend(descriptions.filter_map(|one| span(space, taken, one, sizes)));
        });
    }
    if spans.len() < FEWEST {
        return None;
    }
    if left == 0 {
        notes.push("tcmalloc: not all memory was searched for spans".to_owned());
    }
    let spans = without_overlaps(spans);
    let mut unknown = Vec::new();
    // What lies between spans of one mapping, may be spans that were not found.
    for pair in spans.windows(2) {
        let [(first, one), (second, _)] = pair else { continue };
        let end = first + one.bytes;
        let is_one = space.range_at(*first).is_some_and(|range| *second < range.end);
        if is_one && end < *second && !taken.meets(end, *second) {
            unknown.push((end, *second));
        }
    }
    notes.push("tcmalloc: its map of pages was not found: spans may be missing".to_owned());
    Some((spans, unknown))
}

/// Objects in the caches of threads, by size.
fn caches(space: &Space<'_>, taken: &Taken, sizes: &[u64]) -> BTreeMap<u64, u64> {
    let (mut cached, mut left) = (BTreeMap::new(), MAX_DATA);
    for range in memory(space) {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            for one in piece.windows(CACHE).step_by(8) {
                for (size, count) in cache(one, sizes).unwrap_or_default() {
                    *cached.entry(size).or_default() += count;
                }
            }
        });
    }
    cached
}

/// What a cache holds, by size; `None` where it is none.
fn cache(bytes: &[u8], sizes: &[u64]) -> Option<Vec<(u64, u64)>> {
    let half =
        |at: usize| Some(u64::from(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?)));
    let mut held = Vec::new();
    for (class, size) in sizes.iter().enumerate().skip(1) {
        let at = class * LIST;
        if half(at + 24)? != *size {
            return None;
        }
        let count = half(at + 8)?;
        ((word_of(bytes, at)? == 0) == (count == 0)).then_some(())?;
        held.push((*size, count));
    }
    let all: u64 = held.iter().map(|(size, count)| size * count).sum();
    (half(LISTS)? == all).then_some(held)
}

fn is_heap(range: &Range) -> bool {
    range.writable && matches!(range.kind, RangeKind::Heap | RangeKind::Anonymous)
}

/// Memory that tcmalloc has from the system, by `brk` too.
fn memory<'a>(space: &'a Space<'_>) -> impl Iterator<Item = &'a Range> {
    space.ranges.iter().filter(|range| is_heap(range))
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
        (0, 0) => (links == [0, 0] && used == 0).then_some(all)?,
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

fn sum(
    space: &Space<'_>,
    spans: &[(u64, Span)],
    unknown: &[(u64, u64)],
    cached: &BTreeMap<u64, u64>,
) -> Found {
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
    let mut notes = Vec::new();
    for (start, end) in unknown {
        let resident = space.region(*start, *end).present_bytes(*start, *end);
        heap.mapped_bytes += end - start;
        heap.resident_bytes += resident;
        heap.unknown_bytes += resident;
    }
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes.push(format!("tcmalloc: {kib} KiB should be spans, and make no sense: not counted"));
    }
    granules.held = held(partly.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    for class in &mut heap.classes {
        let count = cached.get(&class.size).copied().unwrap_or_default().min(class.objects);
        let bytes = count * class.size;
        class.objects -= count;
        class.bytes -= bytes;
        heap.live_objects -= count;
        heap.live_bytes -= bytes;
        heap.cached_bytes += bytes;
    }
    let taken = spans.iter().map(|(start, span)| (*start, start + span.bytes));
    let taken = taken.chain(unknown.iter().copied()).collect();
    notes.push("tcmalloc: objects in the caches of size classes count as live".to_owned());
    Found { heap, held_bytes, taken, notes }
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
