//! The tree that leads from an address to the description of its extent.
//!
//! It has the first and the last page of each extent, and all pages of a slab. An entry is the address of a description,
//! with the size index, the state and whether it is a slab in the bits that addresses do not need, or in a second word.

use super::{
    PAGE_BITS,
    extent::{EDATA, Extent, Extents, LAYOUTS, Layout, State, agrees, extent, sampled},
};
use crate::{
    radix::{self, Listed, Shape},
    space::Space,
};

/// Descriptions that are read at once.
const DESCRIPTIONS_AT_ONCE: usize = 4096;

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
        let described = descriptions(space, &tree.listed);
        for layout in tree.layouts.iter().filter_map(|index| LAYOUTS.get(*index)) {
            let reading = read(space, layout, (&tree.listed, &described));
            readings.push((&tree.listed, reading));
        }
        space.budget.gives_back(size_of_val(described.as_slice()) as u64);
    }
    let best = (0..readings.len()).max_by_key(|at| readings[*at].1.in_use)?;
    let (listed, reading) = readings.swap_remove(best);
    let is_best =
        readings.iter().all(|(_, other)| other.in_use < reading.in_use && other.is_in(&reading));
    (is_best && reading.in_use > 0).then_some((listed, reading.extents))
}

/// What a tree lists, read in one layout.
#[derive(Default)]
struct Reading {
    /// By their descriptions, in ascending order.
    extents: Extents,
    /// How many of them are in use.
    in_use: usize,
}

impl Reading {
    /// Whether all that is in use here is so there.
    fn is_in(&self, other: &Self) -> bool {
        let mut there = other.extents.all.iter();
        let mut here = self.extents.all.iter().filter(|one| one.state != State::Free);
        here.all(|one| {
            let next = there.find(|other| other.description >= one.description);
            next.is_some_and(|other| {
                other.description == one.description && other.state != State::Free
            })
        })
    }

    /// Adds the extents of descriptions that make sense; the other descriptions, where they are wanted.
    fn add(
        &mut self,
        space: &Space<'_>,
        layout: &Layout,
        (listed, described): (&Listed, &[Description]),
        wants_wrong: bool,
    ) -> Vec<Description> {
        let mut wrong = Vec::new();
        for some in described.chunks(DESCRIPTIONS_AT_ONCE) {
            // There may be millions: no more is kept than there are.
            self.extents.all.reserve_exact(some.len());
            let places: Vec<u64> = some.iter().map(|one| one.at).collect();
            for (one, edata) in some.iter().zip(space.read_near::<EDATA>(&places)) {
                let found = edata.as_ref().and_then(|edata| {
                    Some((listed_extent(space, edata, layout, (listed, one))?, edata.as_slice()))
                });
                match found {
                    Some(found) if self.extents.push(space, found, layout) => {
                        self.in_use += usize::from(found.0.state != State::Free);
                    }
                    None if !wants_wrong => {}
                    None if space.budget.keeps::<Description>(1) => wrong.push(*one),
                    _ => return wrong,
                }
            }
        }
        wrong
    }
}

fn read(
    space: &Space<'_>,
    layout: &Layout,
    (listed, described): (&Listed, &[Description]),
) -> Reading {
    let mut reading = Reading::default();
    let wrong = reading.add(space, layout, (listed, described), true);
    // What changed while it was read is read again.
    reading.add(space, layout, (listed, &wrong), false);
    space.budget.gives_back(size_of_val(wrong.as_slice()) as u64);
    reading.extents.all.sort_unstable_by_key(|one| one.description);
    reading.extents.all.shrink_to_fit();
    reading
}

/// A description, and the first and the last of the tree's entries that lead to it.
#[derive(Clone, Copy)]
struct Description {
    at: u64,
    first: u32,
    last: u32,
}

/// What the tree leads to, in ascending order.
fn descriptions(space: &Space<'_>, listed: &Listed) -> Vec<Description> {
    let runs = || listed.entries.chunk_by(|one, next| described(one.1) == described(next.1));
    let count = runs().count();
    if !space.budget.keeps::<Description>(count) {
        return Vec::new();
    }
    let mut all = Vec::with_capacity(count);
    let mut first = 0u32;
    for run in runs() {
        // No more are listed than have numbers.
        let next = first.saturating_add(run.len() as u32);
        let at = run.first().map_or(0, |(_, entry)| described(*entry));
        all.push(Description { at, first, last: next.saturating_sub(1) });
        first = next;
    }
    all.sort_unstable_by_key(|one| (one.at, one.first));
    all.dedup_by(|next, before| {
        let is_same = next.at == before.at;
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
    (listed, one): (&Listed, &Description),
) -> Option<Extent> {
    let entry = |index: u32| listed.entries.get(index as usize).copied();
    let ((first, entry), (last, _)) = (entry(one.first)?, entry(one.last)?);
    let found = extent(space, edata, one.at, layout);
    let extent = found.or_else(|| sampled(space, edata, one.at, layout))?;
    let is_listed = extent.address >> PAGE_BITS == first && (extent.end() - 1) >> PAGE_BITS == last;
    (is_listed && agrees(&extent, edata, layout, entry)).then_some(extent)
}
