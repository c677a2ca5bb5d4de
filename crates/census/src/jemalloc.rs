//! The slabs and large objects of jemalloc 5.3, without symbols.
//!
//! Each extent has an `edata` of 128 bytes in anonymous memory: bits at 0 (arena 12, slab at bit 12, state 3 at bit 17,
//! size index 8 at bit 20, free regions 10 at bit 28), address at 8, size at 16, for slabs a bitmap of free regions at
//! 64. A slab's free regions are counted twice, in the bits and in the bitmap: only what agrees is a slab. Regions in
//! threads' caches count as live. Source: `include/jemalloc/internal/edata.h` and `sc.h` of jemalloc 5.3.

use std::collections::BTreeMap;

use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Arena, Granules, Heap},
    space::{PAGE, RangeKind, Space, word_of},
};

/// Bytes of an `edata`, and its alignment.
const EDATA: usize = 128;
/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// Most memory that is searched.
const MAX_SEARCHED: u64 = 4 << 30;
/// A slab has at most so many regions.
const MAX_REGIONS: u64 = 512;
/// The smallest object that has an extent of its own.
const SMALLEST_LARGE: u64 = 16 << 10;
/// Fewer slabs than this may be chance.
const FEWEST: usize = 4;

/// An extent.
#[derive(Clone, Copy)]
struct Extent {
    arena: u64,
    bytes: u64,
    /// Bytes of an object in it.
    size: u64,
    live: u64,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Slab,
    Large,
    Free,
}

/// Looks for jemalloc's extents in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut extents = BTreeMap::new();
    let mut searched = 0;
    for range in space.anonymous() {
        searched += search(space, (range.start, range.end), taken, searched, &mut extents);
    }
    if extents.values().filter(|extent| extent.state == State::Slab).count() < FEWEST {
        return None;
    }
    let extents = without_overlaps(extents);
    let mut found = sum(space, &extents);
    if searched >= MAX_SEARCHED {
        let note = format!(
            "jemalloc: only the first {} GiB of anonymous memory were searched",
            MAX_SEARCHED >> 30
        );
        found.notes.push(note);
    }
    Some(found)
}

/// Searches a range for extents; returns the bytes searched.
fn search(
    space: &Space<'_>,
    (start, end): (u64, u64),
    taken: &Taken,
    before: u64,
    extents: &mut BTreeMap<u64, Extent>,
) -> u64 {
    let region = space.region(start, end);
    let (mut at, mut searched) = (start, 0);
    let mut piece = Vec::new();
    while at < end && before + searched < MAX_SEARCHED {
        if let Some(to) = taken.end_of(at) {
            at = to.next_multiple_of(PAGE);
            continue;
        }
        if !region.is_present(at) {
            at = region.next_present(at);
            continue;
        }
        let mut to = at;
        while to < end.min(at + PIECE) && region.is_present(to) && taken.end_of(to).is_none() {
            to += PAGE;
        }
        piece.resize((to - at) as usize, 0);
        if space.read(at, &mut piece) {
            for edata in piece.chunks_exact(EDATA) {
                if let Some((address, extent)) = extent(space, edata) {
                    extents.insert(address, extent);
                }
            }
        }
        searched += to - at;
        at = to;
    }
    searched
}

/// The extent that an `edata` describes; `None` where it makes no sense.
fn extent(space: &Space<'_>, edata: &[u8]) -> Option<(u64, Extent)> {
    let word = |at| word_of(edata, at);
    let (bits, address, size_word) = (word(0)?, word(8)?, word(16)?);
    let bytes = size_word & !(PAGE - 1);
    if address == 0 || !address.is_multiple_of(PAGE) || bytes == 0 || bits >> 48 != 0 {
        return None;
    }
    let range = space.range_at(address)?;
    let is_inside = address.checked_add(bytes).is_some_and(|end| end <= range.end);
    if range.kind != RangeKind::Anonymous || !is_inside {
        return None;
    }
    let (is_slab, state) = (bits >> 12 & 1 != 0, bits >> 17 & 7);
    let (index, free) = (bits >> 20 & 0xff, bits >> 28 & 0x3ff);
    let arena = bits & 0xfff;
    let size = size_of(index);
    let extent = Extent { arena, bytes, size, live: 1, state: State::Large };
    match (is_slab, state) {
        (true, 0) => {
            let regions = bytes.checked_div(size)?;
            let live = regions.checked_sub(free)?;
            let is_sane = bytes.is_multiple_of(size) && (1..=MAX_REGIONS).contains(&regions);
            (is_sane && free_regions(edata, regions)? == free)
                .then_some((address, Extent { live, state: State::Slab, ..extent }))
        }
        // With a page more, so that objects begin at different offsets.
        (false, 0) => (size >= SMALLEST_LARGE && (size..=size + PAGE).contains(&bytes))
            .then_some((address, extent)),
        (false, 1..=3) if index >= NO_INDEX => {
            Some((address, Extent { size: 0, live: 0, state: State::Free, ..extent }))
        }
        _ => None,
    }
}

/// Bits that are set in a slab's bitmap.
fn free_regions(edata: &[u8], regions: u64) -> Option<u64> {
    let words = regions.div_ceil(64) as usize;
    (0..words)
        .map(|index| word_of(edata, 64 + index * 8).map(|word| u64::from(word.count_ones())))
        .sum()
}

/// Size indices from here on are those of free extents.
const NO_INDEX: u64 = 232;

/// Bytes of an object with this size index; 0 where there is no such object.
const fn size_of(index: u64) -> u64 {
    match index {
        0 => 8,
        1..=4 => index * 16,
        5..NO_INDEX => {
            let (group, step) = ((index - 5) / 4, (index - 5) % 4);
            (64 << group) + ((step + 1) << (group + 4))
        }
        _ => 0,
    }
}

/// Extents in ascending order; where two overlap, one is out of date: what is in use counts.
fn without_overlaps(extents: BTreeMap<u64, Extent>) -> Vec<(u64, Extent)> {
    let mut kept: Vec<(u64, Extent)> = Vec::new();
    for (address, extent) in extents {
        match kept.last() {
            Some((before, other)) if before + other.bytes > address => {
                if other.state == State::Free && extent.state != State::Free {
                    kept.pop();
                    kept.push((address, extent));
                }
            }
            _ => kept.push((address, extent)),
        }
    }
    kept
}

fn sum(space: &Space<'_>, extents: &[(u64, Extent)]) -> Found {
    let mut heap = Heap { allocator: "jemalloc".to_owned(), ..Heap::default() };
    let mut classes = BySize::default();
    let mut arenas: BTreeMap<u64, Arena> = BTreeMap::new();
    let (mut slabs, mut held_bytes) = (Vec::new(), 0);
    let mut granules = Granules { unit: "slab".to_owned(), ..Granules::default() };
    for (address, extent) in extents {
        let resident = space
            .region(*address, address + extent.bytes)
            .present_bytes(*address, address + extent.bytes);
        let live_bytes = extent.live * extent.size;
        heap.mapped_bytes += extent.bytes;
        heap.resident_bytes += resident;
        heap.free_bytes += extent.bytes - live_bytes.min(extent.bytes);
        let arena = arenas.entry(extent.arena).or_default();
        arena.mapped_bytes += extent.bytes;
        if extent.state == State::Free {
            continue;
        }
        heap.live_objects += extent.live;
        heap.live_bytes += live_bytes;
        arena.live_objects += extent.live;
        arena.live_bytes += live_bytes;
        classes.add(extent.size, extent.live, extent.bytes);
        if extent.live > 0 {
            held_bytes += resident;
        }
        match extent.state {
            State::Large => {
                (granules.full, granules.full_bytes) =
                    (granules.full + 1, granules.full_bytes + extent.bytes);
            }
            _ if extent.live == 0 => {
                (granules.empty, granules.empty_bytes) =
                    (granules.empty + 1, granules.empty_bytes + extent.bytes);
            }
            _ => slabs.push((extent.live, extent.bytes)),
        }
    }
    granules.held = held(slabs.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    heap.arenas = arenas.into_iter().map(|(number, arena)| Arena { number, ..arena }).collect();
    let taken =
        extents.iter().map(|(address, extent)| (*address, address + extent.bytes)).collect();
    Found {
        heap,
        taken,
        held_bytes,
        notes: vec!["jemalloc: regions in the caches of threads count as live".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Pieces, anonymous};

    const EDATAS: u64 = 0x7e00_0000_0000;
    const SLABS: u64 = 0x7f00_0000_0000;
    const COUNT: u64 = 8;

    /// Slabs of a page with 64 regions of 64 bytes, of which the first `free` are free.
    fn memory(free: u64) -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((EDATAS, vec![0; 4096]));
        memory.pieces.push((SLABS, vec![0; (COUNT * PAGE) as usize]));
        for slab in 0..COUNT {
            let at = EDATAS + slab * EDATA as u64;
            memory.put(at, &[1 << 12 | 4 << 20 | free << 28, SLABS + slab * PAGE, PAGE | 5]);
            memory.put(at + 64, &[(1 << free) - 1]);
        }
        memory
    }

    fn ranges() -> Vec<crate::space::Range> {
        vec![anonymous(EDATAS, 4096), anonymous(SLABS, COUNT * PAGE)]
    }

    /// What two counts of free regions agree on is a slab; one that they do not is none.
    #[test]
    fn slabs() {
        let mut memory = memory(60);
        let heap =
            find(&Space::new(ranges(), &memory), &Taken::default()).expect("there are slabs").heap;
        assert_eq!(
            (heap.live_objects, heap.live_bytes, heap.mapped_bytes),
            (32, 32 * 64, COUNT * PAGE)
        );
        assert_eq!(
            (heap.granules.held[0].objects_max, heap.granules.held[0].granules),
            (Some(4), 8)
        );
        memory.put(EDATAS + 64, &[0]);
        let heap =
            find(&Space::new(ranges(), &memory), &Taken::default()).expect("there are slabs").heap;
        assert_eq!(heap.live_objects, 28);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Whatever the structures say, extents do not overlap, and the census ends.
        #[test]
        fn hostile(words in prop::collection::vec((0..512u64, any::<u64>(), any::<bool>()), 0..60)) {
            let mut memory = memory(10);
            for (at, word, near) in words {
                let word = if near { SLABS + word % (COUNT * PAGE) } else { word };
                memory.put(EDATAS + at * 8, &[word]);
            }
            if let Some(found) = find(&Space::new(ranges(), &memory), &Taken::default()) {
                prop_assert!(found.heap.mapped_bytes <= COUNT * PAGE + 4096);
                prop_assert!(found.heap.live_bytes <= found.heap.mapped_bytes);
            }
        }
    }

    /// The classes of jemalloc's own table.
    #[test]
    fn size_classes() {
        for (index, size) in [
            (0, 8),
            (1, 16),
            (4, 64),
            (5, 80),
            (8, 128),
            (9, 160),
            (12, 256),
            (28, 4096),
            (36, 16384),
        ] {
            assert_eq!(size_of(index), size, "{index}");
        }
        assert!((0..=255).all(|index| size_of(index) < u64::MAX / 2));
    }
}
