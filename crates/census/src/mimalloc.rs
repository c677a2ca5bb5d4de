//! The pages of mimalloc 2.0 to 3.6, without symbols.
//!
//! Versions 2 have segments that describe themselves (`segments`), versions 3 a map of all pages (`map`). Both lead to
//! pages: blocks of one size, with the number of those in use, lists of free ones, which say whether that is right
//! (`lists`), and a list of blocks that other threads have freed and the page has not taken back yet. What is listed but
//! does not validate is unknown, by its resident bytes.

mod area;
mod links;
mod lists;
mod map;
mod segments;
#[cfg(test)]
mod tests;

use area::{Area, Page, Read};
use links::Links;

use crate::{
    found::{Found, Taken},
    granules::{BySize, HeldBySum},
    model::{Granules, Heap},
    region::Region,
    space::Space,
};

/// Blocks that other threads have freed, of which so many are counted.
const MAX_FREED: u64 = 1 << 22;

/// Looks for mimalloc's pages in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut read = Read::default();
    map::find(space, taken, &mut read);
    let mut taken = taken.clone();
    taken.add(read.areas.iter().map(|area| (area.address, area.end())));
    segments::find(space, &taken, &mut read);
    lists::prove(space, &mut read, lists::ENOUGH_LINKS);
    (!read.areas.is_empty()).then(|| sum(space, read))
}

/// Adds areas up.
#[derive(Default)]
struct Sum {
    heap: Heap,
    granules: Granules,
    classes: BySize,
    held_bytes: u64,
    partly: HeldBySum,
}

impl Sum {
    fn add(&mut self, space: &Space<'_>, links: &mut Links<'_>, area: &Area, steps: &mut u64) {
        let region = Region::new(space, area.address, area.end());
        self.heap.mapped_bytes += area.bytes;
        self.heap.resident_bytes += region.present_bytes(area.address, area.end());
        for (start, end) in &area.free {
            let resident = region.present_bytes(*start, *end);
            self.granules.empty += u64::from(resident > 0);
            // Most of a stretch was never used.
            self.granules.empty_bytes += resident;
        }
        for (start, end) in &area.own {
            self.held_bytes += region.present_bytes(*start, *end);
        }
        for (start, end) in &area.unknown {
            self.heap.unknown_bytes += region.present_bytes(*start, *end);
        }
        for page in &area.pages {
            match lists::freed(links, page, steps) {
                Some(cached) => self.page(space, &region, page, cached),
                None => {
                    self.heap.unknown_bytes += region.present_bytes(page.address, page.end());
                }
            }
        }
    }

    fn page(&mut self, space: &Space<'_>, region: &Region<'_>, page: &Page, cached: u64) {
        let (heap, live) = (&mut self.heap, page.used - cached);
        heap.live_objects += live;
        heap.live_bytes += live * page.size;
        heap.cached_bytes += cached * page.size;
        self.classes.add(page.size, live, page.bytes);
        space.note_granule(&mut heap.map, page.address, page.bytes, (live, live * page.size));
        if page.used > 0 {
            self.held_bytes += region.present_bytes(page.address, page.end());
        }
        self.granules.add(&mut self.partly, (page.used, page.reserved), page.bytes);
    }
}

fn sum(space: &Space<'_>, read: Read) -> Found {
    let Read { areas, mut notes } = read;
    let mut sum = Sum::default();
    let (mut steps, mut links) = (MAX_FREED, Links::new(space));
    for area in &areas {
        sum.add(space, &mut links, area, &mut steps);
    }
    let Sum { mut heap, mut granules, classes, held_bytes, partly } = sum;
    "mimalloc".clone_into(&mut heap.allocator);
    let counted = heap.live_bytes + heap.cached_bytes + heap.unknown_bytes;
    heap.free_bytes = heap.mapped_bytes.saturating_sub(counted);
    "mimalloc page".clone_into(&mut granules.unit);
    granules.held = partly.finish();
    heap.granules = granules;
    heap.classes = classes.finish();
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes.push(format!("mimalloc: {kib} KiB are listed, but make no sense: not counted"));
    }
    if steps == 0 {
        let note = "mimalloc: more blocks wait for their own threads than were counted: they count as live";
        notes.push(note.to_owned());
    }
    let taken = areas.iter().map(|area| (area.address, area.end())).collect();
    Found { heap, held_bytes, taken, notes }
}
