//! The pages of mimalloc 2.0 to 3.6, without symbols.
//!
//! Versions 2 have segments that describe themselves (`segments`), versions 3 a map of all pages (`map`). Both lead to
//! pages: blocks of one size, with the number of those in use, lists of free ones, which say whether that is right
//! (`lists`), and a list of blocks that other threads have freed and the page has not taken back yet. What is listed but
//! does not validate is unknown, by its resident bytes.

mod links;
mod lists;
mod map;
mod segments;
#[cfg(test)]
mod tests;

use links::Links;
use lists::Blocks;

use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Granules, Heap},
    space::{Region, Space},
};

/// Bytes of a slice: segments and arenas are divided into them.
const SLICE: u64 = 64 << 10;
/// Blocks that other threads have freed, of which so many are counted.
const MAX_FREED: u64 = 1 << 22;
/// The lowest bits of the head of a list of freed blocks say who may take them.
const FLAGS: u64 = 3;

/// A page with blocks of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Page {
    address: u64,
    bytes: u64,
    /// Bytes of a block, blocks that fit, and those in use.
    size: u64,
    reserved: u64,
    used: u64,
    /// The first block that another thread has freed.
    freed: u64,
    /// Others that were freed so, and wait in a list of the heap.
    waiting: u64,
    /// What the list's links are encoded with, and what the last one says.
    keys: Option<[u64; 3]>,
    blocks: Blocks,
}

impl Page {
    fn end(&self) -> u64 {
        self.address + self.bytes
    }
}

/// Stretches of memory: first address, first address after.
type Stretches = Vec<(u64, u64)>;

/// A segment, an arena, or a page that has memory to itself.
#[derive(Debug, Default)]
struct Area {
    address: u64,
    bytes: u64,
    pages: Vec<Page>,
    free: Stretches,
    /// What the allocator keeps for itself.
    own: Stretches,
    /// What is listed, and makes no sense.
    unknown: Stretches,
}

impl Area {
    fn end(&self) -> u64 {
        self.address + self.bytes
    }

    fn unknown(address: u64, end: u64) -> Self {
        Self { address, bytes: end - address, unknown: vec![(address, end)], ..Self::default() }
    }
}

/// What was read.
#[derive(Default)]
struct Read {
    areas: Vec<Area>,
    notes: Vec<String>,
}

/// Looks for mimalloc's pages in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut read = Read::default();
    map::find(space, taken, &mut read);
    let mut taken = taken.clone();
    taken.add(read.areas.iter().map(|area| (area.address, area.end())));
    segments::find(space, &taken, &mut read);
    lists::prove(space, &mut read, lists::ENOUGH);
    (!read.areas.is_empty()).then(|| sum(space, read))
}

/// Whether a word is the head of a list of a page's freed blocks, or of an empty one.
fn is_list(head: u64, start: u64, end: u64) -> bool {
    let block = head & !FLAGS;
    block == 0 || (block.is_multiple_of(8) && (start..end.saturating_sub(7)).contains(&block))
}

/// Adds areas up.
#[derive(Default)]
struct Sum {
    heap: Heap,
    granules: Granules,
    classes: BySize,
    held_bytes: u64,
    partly: Vec<(u64, u64)>,
}

impl Sum {
    fn add(&mut self, space: &Space<'_>, links: &mut Links<'_>, area: &Area, steps: &mut u64) {
        let region = space.region(area.address, area.end());
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
        let (heap, granules) = (&mut self.heap, &mut self.granules);
        let live = page.used - cached;
        heap.live_objects += live;
        heap.live_bytes += live * page.size;
        heap.cached_bytes += cached * page.size;
        self.classes.add(page.size, live, page.bytes);
        space.note_granule(&mut heap.map, page.address, page.bytes, (live, live * page.size));
        if page.used > 0 {
            self.held_bytes += region.present_bytes(page.address, page.end());
        }
        match (page.used, page.reserved) {
            (0, _) => {
                granules.empty += 1;
                granules.empty_bytes += page.bytes;
            }
            (_, 1) => {
                granules.full += 1;
                granules.full_bytes += page.bytes;
            }
            _ => self.partly.push((page.used, page.bytes)),
        }
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
    granules.held = held(partly.into_iter());
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
