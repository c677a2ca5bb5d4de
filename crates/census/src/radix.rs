//! Tables of two or three levels by which allocators find what an address belongs to: jemalloc's tree of extents, tcmalloc's map
//! of pages.
//!
//! The first level lies in a library's data, at an address that is not known: an entry of it leads to a part of the next
//! level, and one of the last level to a description. A description that is known says where in the levels its entries
//! must be. So the word of the data that leads there says where the table begins.

use crate::{
    found::Taken,
    space::{RangeKind, Space},
};

/// Most data that is searched, and most words of it that may lead to a leaf.
const MAX_DATA: u64 = 64 << 20;
const MAX_TRIED: usize = 1 << 16;
/// Entries that are listed.
const MAX_LISTED: usize = 1 << 24;

/// How a table is divided.
pub(crate) struct Shape {
    /// Bits of a page's number by which the levels are indexed, the highest first.
    pub(crate) levels: &'static [u32],
    /// Bytes of an entry of the last level, of which the first word counts.
    pub(crate) entry: u64,
    /// What the addresses of all levels but the first are multiples of.
    pub(crate) alignment: u64,
}

impl Shape {
    /// Bytes of a part of a level.
    fn bytes(&self, level: usize) -> u64 {
        let entry = if level + 1 == self.levels.len() { self.entry } else { 8 };
        self.levels.get(level).map_or(0, |bits| entry << bits)
    }

    /// Bits of a page's number below a level.
    fn below(&self, level: usize) -> u32 {
        self.levels.iter().skip(level + 1).sum()
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
    let mut parts = vec![(0, root)];
    for level in 0..shape.levels.len() {
        let mut next = Vec::new();
        let is_last = level + 1 == shape.levels.len();
        let step = if is_last { shape.entry / 8 } else { 1 };
        for (number, part) in parts {
            let end = part.saturating_add(shape.bytes(level));
            if level > 0 && !is_part(space, shape, level, part) {
                listed.is_whole = false;
                continue;
            }
            words(space, part, end, |index, word| {
                let is_room = next.len() < MAX_LISTED;
                if is_room && index % step == 0 {
                    next.push((number << shape.levels[level] | index / step, word));
                }
                listed.is_whole &= is_room;
                is_room
            });
        }
        parts = next;
    }
    listed.entries = parts;
    Some(listed)
}

/// Stretches that a table lists, and none of the known ones accounts for. These ascend and do not overlap.
pub(crate) fn unlisted(
    space: &Space<'_>,
    taken: &Taken,
    known: impl Iterator<Item = (u64, u64)>,
    listed: &Listed,
    page_bits: u32,
) -> Vec<(u64, u64)> {
    let is_heap = |kind| matches!(kind, RangeKind::Anonymous | RangeKind::Heap);
    let mut unknown: Vec<(u64, u64, u64)> = Vec::new();
    let mut next = known.peekable();
    let mut end = 0;
    for (page, description) in &listed.entries {
        let Some(at) = page.checked_mul(1 << page_bits) else { break };
        while let Some((_, to)) = next.next_if(|(start, _)| *start <= at) {
            end = to;
        }
        let range = space.range_at(at).filter(|range| range.writable && is_heap(range.kind));
        let (Some(range), true) = (range, at >= end && taken.end_of(at).is_none()) else {
            continue;
        };
        let after = (at + (1 << page_bits)).min(range.end);
        match unknown.last_mut() {
            // One description, and nothing between.
            Some((from, to, before))
                if before == description && *from >= end && range.start <= *from =>
            {
                *to = after;
            }
            _ => unknown.push((at, after, *description)),
        }
    }
    unknown.into_iter().map(|(start, end, _)| (start, end)).collect()
}

/// Whether a part of a level may be at an address.
fn is_part(space: &Space<'_>, shape: &Shape, level: usize, leaf: u64) -> bool {
    let end = leaf.saturating_add(shape.bytes(level));
    let is_heap = |kind| matches!(kind, RangeKind::Anonymous | RangeKind::Heap);
    leaf.is_multiple_of(shape.alignment)
        && space.range_at(leaf).is_some_and(|range| {
            range.writable && is_heap(range.kind) && (leaf..=range.end).contains(&end)
        })
}

/// Where the table begins.
fn first(space: &Space<'_>, shape: &Shape, root: impl Fn(u64, u64) -> Option<u64>) -> Option<u64> {
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
            if is_part(space, shape, 1, leaf) {
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
    let mut word = leaf;
    for (level, bits) in shape.levels.iter().enumerate().skip(1) {
        let index = page >> shape.below(level) & ((1 << bits) - 1);
        let is_last = level + 1 == shape.levels.len();
        if level > 1 && !is_part(space, shape, level, word) {
            return None;
        }
        word = space.field(word, index * if is_last { shape.entry } else { 8 })?;
    }
    let first = page >> shape.below(0);
    let is_inside = first >> shape.levels.first()? == 0;
    (is_entry(word) && is_inside).then(|| at.checked_sub(first * 8)).flatten()
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
