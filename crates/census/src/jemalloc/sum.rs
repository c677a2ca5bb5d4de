//! What extents add up to.

use std::collections::BTreeMap;

use super::extent::{Extent, MAX_REGIONS, State};
use crate::{
    cxx::{Classes, NO_CLASS},
    found::{Found, region_with},
    granules::{BySize, held},
    model::{Arena, Granules, Heap},
    space::{PAGE, Region, Space},
};

/// Adds extents up.
struct Sum<'a> {
    space: &'a Space<'a>,
    heap: Heap,
    granules: Granules,
    classes: BySize,
    arenas: BTreeMap<u64, Arena>,
    /// Live objects and bytes of slabs.
    slabs: Vec<(u64, u64)>,
    held_bytes: u64,
    cxx: Classes<'a>,
    /// By class, extents whose objects are all of one, and their bytes.
    alone: BTreeMap<u16, (u64, u64)>,
}

impl Sum<'_> {
    fn extent(&mut self, region: &mut Region<'_>, address: u64, extent: &Extent) {
        let (heap, granules) = (&mut self.heap, &mut self.granules);
        let resident = region.present_bytes(address, address + extent.bytes);
        let live_bytes = extent.live * extent.size;
        heap.mapped_bytes += extent.bytes;
        heap.resident_bytes += resident;
        heap.free_bytes += extent.bytes - live_bytes.min(extent.bytes);
        let arena = self.arenas.entry(extent.arena).or_default();
        arena.mapped_bytes += extent.bytes;
        if extent.state == State::Free {
            return;
        }
        heap.live_objects += extent.live;
        heap.live_bytes += live_bytes;
        arena.live_objects += extent.live;
        arena.live_bytes += live_bytes;
        self.classes.add(extent.size, extent.live, extent.bytes);
        let live = (extent.live, live_bytes);
        self.space.note_granule(&mut heap.map, address, extent.bytes, live);
        match extent.state {
            State::Large => {
                granules.full += 1;
                granules.full_bytes += extent.bytes;
            }
            _ if extent.live == 0 => {
                granules.empty += 1;
                granules.empty_bytes += extent.bytes;
            }
            _ => self.slabs.push((extent.live, extent.bytes)),
        }
        if extent.live > 0 {
            self.held_bytes += resident;
            let class = count_classes(self.space, region, (address, extent), &mut self.cxx);
            if let Some(class) = class {
                let (count, bytes) = self.alone.entry(class).or_default();
                (*count, *bytes) = (*count + 1, *bytes + extent.bytes);
            }
        }
    }

    fn unknown(&mut self, region: &Region<'_>, start: u64, end: u64) {
        let resident = region.present_bytes(start, end);
        self.heap.mapped_bytes += end - start;
        self.heap.resident_bytes += resident;
        self.heap.unknown_bytes += resident;
    }
}

/// The heap of these extents, and of stretches of which nothing is known.
pub(super) fn sum(space: &Space<'_>, extents: &[(u64, Extent)], unknown: &[(u64, u64)]) -> Found {
    let mut sum = Sum {
        space,
        heap: Heap { allocator: "jemalloc".to_owned(), ..Heap::default() },
        granules: Granules { unit: "slab".to_owned(), ..Granules::default() },
        classes: BySize::default(),
        arenas: BTreeMap::new(),
        slabs: Vec::new(),
        held_bytes: 0,
        cxx: Classes::new(space),
        alone: BTreeMap::new(),
    };
    let mut last = None;
    for (address, extent) in extents {
        let region = region_with(space, &mut last, (*address, address + extent.bytes));
        sum.extent(region, *address, extent);
    }
    let mut last = None;
    for (start, end) in unknown {
        let region = region_with(space, &mut last, (*start, *end));
        sum.unknown(region, *start, *end);
    }
    let Sum { mut heap, mut granules, classes, arenas, slabs, held_bytes, cxx, alone, .. } = sum;
    granules.held = held(slabs.into_iter());
    heap.granules = granules;
    heap.classes = classes.finish();
    heap.types = cxx.finish(&alone);
    heap.arenas = arenas.into_iter().map(|(number, arena)| Arena { number, ..arena }).collect();
    let mut notes = Vec::new();
    if !extents.is_empty() {
        notes.push("jemalloc: regions in the caches of threads count as live".to_owned());
    }
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes
            .push(format!("jemalloc: {kib} KiB should be extents, and make no sense: not counted"));
    }
    let taken = extents.iter().map(|(address, extent)| (*address, address + extent.bytes));
    let taken = taken.chain(unknown.iter().copied()).collect();
    Found { heap, held_bytes, taken, notes }
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
