//! What extents add up to.

use std::collections::BTreeMap;

use super::extent::{Extent, Extents, MAX_REGIONS, State};
use crate::{
    cxx::{Classes, NO_CLASS},
    found::{Found, joined, region_with},
    granules::{BySize, HeldBySum},
    model::{Arena, Granules, Heap},
    region::Region,
    space::{PAGE, Space},
};

/// Adds extents up.
struct Sum<'a> {
    space: &'a Space<'a>,
    extents: &'a Extents,
    /// What large objects have less than their extents.
    padding: u64,
    heap: Heap,
    granules: Granules,
    classes: BySize,
    arenas: BTreeMap<u64, Arena>,
    /// Slabs by their live objects.
    slabs: HeldBySum,
    held_bytes: u64,
    cxx: Classes<'a>,
    /// By class, extents whose objects are all of one, and their bytes.
    alone: BTreeMap<u16, (u64, u64)>,
}

impl Sum<'_> {
    fn extent(&mut self, region: &mut Region<'_>, extent: &Extent) {
        let heap = &mut self.heap;
        let (address, bytes, objects) = (extent.address, extent.bytes(), extent.live());
        let size = extent.size(self.padding);
        let resident = region.present_bytes(address, address + bytes);
        let live_bytes = objects * size;
        heap.mapped_bytes += bytes;
        heap.resident_bytes += resident;
        heap.free_bytes += bytes - live_bytes.min(bytes);
        let arena = self.arenas.entry(extent.arena()).or_default();
        arena.mapped_bytes += bytes;
        if extent.state == State::Free {
            return;
        }
        heap.live_objects += objects;
        heap.live_bytes += live_bytes;
        arena.live_objects += objects;
        arena.live_bytes += live_bytes;
        self.classes.add(size, objects, bytes);
        self.space.note_granule(&mut heap.map, address, bytes, (objects, live_bytes));
        let fit = if extent.state == State::Large { 1 } else { MAX_REGIONS };
        self.granules.add(&mut self.slabs, (objects, fit), bytes);
        if objects > 0 {
            self.held_bytes += resident;
            if let Some(class) = self.count_classes(region, extent, size) {
                let (count, sum) = self.alone.entry(class).or_default();
                (*count, *sum) = (*count + 1, *sum + bytes);
            }
        }
    }

    /// Counts the live objects of an extent by C++ class; the class, where all are of one.
    fn count_classes(
        &mut self,
        region: &mut Region<'_>,
        extent: &Extent,
        size: u64,
    ) -> Option<u16> {
        let granule = (extent.address / PAGE, extent.address / PAGE);
        let (cxx, mut only) = (&mut self.cxx, None);
        let mut count = |word: Option<u64>| {
            let class = cxx.class(word.unwrap_or_default());
            cxx.count(class, 1, size, granule);
            let joined = |before| if before == class { class } else { NO_CLASS };
            only = Some(only.map_or(class, joined));
        };
        if extent.state == State::Large {
            count(self.space.word(extent.object()));
        } else {
            for number in 0..(extent.bytes() / size).min(MAX_REGIONS) {
                if !self.extents.is_free(extent, number) {
                    count(region.word(extent.address + number * size));
                }
            }
        }
        only.filter(|class| *class != NO_CLASS)
    }

    fn unknown(&mut self, region: &Region<'_>, start: u64, end: u64) {
        let resident = region.present_bytes(start, end);
        self.heap.mapped_bytes += end - start;
        self.heap.resident_bytes += resident;
        self.heap.unknown_bytes += resident;
    }
}

/// The heap of these extents, and of stretches of which nothing is known.
pub(super) fn sum(space: &Space<'_>, extents: &Extents, unknown: &[(u64, u64)]) -> Found {
    let mut sum = Sum {
        space,
        extents,
        padding: extents.padding(),
        heap: Heap { allocator: "jemalloc".to_owned(), ..Heap::default() },
        granules: Granules { unit: "slab".to_owned(), ..Granules::default() },
        classes: BySize::default(),
        arenas: BTreeMap::new(),
        slabs: HeldBySum::default(),
        held_bytes: 0,
        cxx: Classes::new(space),
        alone: BTreeMap::new(),
    };
    let mut last = None;
    for extent in &extents.all {
        let region = region_with(space, &mut last, (extent.address, extent.end()));
        sum.extent(region, extent);
    }
    let mut last = None;
    for (start, end) in unknown {
        let region = region_with(space, &mut last, (*start, *end));
        sum.unknown(region, *start, *end);
    }
    let Sum { mut heap, mut granules, classes, arenas, slabs, held_bytes, cxx, alone, .. } = sum;
    granules.held = slabs.finish();
    heap.granules = granules;
    heap.classes = classes.finish();
    heap.types = cxx.finish(&alone);
    heap.arenas = arenas.into_iter().map(|(number, arena)| Arena { number, ..arena }).collect();
    let mut notes = Vec::new();
    if !extents.all.is_empty() {
        notes.push("jemalloc: regions in the caches of threads count as live".to_owned());
    }
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes
            .push(format!("jemalloc: {kib} KiB should be extents, and make no sense: not counted"));
    }
    let taken = extents.all.iter().map(|one| (one.address, one.end()));
    let taken = joined(space, taken.chain(unknown.iter().copied()));
    Found { heap, held_bytes, taken, notes }
}
