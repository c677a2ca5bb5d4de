//! The segments and pages of mimalloc 2.0.9, without symbols.
//!
//! A segment is aligned to 32 MiB and describes itself: pages in use, a cookie, its slices of 64 KiB, those of its own
//! header, its kind, the slices that are described, its thread, and an array with 80 bytes for each slice. A page has
//! there its number of slices at 0, its capacity at 10, the blocks that fit at 12, blocks in use at 24, their size at
//! 28, and at 40 a list of blocks that other threads have freed. Where the array begins, is found by what validates:
//! slices that follow each other to the segment's end, and as many pages as the segment says. Of a page, the first
//! block that another thread frees may wait in a list of the heap, and counts as live. Source: `types.h`, `segment.c`.

use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Granules, Heap},
    space::{Region, Space, word_of},
};

/// What segments are aligned to, and bytes of a slice.
const SEGMENT: u64 = 32 << 20;
const SLICE: u64 = 64 << 10;
/// Slices that a segment describes, at most, and those of one block.
const MAX_ENTRIES: u64 = 512;
const MAX_SLICES: u64 = 1 << 24;
/// Bytes of a slice's description.
const ENTRY: u64 = 80;
/// Where the array of slices can begin.
const ARRAYS: std::ops::Range<u64> = 160..400;
/// Blocks that other threads have freed, of which so many are counted.
const MAX_FREED: u64 = 1 << 22;
const SEGMENT_HEADER: u64 = 400 + (MAX_ENTRIES + 1) * ENTRY;

/// A page with blocks of one size.
struct MiPage {
    address: u64,
    bytes: u64,
    /// Bytes of a block, blocks that fit, and those in use.
    size: u64,
    reserved: u64,
    used: u64,
    /// The first block that another thread has freed.
    freed: u64,
}

/// A segment, with its pages and the stretches that are free.
struct Segment {
    address: u64,
    bytes: u64,
    pages: Vec<MiPage>,
    free: Vec<(u64, u64)>,
}

/// Looks for segments in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut segments: Vec<Segment> = Vec::new();
    for range in space.anonymous() {
        let region = space.region(range.start, range.end);
        let mut at = range.start.next_multiple_of(SEGMENT);
        while at < range.end {
            // What a segment says of itself is in its first page.
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(SEGMENT);
                continue;
            }
            let found = if taken.end_of(at).is_none() { segment(space, at) } else { None };
            let next = found.as_ref().map_or(SEGMENT, |one| one.bytes.next_multiple_of(SEGMENT));
            segments.extend(found);
            at = at.saturating_add(next);
        }
    }
    (!segments.is_empty()).then(|| sum(space, &segments))
}

/// The segment at an address; `None` where there is none.
fn segment(space: &Space<'_>, address: u64) -> Option<Segment> {
    let mut region = space.region(address, address.checked_add(SEGMENT_HEADER)?);
    // Descriptions of slices that were never used are not present: they are zero.
    let header = read(&mut region, address);
    ARRAYS.step_by(8).find_map(|array| {
        let word = |back: u64| word_of(&header, (array - back) as usize);
        let (used, slices, own, kind) = (word(56)?, word(40)?, word(32)?, word(24)?);
        let entries = word(16)?;
        let is_sane = (1..=MAX_ENTRIES).contains(&entries)
            && (entries..MAX_SLICES).contains(&slices)
            && (kind == 1 || slices == entries)
            && kind <= 1
            && (1..=entries).contains(&own)
            && word(48)? != 0
            && used <= entries;
        let end = address.checked_add(slices.checked_mul(SLICE)?)?;
        let is_mapped = || space.range_at(end - 1).is_some_and(|range| range.writable);
        if !is_sane || !is_mapped() {
            return None;
        }
        let segment = slices_of(&header[array as usize..], address, (slices, entries, own))?;
        (segment.pages.len() as u64 == used).then_some(segment)
    })
}

/// The header of a segment, as far as it is present.
fn read(region: &mut Region<'_>, address: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(SEGMENT_HEADER as usize);
    for at in (address..address + SEGMENT_HEADER).step_by(8) {
        header.extend(region.word(at).unwrap_or_default().to_le_bytes());
    }
    header
}

/// The pages of a segment, from the descriptions of its slices, of which the first are its own.
fn slices_of(
    array: &[u8],
    address: u64,
    (slices, entries, own): (u64, u64, u64),
) -> Option<Segment> {
    let (mut pages, mut free, mut slice) = (Vec::new(), Vec::new(), 0);
    while slice < entries {
        let word = |offset| word_of(array, (slice * ENTRY) as usize + offset);
        let (counts, blocks, sizes) = (word(0)?, word(8)?, word(24)?);
        let count = counts & 0xffff_ffff;
        if count == 0 || counts >> 32 != 0 || slice + count > slices {
            return None;
        }
        let (capacity, reserved) = (blocks >> 16 & 0xffff, blocks >> 32 & 0xffff);
        let (used, size) = (sizes & 0xffff_ffff, sizes >> 32);
        let (at, bytes) = (address + slice * SLICE, count * SLICE);
        if slice == 0 {
            (count == own).then_some(())?;
        } else if size == 0 {
            (used == 0).then_some(())?;
            free.push((at, at + bytes));
        } else {
            // What is larger than 32 bits can say, fills its page.
            let size = if reserved == 1 && size >= u64::from(u32::MAX) >> 1 { bytes } else { size };
            let is_page = used <= capacity
                && capacity <= reserved
                && reserved.checked_mul(size).is_some_and(|all| all <= bytes);
            is_page.then_some(())?;
            pages.push(MiPage { address: at, bytes, size, reserved, used, freed: word(40)? & !3 });
        }
        slice += count;
    }
    (slice == slices).then_some(Segment { address, bytes: slices * SLICE, pages, free })
}

/// Blocks of a page that other threads have freed and its own thread has not taken back yet.
fn freed(space: &Space<'_>, page: &MiPage, steps: &mut u64) -> u64 {
    let (mut count, mut block) = (0, page.freed);
    if block == 0 {
        return 0;
    }
    let region = space.region(page.address, page.address + page.bytes);
    while block != 0 && count < page.used && *steps > 0 {
        let is_inside = (page.address..page.address + page.bytes - 8).contains(&block);
        if !is_inside || !region.is_present(block) {
            break;
        }
        (count, *steps) = (count + 1, *steps - 1);
        block = space.word(block).unwrap_or_default();
    }
    count
}

fn sum(space: &Space<'_>, segments: &[Segment]) -> Found {
    let mut heap = Heap { allocator: "mimalloc".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "mimalloc page".to_owned(), ..Granules::default() };
    let (mut classes, mut held_bytes, mut steps) = (BySize::default(), 0, MAX_FREED);
    let mut partly = Vec::new();
    for segment in segments {
        let region = space.region(segment.address, segment.address + segment.bytes);
        heap.mapped_bytes += segment.bytes;
        heap.resident_bytes +=
            region.present_bytes(segment.address, segment.address + segment.bytes);
        for (start, end) in &segment.free {
            let resident = region.present_bytes(*start, *end);
            granules.empty += u64::from(resident > 0);
            granules.empty_bytes += if resident > 0 { end - start } else { 0 };
        }
        for page in &segment.pages {
            let cached = freed(space, page, &mut steps);
            let live = page.used - cached;
            heap.live_objects += live;
            heap.live_bytes += live * page.size;
            heap.cached_bytes += cached * page.size;
            classes.add(page.size, live, page.bytes);
            let used = (live, live * page.size);
            space.note_granule(&mut heap.map, page.address, page.bytes, used);
            if page.used > 0 {
                held_bytes += region.present_bytes(page.address, page.address + page.bytes);
            }
            match (page.used, page.reserved) {
                (0, _) => {
                    (granules.empty, granules.empty_bytes) =
                        (granules.empty + 1, granules.empty_bytes + page.bytes);
                }
                (_, 1) => {
                    (granules.full, granules.full_bytes) =
                        (granules.full + 1, granules.full_bytes + page.bytes);
                }
                _ => partly.push((page.used, page.bytes)),
            }
        }
    }
    heap.free_bytes = heap.mapped_bytes.saturating_sub(heap.live_bytes + heap.cached_bytes);
    granules.held = held(partly.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    let taken =
        segments.iter().map(|segment| (segment.address, segment.address + segment.bytes)).collect();
    Found { heap, held_bytes, taken, notes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Pieces, anonymous};

    const BASE: u64 = 0x7f00_0000_0000;
    /// Where the array begins in 2.0.9.
    const ARRAY: u64 = 264;

    fn slice(memory: &mut Pieces, at: u64, count: u64, [capacity, reserved, used, size]: [u64; 4]) {
        let entry = BASE + ARRAY + at * ENTRY;
        memory.put(entry, &[count, capacity << 16 | reserved << 32, 0, used | size << 32, 0, 0]);
    }

    /// A page of 64-byte blocks with three in use, an empty one, a block that has a page to itself, and a free rest.
    fn memory() -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((BASE, vec![0; 256 << 10]));
        memory.put(BASE + ARRAY - 56, &[3, 0xc00_c1e, 512, 1, 0, 512, 42]);
        slice(&mut memory, 0, 1, [0, 0, 0, 0x10000]);
        slice(&mut memory, 1, 1, [1000, 1024, 3, 64]);
        slice(&mut memory, 2, 1, [16, 1024, 0, 64]);
        slice(&mut memory, 3, 2, [1, 1, 1, 100_000]);
        slice(&mut memory, 5, 507, [0; 4]);
        memory
    }

    fn found(memory: &Pieces) -> Option<Heap> {
        let space = Space::new(vec![anonymous(BASE, SEGMENT)], memory);
        find(&space, &Taken::default()).map(|found| found.heap)
    }

    /// Blocks in use by size; a list of freed ones is taken off.
    #[test]
    fn pages() {
        let mut memory = memory();
        let heap = found(&memory).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.live_bytes), (4, 3 * 64 + 100_000));
        assert_eq!((heap.granules.full, heap.granules.held[0].objects_max), (1, Some(4)));
        assert_eq!(heap.mapped_bytes, SEGMENT);
        // Two of the three were freed by another thread.
        let block = BASE + SLICE + 128;
        memory.put(BASE + ARRAY + ENTRY + 40, &[block | 1]);
        memory.put(block, &[block + 64, 0, 0, 0, 0, 0, 0, 0, 0]);
        let heap = found(&memory).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.cached_bytes), (2, 128));
        // One page less than the segment says.
        memory.put(BASE + ARRAY - 56, &[4]);
        assert!(found(&memory).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever the structures say, lists in circles included, the census ends and counts no more than there is.
        #[test]
        fn hostile(words in prop::collection::vec((0..8192u64, any::<u64>(), any::<bool>()), 0..40)) {
            let mut memory = memory();
            for (at, word, near) in words {
                let at = if near { at % 60 + (ARRAY - 56) / 8 } else { at };
                memory.put(BASE + at * 8, &[if near { word % 1024 } else { BASE + word % (256 << 10) }]);
            }
            if let Some(heap) = found(&memory) {
                prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
            }
        }
    }
}
