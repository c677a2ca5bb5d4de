//! Tables of two or three levels by which allocators find what an address belongs to: jemalloc's tree of extents,
//! tcmalloc's map of pages.
//!
//! The first level lies in a library's data, at an address that is not known: an entry of it leads to a part of the next
//! level, and one of the last level to a description. A description that is known says where in the levels its entries
//! must be. So the word of the data that leads there says where the table begins.

use crate::{
    found::Taken,
    region::Region,
    space::{PAGE, Space},
};

/// Most data that is searched, and most words of it that may lead to a leaf.
const MAX_DATA: u64 = 64 << 20;
const MAX_TRIED: usize = 1 << 16;
/// One of so many known pages at least confirms a table, and one other; some are out of date.
const ONE_CONFIRMS_IN: usize = 4;
/// Entries that are listed.
const MAX_LISTED: usize = 1 << 24;

/// How a table is divided.
pub(crate) struct Shape {
    /// Bits of a page's number by which the levels are indexed, the highest first.
    pub(crate) levels: &'static [u32],
    /// Bytes of an entry of the last level, 8 or 16. The first word leads to a description.
    pub(crate) entry: u64,
    /// What the addresses of all levels but the first are multiples of.
    pub(crate) alignment: u64,
    /// One word of both words of an entry, where it has 16 bytes.
    pub(crate) join: fn(u64, u64) -> u64,
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
    let leads = leads(space, shape);
    let enough = known.len().div_ceil(ONE_CONFIRMS_IN).max(2).min(known.len());
    let mut best: Option<(usize, u64)> = None;
    for (page, description) in known {
        let is_one = |word| is_entry(word, *description);
        let Some(root) = root_by_page(space, shape, &leads, *page, is_one) else { continue };
        best = best.max(Some((confirmed(space, shape, root, known, &is_entry), root)));
        if best.is_some_and(|(found, _)| found >= enough) {
            break;
        }
    }
    let (_, root) = best?;
    let mut listed = Listed { is_whole: true, ..Listed::default() };
    let mut parts = vec![(0, root)];
    for level in 0..shape.levels.len() {
        let mut next = Vec::new();
        let is_last = level + 1 == shape.levels.len();
        let step = if is_last { shape.entry / 8 } else { 1 };
        if level > 0 {
            let all = parts.len();
            parts.retain(|(_, part)| is_part(space, shape, level, *part));
            keep_apart(&mut parts, shape.bytes(level));
            listed.is_whole &= parts.len() == all;
        }
        for (number, part) in parts {
            let end = part.saturating_add(shape.bytes(level));
            words(space, part, end, |index, word| {
                let entry = (number << shape.levels[level]) | (index / step);
                if index % step != 0 {
                    if let Some((_, first)) = next.last_mut().filter(|(last, _)| *last == entry) {
                        *first = (shape.join)(*first, word);
                    }
                    return true;
                }
                let is_room = next.len() < MAX_LISTED && space.budget.keeps::<(u64, u64)>(1);
                if is_room {
                    next.push((entry, word));
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

/// Keeps parts that share no memory: a table has each once, and one that lists the same many times would be read as often.
fn keep_apart(parts: &mut Vec<(u64, u64)>, bytes: u64) {
    parts.sort_unstable_by_key(|(number, part)| (*part, *number));
    let mut end = 0;
    parts.retain(|(_, part)| {
        let is_apart = *part >= end;
        if is_apart {
            end = part.saturating_add(bytes);
        }
        is_apart
    });
    parts.sort_unstable();
}

/// How many of the known pages a table has where it would have to: one alone may be chance, since structures of the
/// allocator have the addresses of descriptions too.
fn confirmed(
    space: &Space<'_>,
    shape: &Shape,
    root: u64,
    known: &[(u64, u64)],
    is_entry: impl Fn(u64, u64) -> bool,
) -> usize {
    let is_there = |(page, description): &&(u64, u64)| {
        let at = (page >> shape.below(0)).checked_mul(8).and_then(|into| root.checked_add(into));
        let part = at.and_then(|at| space.word(at)).filter(|part| is_part(space, shape, 1, *part));
        let is_one = |word| is_entry(word, *description);
        at.zip(part).is_some_and(|(at, part)| {
            let lead = [Lead { at, part, data: root }];
            root_by_page(space, shape, &lead, *page, is_one) == Some(root)
        })
    };
    known.iter().filter(is_there).count()
}

/// Stretches that a table lists, and none of the known ones accounts for. These ascend and do not overlap.
pub(crate) fn unlisted(
    space: &Space<'_>,
    taken: &Taken,
    known: impl Iterator<Item = (u64, u64)>,
    listed: &Listed,
    page_bits: u32,
) -> Vec<(u64, u64)> {
    let mut unknown: Vec<(u64, u64, u64)> = Vec::new();
    let mut next = known.peekable();
    let mut end = 0;
    for (page, description) in &listed.entries {
        let Some(at) = page.checked_mul(1 << page_bits) else { break };
        while let Some((_, to)) = next.next_if(|(start, _)| *start <= at) {
            end = to;
        }
        let range = space.range_at(at).filter(|range| range.is_heap());
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
            _ if space.budget.keeps::<[u64; 5]>(1) => unknown.push((at, after, *description)),
            // It is of no heap then.
            _ => break,
        }
    }
    unknown.into_iter().map(|(start, end, _)| (start, end)).collect()
}

/// Whether a part of a level may be at an address.
fn is_part(space: &Space<'_>, shape: &Shape, level: usize, leaf: u64) -> bool {
    let end = leaf.saturating_add(shape.bytes(level));
    leaf.is_multiple_of(shape.alignment)
        && space
            .range_at(leaf)
            .is_some_and(|range| range.is_heap() && (leaf..=range.end).contains(&end))
}

/// A word of data that may lead to a part of the second level.
struct Lead {
    at: u64,
    part: u64,
    /// Where the data begins that the word is in: the table begins no earlier.
    data: u64,
}

/// All such words.
fn leads(space: &Space<'_>, shape: &Shape) -> Vec<Lead> {
    let (mut left, mut found) = (MAX_DATA, Vec::new());
    // What was data last, from where to where.
    let mut data = (0, 0);
    for (start, end) in space.data() {
        data = (if data.1 == start { data.0 } else { start }, end);
        let end = end.min(start.saturating_add(left));
        left -= end - start;
        words(space, start, end, |number, part| {
            if is_part(space, shape, 1, part) {
                found.push(Lead { at: start + number * 8, part, data: data.0 });
            }
            found.len() < MAX_TRIED
        });
    }
    found
}

/// Where the table begins whose entry of a page `is_entry` knows, if one of these words leads to it. Of most words it is
/// a guess what they lead to: all are followed at once.
fn root_by_page(
    space: &Space<'_>,
    shape: &Shape,
    leads: &[Lead],
    page: u64,
    is_entry: impl Fn(u64) -> bool,
) -> Option<u64> {
    let first = page >> shape.below(0);
    if first >> shape.levels.first()? != 0 {
        return None;
    }
    let root = |lead: &Lead| lead.at.checked_sub(first * 8).filter(|root| *root >= lead.data);
    let mut open: Vec<(u64, u64)> =
        leads.iter().filter_map(|lead| Some((root(lead)?, lead.part))).collect();
    for (level, bits) in shape.levels.iter().enumerate().skip(1) {
        let index = page >> shape.below(level) & ((1 << bits) - 1);
        let is_last = level + 1 == shape.levels.len();
        if level > 1 {
            open.retain(|(_, part)| is_part(space, shape, level, *part));
        }
        let place = |part: u64| part.saturating_add(index * if is_last { shape.entry } else { 8 });
        let places: Vec<u64> = open.iter().map(|(_, part)| place(*part)).collect();
        let words = space.guess_each::<8>(&places);
        let next = open.into_iter().zip(words);
        open =
            next.filter_map(|((root, _), word)| Some((root, u64::from_le_bytes(word?)))).collect();
    }
    open.into_iter().find(|(_, word)| is_entry(*word)).map(|(root, _)| root)
}

/// The words of a stretch that are not 0, by number, as far as they are present; until one is not wanted.
fn words(space: &Space<'_>, start: u64, end: u64, mut each: impl FnMut(u64, u64) -> bool) {
    let mut region = Region::new(space, start, end);
    let mut at = start;
    while at < end && !space.budget.is_over() {
        if !region.is_present(at) {
            at = region.next_present(at).next_multiple_of(8);
            continue;
        }
        let behind = (at / PAGE + 1).saturating_mul(PAGE).min(end);
        while at < behind {
            if let Some(word) = region.word(at).filter(|word| *word != 0)
                && !each((at - start) / 8, word)
            {
                return;
            }
            at += 8;
        }
    }
}

#[cfg(test)]
mod tests;
