//! The tree that leads from an address to the description of its extent.
//!
//! It has the first and the last page of each extent, and all pages of a slab. An entry is the address of a description,
//! with the size index, the state and whether it is a slab in the bits that addresses do not need, or in a second word.

use super::{
    PAGE_BITS,
    extent::{EDATA, Extent, Extents, LAYOUTS, Layout, State, extent, sampled},
};
use crate::{
    radix::{self, Listed, Shape},
    space::Space,
};

/// Descriptions that are read at once.
const AT_ONCE: usize = 4096;

/// A tree's shape, and which layouts it goes with.
struct Kind {
    shape: Shape,
    layouts: &'static [usize],
}

/// Where addresses have 48 bits; where they have 57: 5.3, and 5.1 and 5.2.
const KINDS: [Kind; 3] = [
    Kind {
        shape: Shape { levels: &[18, 18], entry: 8, alignment: 64, join: |entry, _| entry },
        layouts: &[0, 1],
    },
    Kind {
        shape: Shape {
            join: |entry, more| entry | more << 43 & !0xffff_ffff_ffff | more & 0x1f,
            ..WIDE
        },
        layouts: &[0],
    },
    Kind {
        shape: Shape { join: |entry, more| entry | more << 48 | more >> 32 & 1, ..WIDE },
        layouts: &[1],
    },
];
const WIDE: Shape =
    Shape { levels: &[15, 15, 15], entry: 16, alignment: 64, join: |entry, _| entry };

/// The bits of an entry that are the address of a description.
pub(super) const fn described(entry: u64) -> u64 {
    entry & ((1 << 48) - 1) & !63
}

/// A tree that was found.
pub(super) struct Tree {
    /// Pages and entries.
    pub(super) listed: Listed,
    layouts: &'static [usize],
    levels: usize,
}

/// The trees that have one of these pages, each with its description; of one shape.
pub(super) fn find(space: &Space<'_>, known: &[(u64, u64)]) -> Vec<Tree> {
    let is_one = |word, description| described(word) == description;
    let mut trees: Vec<Tree> = Vec::new();
    for kind in &KINDS {
        // Where addresses have 48 bits, they have not 57.
        if trees.iter().any(|tree| tree.levels != kind.shape.levels.len()) {
            break;
        }
        let Some(mut listed) = radix::find(space, &kind.shape, known, is_one) else { continue };
        listed.entries.retain(|(_, entry)| described(*entry) != 0);
        trees.push(Tree { listed, layouts: kind.layouts, levels: kind.shape.levels.len() });
    }
    trees
}

/// The tree and the extents of the layout in which all makes sense that makes sense in any other, and more; `None` where
/// there is no such layout.
pub(super) fn choose<'a>(space: &Space<'_>, trees: &'a [Tree]) -> Option<(&'a Listed, Extents)> {
    let mut readings = Vec::new();
    for tree in trees {
        for layout in tree.layouts.iter().filter_map(|index| LAYOUTS.get(*index)) {
            let reading = read(space, layout, &tree.listed);
            readings.push((&tree.listed, reading));
        }
    }
    let best = (0..readings.len()).max_by_key(|at| readings[*at].1.proven.len())?;
    let (listed, reading) = readings.swap_remove(best);
    let is_best = readings
        .iter()
        .all(|(_, other)| other.proven.len() < reading.proven.len() && other.is_in(&reading));
    (is_best && !reading.proven.is_empty()).then_some((listed, reading.extents))
}

/// What a tree lists, read in one layout.
struct Reading {
    extents: Extents,
    /// Descriptions of what is in use, in ascending order.
    proven: Vec<u64>,
}

impl Reading {
    /// Whether all that is proven here is so there.
    fn is_in(&self, other: &Self) -> bool {
        self.proven.iter().all(|at| other.proven.binary_search(at).is_ok())
    }
}

fn read(space: &Space<'_>, layout: &Layout, listed: &Listed) -> Reading {
    let mut reading = Reading { extents: Extents::new(), proven: Vec::new() };
    let mut left = pages(space, listed);
    // What changed while it was read is read again.
    'all: for _ in 0..2 {
        let mut wrong = Vec::new();
        for some in left.chunks(AT_ONCE) {
            // There may be millions: no more is kept than there are.
            reading.extents.reserve_exact(some.len());
            let places: Vec<u64> = some.iter().map(|pages| pages.description).collect();
            for (pages, edata) in some.iter().zip(space.read_near::<EDATA>(&places)) {
                let found = edata.and_then(|edata| listed_extent(space, &edata, layout, pages));
                let Some((address, extent)) = found else {
                    wrong.push(*pages);
                    continue;
                };
                if !space.budget.keeps::<(u64, Extent, u64)>(1) {
                    break 'all;
                }
                if extent.state != State::Free {
                    reading.proven.push(pages.description);
                }
                reading.extents.push((address, extent));
            }
        }
        left = wrong;
    }
    reading.proven.sort_unstable();
    reading.extents.shrink_to_fit();
    reading
}

/// The pages that lead to a description, and the first one's entry.
#[derive(Clone, Copy)]
struct Pages {
    description: u64,
    first: u64,
    last: u64,
    entry: u64,
}

/// What leads to each description, in ascending order.
fn pages(space: &Space<'_>, listed: &Listed) -> Vec<Pages> {
    let mut all: Vec<Pages> = Vec::new();
    for (page, entry) in &listed.entries {
        let description = described(*entry);
        match all.last_mut().filter(|last| last.description == description) {
            Some(last) => last.last = *page,
            // A vector that grows has its double at most.
            None if !space.budget.keeps::<[Pages; 2]>(1) => break,
            None => all.push(Pages { description, first: *page, last: *page, entry: *entry }),
        }
    }
    all.sort_unstable_by_key(|pages| (pages.description, pages.first));
    all.dedup_by(|next, before| {
        let is_same = next.description == before.description;
        if is_same {
            before.last = next.last;
        }
        is_same
    });
    all
}

/// The extent of a description, if the tree says the same.
fn listed_extent(
    space: &Space<'_>,
    edata: &[u8],
    layout: &Layout,
    pages: &Pages,
) -> Option<(u64, Extent)> {
    let at = pages.description;
    let found = extent(space, edata, at, layout).or_else(|| sampled(space, edata, at, layout));
    let (address, extent) = found?;
    let end = (address + extent.bytes - 1) >> PAGE_BITS;
    let is_listed = address >> PAGE_BITS == pages.first && end == pages.last;
    (is_listed && extent.agrees(layout, pages.entry)).then_some((address, extent))
}
