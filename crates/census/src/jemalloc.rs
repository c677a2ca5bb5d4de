//! The slabs and large objects of jemalloc 5.1 to 5.4, without symbols.
//!
//! Each extent has a description in anonymous memory (`extent`), and a tree in the library's data leads from an address to
//! it (`tree`). A slab's free regions are counted twice, in its description and in a bitmap: only what agrees is a slab. The
//! tree's entry for an extent in use says its size index and whether it is a slab, as the description does: only what
//! agrees is counted, and versions are distinguished by that. What is in the tree and makes no sense is unknown. Regions
//! in threads' caches count as live. Source: `edata.h`, `rtree.h`, `emap.c` (5.3), `extent_structs.h` (5.1, 5.2) and `sc.h`
//! in `include/jemalloc/internal`.

mod extent;
mod sum;
#[cfg(test)]
mod tests;
mod tree;

use extent::{EDATA, Extent, Extents, LAYOUTS, State, extent, without_overlaps};

use crate::{
    found::{Found, Taken, pieces_at},
    radix,
    space::{PAGE, Space},
};

/// Most memory that is searched.
const MAX_SEARCHED: u64 = 4 << 30;
/// Fewer slabs than this may be chance.
const MIN_SLABS: usize = 4;
/// Slabs by which the tree is searched for: so many are found, and as many of those are tried.
const MAX_CANDIDATES: usize = 256;
const TRIED: usize = 16;
/// Slabs that are kept where no tree has them, about.
const MAX_UNPROVEN: usize = 1 << 16;
const PAGE_BITS: u32 = PAGE.trailing_zeros();

/// Looks for jemalloc's extents in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let candidates = search(space, taken, MAX_CANDIDATES);
    if candidates.iter().all(|slabs| slabs.len() < MIN_SLABS) {
        return None;
    }
    let known: Vec<(u64, u64)> = candidates.iter().flat_map(|found| some(found)).collect();
    let trees = tree::find(space, &known);
    if trees.is_empty() {
        return Some(unproven(space, taken));
    }
    let mut notes = Vec::new();
    if !trees.iter().all(|tree| tree.listed.is_whole) {
        notes.push("jemalloc: its tree lists more extents than were read".to_owned());
    }
    let chosen = tree::choose(space, &trees);
    if chosen.is_none() {
        notes.push("jemalloc: extents make sense in no known layout, or in several".to_owned());
    }
    let first = trees.first().map(|tree| (&tree.listed, Extents::default()));
    let (listed, mut extents) = chosen.or(first)?;
    without_overlaps(&mut extents.all);
    let ends = extents.all.iter().map(|one| (one.address, one.end()));
    let unknown = radix::unlisted(space, taken, ends, listed, PAGE_BITS);
    let mut found = sum::sum(space, &extents, &unknown);
    found.notes.append(&mut notes);
    Some(found)
}

/// Slabs of each layout; the search ends where a layout has as many as are wanted.
fn search(space: &Space<'_>, taken: &Taken, wanted: usize) -> [Vec<Extent>; LAYOUTS.len()] {
    let mut slabs = LAYOUTS.map(|_| Vec::new());
    let mut searched = 0;
    for range in space.anonymous() {
        let bounds = (range.start, range.end);
        searched += pieces_at(space, bounds, taken, MAX_SEARCHED - searched, |at, piece| {
            let count = |slabs: &[Vec<_>]| slabs.iter().map(Vec::len).sum::<usize>();
            let before = count(&slabs);
            if slabs.iter().any(|slabs| slabs.len() >= wanted) {
                return;
            }
            for (layout, slabs) in LAYOUTS.iter().zip(&mut slabs) {
                let places = (0..piece.len()).step_by(layout.alignment);
                let found = places.filter_map(|offset| {
                    let edata = piece.get(offset..offset + EDATA)?;
                    extent(space, edata, at + offset as u64, layout)
                });
                slabs.extend(found.filter(|one| one.state == State::Slab));
            }
            // Where there is no room for them, nothing more is read.
            space.budget.keeps::<Extent>(count(&slabs) - before);
        });
        if slabs.iter().any(|slabs| slabs.len() >= wanted) {
            break;
        }
    }
    slabs
}

/// A few of them, each by its page and where its description is: some may be out of date.
fn some(slabs: &[Extent]) -> impl Iterator<Item = (u64, u64)> {
    let every = slabs.len().div_ceil(TRIED).max(1);
    let known = slabs.iter().step_by(every);
    known.map(|one| (one.address >> PAGE_BITS, one.description))
}

/// What may be slabs, where no tree says that they are.
fn unproven(space: &Space<'_>, taken: &Taken) -> Found {
    let slabs = search(space, taken, MAX_UNPROVEN);
    let mut slabs: Vec<Extent> = slabs.into_iter().flatten().collect();
    without_overlaps(&mut slabs);
    let unknown: Vec<(u64, u64)> = slabs.iter().map(|one| (one.address, one.end())).collect();
    let mut found = sum::sum(space, &Extents::default(), &unknown);
    found.notes.push("jemalloc: its tree of extents was not found: nothing is counted".to_owned());
    found
}
