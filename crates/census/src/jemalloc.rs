//! The slabs and large objects of jemalloc 5.1 to 5.4, without symbols.
//!
//! Each extent has a description of 128 bytes in anonymous memory: bits at 0 (arena 12, slab at bit 12; then state, size
//! index and free regions, see `LAYOUTS`), address at 8, size at 16, for slabs a bitmap of free regions at 64. A slab's
//! free regions are counted twice, in the bits and in the bitmap: only what agrees is a slab. Extents that are free may
//! have been slabs, and keep that bit. A tree in the library's data leads from an address to the description: what is not
//! in it is out of date, and what is in it and makes no sense is unknown. Regions in threads' caches count as live.
//! Source: `edata.h`, `rtree.h` (5.3), `extent_structs.h` (5.1, 5.2) and `sc.h` in `include/jemalloc/internal`.

use std::collections::{BTreeMap, HashSet};

use crate::{
    cxx::{Classes, NO_CLASS},
    found::{Found, Taken, pieces_at},
    granules::{BySize, held},
    model::{Arena, Granules, Heap},
    radix::{self, Listed, Shape},
    space::{PAGE, RangeKind, Region, Space, word_of},
};

/// Bytes of a description.
const EDATA: usize = 128;
/// What differs between versions: 5.3, and 5.1 and 5.2.
const LAYOUTS: [Layout; 2] = [
    Layout { alignment: 128, state: (17, 7), index: 20, free: 28, unused: 48 },
    Layout { alignment: 64, state: (16, 3), index: 18, free: 26, unused: 63 },
];
/// Most memory that is searched.
const MAX_SEARCHED: u64 = 4 << 30;
/// A slab has at most so many regions.
const MAX_REGIONS: u64 = 512;
/// The smallest object that has an extent of its own.
const SMALLEST_LARGE: u64 = 16 << 10;
const SMALLEST_INDEX: u64 = 36;
/// The tree, where addresses have 48 bits, and 57; and the bits of its entries that are the address of a description.
const TREES: [Shape; 2] = [
    Shape { levels: &[18, 18], entry: 8, alignment: 64 },
    Shape { levels: &[15, 15, 15], entry: 16, alignment: 64 },
];
const PAGE_BITS: u32 = 12;
const fn described(entry: u64) -> u64 {
    entry & ((1 << 48) - 1) & !63
}
/// Slabs by which the tree is looked for.
const SOME: usize = 8;
/// Fewer slabs than this may be chance.
const FEWEST: usize = 4;
/// So may one of so many.
const MAX_CHANCE: usize = 8;

/// Where a description has what.
struct Layout {
    /// Of the description, bytes.
    alignment: usize,
    /// The first bit of the state, and its mask.
    state: (u32, u64),
    /// The first bits of the size index and of the number of free regions.
    index: u32,
    free: u32,
    /// Bits from here on are 0.
    unused: u32,
}

/// An extent.
#[derive(Clone, Copy)]
struct Extent {
    /// Where its description is.
    description: u64,
    arena: u64,
    bytes: u64,
    /// Bytes of an object in it.
    size: u64,
    live: u64,
    /// Where its object lies, if it is large.
    object: u64,
    /// The regions of a slab that are free.
    free: [u64; (MAX_REGIONS / 64) as usize],
    state: State,
}

type Extents = BTreeMap<u64, Extent>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Slab,
    Large,
    Free,
}

/// Looks for jemalloc's extents in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut extents = LAYOUTS.map(|_| Vec::new());
    let mut searched = 0;
    for range in space.anonymous() {
        let bounds = (range.start, range.end);
        searched += pieces_at(space, bounds, taken, MAX_SEARCHED - searched, |at, piece| {
            for (layout, extents) in LAYOUTS.iter().zip(&mut extents) {
                let descriptions = piece.windows(EDATA).zip(at..).step_by(layout.alignment);
                let found = descriptions.filter_map(|(edata, at)| extent(space, edata, at, layout));
                extents.extend(found);
            }
        });
    }
    let slabs = |extents: &[(u64, Extent)]| {
        extents.iter().filter(|(_, one)| one.state == State::Slab).count()
    };
    let most = extents.iter().map(|one| slabs(one)).max().unwrap_or_default();
    // Of another layout, a few may be chance.
    let least = FEWEST.max(most / MAX_CHANCE);
    let mut fitting = LAYOUTS.iter().zip(extents).filter(|(_, one)| slabs(one) >= least);
    let (layout, extents) = fitting.next()?;
    if let Some((_, others)) = fitting.next() {
        let all: Extents = extents.into_iter().chain(others).collect();
        let all = without_overlaps(all);
        let unknown: Vec<_> = all.iter().map(|(start, one)| (*start, start + one.bytes)).collect();
        let mut found = sum(space, &[], &unknown);
        found.notes.push("jemalloc: extents make sense in more than one layout".to_owned());
        return Some(found);
    }
    let (extents, unknown, whole) = listed(space, taken, layout, extents);
    let mut found = sum(space, &extents, &unknown);
    found.notes.extend(whole);
    if searched >= MAX_SEARCHED {
        let note = format!(
            "jemalloc: only the first {} GiB of anonymous memory were searched",
            MAX_SEARCHED >> 30
        );
        found.notes.push(note);
    }
    Some(found)
}

/// Extents in ascending order, stretches that are unknown, and what is not sure.
type Known = (Vec<(u64, Extent)>, Vec<(u64, u64)>, Option<String>);

/// What the tree of extents says of those that were found.
fn listed(space: &Space<'_>, taken: &Taken, layout: &Layout, extents: Vec<(u64, Extent)>) -> Known {
    let slabs = extents.iter().filter(|(_, one)| one.state == State::Slab);
    let every = extents.len().div_ceil(SOME).max(1);
    let known: Vec<(u64, u64)> =
        slabs.step_by(every).map(|(start, one)| (start >> PAGE_BITS, one.description)).collect();
    let is_one = |word, description| described(word) == description;
    let tree = TREES.iter().find_map(|tree| radix::find(space, tree, &known, is_one));
    let Some(Listed { mut entries, is_whole }) = tree else {
        let mut extents = without_overlaps(extents.into_iter().collect());
        set_sizes(&mut extents);
        let unknown = between(space, taken, &extents);
        let note = "jemalloc: its tree of extents was not found: extents may be missing";
        return (extents, unknown, Some(note.to_owned()));
    };
    for (_, entry) in &mut entries {
        *entry = described(*entry);
    }
    entries.retain(|(_, description)| *description != 0);
    let in_tree: HashSet<u64> = entries.iter().map(|(_, description)| *description).collect();
    let mut kept: Extents =
        extents.into_iter().filter(|(_, extent)| in_tree.contains(&extent.description)).collect();
    // What was not found by searching: what moved, and objects that a sampler has given an extent of their own.
    let found: HashSet<u64> = kept.values().map(|extent| extent.description).collect();
    let missing: Vec<u64> = in_tree.difference(&found).copied().collect();
    for (at, edata) in missing.iter().zip(space.read_each::<EDATA>(&missing)) {
        let one = edata.and_then(|edata| {
            extent(space, &edata, *at, layout).or_else(|| sampled(space, &edata, *at, layout))
        });
        kept.extend(one);
    }
    let mut extents = without_overlaps(kept);
    set_sizes(&mut extents);
    let known = extents.iter().map(|(start, one)| (*start, start + one.bytes));
    let listed = Listed { entries, is_whole };
    let unknown = radix::unlisted(space, taken, known, &listed, PAGE_BITS);
    let note = "jemalloc: its tree lists more extents than were read";
    (extents, unknown, (!is_whole).then(|| note.to_owned()))
}

/// What a large object has: all of its extent, or all but the page in which it begins anywhere.
fn set_sizes(extents: &mut [(u64, Extent)]) {
    let large = |one: &Extent| one.state == State::Large && one.size >= SMALLEST_LARGE;
    let is_padded = extents.iter().any(|(address, one)| {
        large(one) && (one.object != *address || one.bytes == one.size + PAGE)
    });
    let more = if is_padded { PAGE } else { 0 };
    for (_, one) in extents.iter_mut().filter(|(_, one)| large(one)) {
        one.size = one.bytes.saturating_sub(more);
    }
}

/// What lies between extents of one mapping.
fn between(space: &Space<'_>, taken: &Taken, extents: &[(u64, Extent)]) -> Vec<(u64, u64)> {
    let pairs = extents.iter().zip(extents.iter().skip(1));
    let gaps = pairs.map(|((start, one), (next, _))| (start + one.bytes, *next));
    gaps.filter(|(start, end)| {
        let is_one = space.range_at(*start).is_some_and(|range| *end < range.end);
        start < end && is_one && !taken.meets(*start, *end)
    })
    .collect()
}

/// The extent of a small object that a sampler has given one of its own.
fn sampled(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<(u64, Extent)> {
    let mut bits = word_of(edata, 0)?;
    let size = size_of(bits >> layout.index & 0xff);
    (1..SMALLEST_LARGE).contains(&size).then_some(())?;
    // As if it were of the smallest size that has an extent.
    bits = bits & !(0xff << layout.index) | SMALLEST_INDEX << layout.index;
    let mut edata = edata.to_vec();
    edata.get_mut(..8)?.copy_from_slice(&bits.to_le_bytes());
    let (address, extent) = extent(space, &edata, description, layout)?;
    Some((address, Extent { size, ..extent }))
}

/// The extent that a description is of; `None` where it makes no sense.
fn extent(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<(u64, Extent)> {
    let word = |at| word_of(edata, at);
    let (bits, object, size_word) = (word(0)?, word(8)?, word(16)?);
    let (bytes, address) = (size_word & !(PAGE - 1), object & !(PAGE - 1));
    if address == 0 || bytes == 0 || bits >> layout.unused != 0 {
        return None;
    }
    let range = space.range_at(address)?;
    let is_inside = address.checked_add(bytes).is_some_and(|end| end <= range.end);
    if range.kind != RangeKind::Anonymous || !is_inside {
        return None;
    }
    let (shift, mask) = layout.state;
    let (is_slab, state) = (bits >> 12 & 1 != 0, bits >> shift & mask);
    let (index, free) = (bits >> layout.index & 0xff, bits >> layout.free & 0x3ff);
    let arena = bits & 0xfff;
    let size = size_of(index);
    let bitmap = std::array::from_fn(|index| word(64 + index * 8).unwrap_or_default());
    let extent = Extent {
        description,
        arena,
        bytes,
        size,
        live: 1,
        object,
        free: bitmap,
        state: State::Large,
    };
    match (is_slab, state) {
        (true, 0) => {
            let regions = bytes.checked_div(size)?;
            let live = regions.checked_sub(free)?;
            let is_sane = bytes.is_multiple_of(size) && (1..=MAX_REGIONS).contains(&regions);
            (is_sane && object == address && free_regions(&bitmap, regions) == free)
                .then_some((address, Extent { live, state: State::Slab, ..extent }))
        }
        // With a page more, in which the object begins anywhere. Sizes are those of classes, or whole pages (5.3.1).
        (false, 0) => {
            let smaller = index.checked_sub(1).map_or(0, size_of);
            let is_sane = size >= SMALLEST_LARGE && smaller < bytes && bytes <= size + PAGE;
            is_sane.then_some((address, extent))
        }
        (_, 1..=3) if index >= NO_INDEX && object == address => {
            Some((address, Extent { size: 0, live: 0, state: State::Free, ..extent }))
        }
        _ => None,
    }
}

/// Bits that are set in a slab's bitmap.
fn free_regions(bitmap: &[u64], regions: u64) -> u64 {
    let words = bitmap.iter().take(regions.div_ceil(64) as usize);
    words.map(|word| u64::from(word.count_ones())).sum()
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
fn without_overlaps(extents: Extents) -> Vec<(u64, Extent)> {
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

fn sum(space: &Space<'_>, extents: &[(u64, Extent)], unknown: &[(u64, u64)]) -> Found {
    let mut heap = Heap { allocator: "jemalloc".to_owned(), ..Heap::default() };
    let mut classes = BySize::default();
    let mut arenas: BTreeMap<u64, Arena> = BTreeMap::new();
    let (mut slabs, mut held_bytes) = (Vec::new(), 0);
    let (mut cxx, mut alone) = (Classes::new(space), BTreeMap::new());
    let mut granules = Granules { unit: "slab".to_owned(), ..Granules::default() };
    let mut last = None;
    for (address, extent) in extents {
        let region = region_with(space, &mut last, *address, extent.bytes);
        let resident = region.present_bytes(*address, address + extent.bytes);
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
        space.note_granule(&mut heap.map, *address, extent.bytes, (extent.live, live_bytes));
        if extent.live > 0 {
            held_bytes += resident;
            if let Some(class) = count_classes(space, region, (*address, extent), &mut cxx) {
                let (count, bytes) = alone.entry(class).or_default();
                (*count, *bytes) = (*count + 1, *bytes + extent.bytes);
            }
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
    heap.types = cxx.finish(&alone);
    heap.arenas = arenas.into_iter().map(|(number, arena)| Arena { number, ..arena }).collect();
    let mut notes = vec!["jemalloc: regions in the caches of threads count as live".to_owned()];
    for (start, end) in unknown {
        let resident = space.region(*start, *end).present_bytes(*start, *end);
        heap.mapped_bytes += end - start;
        heap.resident_bytes += resident;
        heap.unknown_bytes += resident;
    }
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes
            .push(format!("jemalloc: {kib} KiB should be extents, and make no sense: not counted"));
    }
    let taken = extents.iter().map(|(address, extent)| (*address, address + extent.bytes));
    let taken = taken.chain(unknown.iter().copied()).collect();
    Found { heap, taken, held_bytes, notes }
}

/// The region that an extent lies in: the last one, else all of its mapping from there on. Extents ascend.
fn region_with<'a, 'b>(
    space: &'a Space<'a>,
    last: &'b mut Option<Region<'a>>,
    address: u64,
    bytes: u64,
) -> &'b mut Region<'a> {
    let end = address.saturating_add(bytes);
    let known = last.take().filter(|region| region.holds(address, end));
    last.insert(known.unwrap_or_else(|| {
        let mapped = space.range_at(address).map_or(end, |range| range.end);
        space.region(address, end.max(mapped))
    }))
}

/// Counts the live objects of an extent by C++ class; the class, where all are of one.
fn count_classes(
    space: &Space<'_>,
    region: &mut Region<'_>,
    (address, extent): (u64, &Extent),
    cxx: &mut Classes<'_>,
) -> Option<u16> {
    let mut word = |at: u64| region.word(at).unwrap_or_default();
    let granule = (address / PAGE, address / PAGE);
    let mut only = None;
    let mut count = |word| {
        let class = cxx.class(word);
        cxx.count(class, 1, extent.size, granule);
        only = Some(only.map_or(class, |before| if before == class { class } else { NO_CLASS }));
    };
    if extent.state == State::Large {
        count(space.word(extent.object).unwrap_or_default());
    } else {
        for region in 0..(extent.bytes / extent.size).min(MAX_REGIONS) {
            if extent.free[(region / 64) as usize] >> (region % 64) & 1 == 0 {
                count(word(address + region * extent.size));
            }
        }
    }
    only.filter(|class| *class != NO_CLASS)
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

    /// The same as 5.2 has it: no multiple of 128, serial numbers in the highest bits.
    fn older() -> Pieces {
        let mut memory = memory(60);
        for slab in (0..COUNT).rev() {
            let at = EDATAS + slab * EDATA as u64;
            memory.put(at, &[0; 16]);
            let bits = 1 << 12 | 4 << 18 | 60 << 26 | slab << 42;
            memory
                .put(at + 64, &[bits, SLABS + slab * PAGE, PAGE | 5, 0, 0, 0, 0, 0, (1 << 60) - 1]);
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

    /// Slabs of an older version; a large object that begins anywhere in its first page; classes of what is live.
    #[test]
    fn versions_and_objects() {
        let mut memory = older();
        let file = crate::cxx::tests::add_classes(&mut memory);
        let bits = 36 << 18 | 1 << 13;
        let large = SLABS + COUNT * PAGE;
        memory.put(EDATAS + 64 + COUNT * 128, &[bits, large + 0x140, 5 * PAGE]);
        memory.pieces.push((large, vec![0; 5 * PAGE as usize]));
        for at in [SLABS + 60 * 64, SLABS + 61 * 64, SLABS + PAGE + 63 * 64, large + 0x140] {
            memory.put(at, &[crate::cxx::tests::SESSION]);
        }
        let ranges = vec![file, anonymous(EDATAS, 4096), anonymous(SLABS, (COUNT + 5) * PAGE)];
        let heap =
            find(&Space::new(ranges, &memory), &Taken::default()).expect("there are slabs").heap;
        assert_eq!((heap.live_objects, heap.granules.full), (33, 1));
        let [one] = heap.types.as_slice() else { panic!("{:?}", heap.types) };
        assert_eq!((one.name.as_str(), one.objects, one.arenas), ("Session", 4, 3));
        assert_eq!((one.arenas_alone, one.alone_bytes), (1, 5 * PAGE));
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
