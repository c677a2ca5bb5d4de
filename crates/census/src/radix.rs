//! Tables of two levels by which allocators find what an address belongs to: jemalloc's tree of extents, tcmalloc's map
//! of pages.
//!
//! The first level lies in a library's data, at an address that is not known: an entry of it leads to a leaf, an entry of
//! the leaf to a description, and that says an address, which says where in the two levels the entries must be. So a word
//! of the data that leads to a leaf, says where the table begins.

use crate::space::{RangeKind, Space};

/// Most data that is searched, and most words of it that may lead to a leaf.
const MAX_DATA: u64 = 64 << 20;
const MAX_TRIED: usize = 1 << 16;
/// Entries that are listed.
const MAX_LISTED: usize = 1 << 24;

/// Bits of a page's number by which the levels are indexed.
pub(crate) struct Shape {
    pub(crate) root_bits: u32,
    pub(crate) leaf_bits: u32,
    /// What the address of a leaf is a multiple of.
    pub(crate) alignment: u64,
}

impl Shape {
    fn leaf_bytes(&self) -> u64 {
        8 << self.leaf_bits
    }
}

/// What a table lists.
#[derive(Default)]
pub(crate) struct Listed {
    /// Page and word, in ascending order.
    pub(crate) entries: Vec<(u64, u64)>,
    /// Whether these are all.
    pub(crate) is_whole: bool,
}

/// The entries of the table that has one of these pages, each with its description; `None` where no table is
/// found.
pub(crate) fn find(
    space: &Space<'_>,
    shape: &Shape,
    known: &[(u64, u64)],
    is_entry: impl Fn(u64, u64) -> bool,
) -> Option<Listed> {
    let root = first(space, shape, |at, leaf| {
        known.iter().find_map(|(page, description)| {
            root_by_page(space, shape, (at, leaf), *page, |word| is_entry(word, *description))
        })
    })?;
    let mut listed = Listed { is_whole: true, ..Listed::default() };
    let mut leaves = Vec::new();
    let end = root.checked_add(8 << shape.root_bits)?;
    words(space, root, end, |index, leaf| {
        leaves.push((index, leaf));
        true
    });
    for (index, leaf) in leaves {
        let end = leaf.saturating_add(shape.leaf_bytes());
        if !is_leaf(space, shape, leaf) {
            listed.is_whole = false;
            continue;
        }
        words(space, leaf, end, |entry, word| {
            let is_room = listed.entries.len() < MAX_LISTED;
            if is_room {
                listed.entries.push((index << shape.leaf_bits | entry, word));
            }
            listed.is_whole &= is_room;
            is_room
        });
    }
    Some(listed)
}

fn is_leaf(space: &Space<'_>, shape: &Shape, leaf: u64) -> bool {
    let end = leaf.saturating_add(shape.leaf_bytes());
    let is_heap = |kind| matches!(kind, RangeKind::Anonymous | RangeKind::Heap);
    leaf.is_multiple_of(shape.alignment)
        && space.range_at(leaf).is_some_and(|range| {
            range.writable && is_heap(range.kind) && (leaf..=range.end).contains(&end)
        })
}

/// Where the table begins.
fn first(
    space: &Space<'_>,
    shape: &Shape,
    root: impl Fn(u64, u64) -> Option<u64>,
) -> Option<u64> {
    let (mut left, mut tried) = (MAX_DATA, 0);
    for (index, range) in space.ranges.iter().enumerate() {
        // The data of an object, or what follows it without a file (.bss).
        let before = index.checked_sub(1).and_then(|before| space.ranges.get(before));
        let follows =
            before.is_some_and(|one| one.kind == RangeKind::File && one.end == range.start);
        let is_data =
            range.kind == RangeKind::File || (range.kind == RangeKind::Anonymous && follows);
        if !range.writable || !is_data || left == 0 {
            continue;
        }
        let end = range.end.min(range.start.saturating_add(left));
        left -= end - range.start;
        let mut found = None;
        words(space, range.start, end, |number, leaf| {
            if is_leaf(space, shape, leaf) {
                tried += 1;
                found = root(range.start + number * 8, leaf);
            }
            found.is_none() && tried < MAX_TRIED
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Where the table begins if the word at an address leads to a leaf of it, in which `is_entry` knows the entry of a page.
fn root_by_page(
    space: &Space<'_>,
    shape: &Shape,
    (at, leaf): (u64, u64),
    page: u64,
    is_entry: impl Fn(u64) -> bool,
) -> Option<u64> {
    let (first, entry) = (page >> shape.leaf_bits, page & ((1 << shape.leaf_bits) - 1));
    let is_one = space.field(leaf, entry * 8).is_some_and(is_entry);
    (is_one && first >> shape.root_bits == 0).then(|| at.checked_sub(first * 8)).flatten()
}

/// The words of a stretch that are not 0, by number, as far as they are present; until one is not wanted.
fn words(space: &Space<'_>, start: u64, end: u64, mut each: impl FnMut(u64, u64) -> bool) {
    let mut region = space.region(start, end);
    let mut at = start;
    while at < end {
        if !region.is_present(at) {
            at = region.next_present(at).next_multiple_of(8);
            continue;
        }
        if let Some(word) = region.word(at).filter(|word| *word != 0)
            && !each((at - start) / 8, word)
        {
            return;
        }
        at += 8;
    }
}
