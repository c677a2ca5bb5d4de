//! Tables of two or three levels by which allocators find what an address belongs to: jemalloc's tree of extents,
//! tcmalloc's map of pages.
//!
//! The first level lies in a library's data, at an address that is not known: an entry of it leads to a part of the next
//! level, and one of the last level to a description. A description that is known says where in the levels its entries
//! must be. So the word of the data that leads there says where the table begins.

use crate::{
    found::Taken,
    space::{PAGE, RangeKind, Space},
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
    let is_heap = |kind| matches!(kind, RangeKind::Anonymous | RangeKind::Heap);
    leaf.is_multiple_of(shape.alignment)
        && space.range_at(leaf).is_some_and(|range| {
            range.writable && is_heap(range.kind) && (leaf..=range.end).contains(&end)
        })
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
        data = (if data.1 == range.start { data.0 } else { range.start }, range.end);
        let end = range.end.min(range.start.saturating_add(left));
        left -= end - range.start;
        words(space, range.start, end, |number, part| {
            if is_part(space, shape, 1, part) {
                found.push(Lead { at: range.start + number * 8, part, data: data.0 });
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
    let mut region = space.region(start, end);
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
mod tests {
    use super::*;
    use crate::{
        space::Range,
        testing::{Pieces, anonymous},
    };

    const DATA: u64 = 0x1000_0000;
    const PARTS: u64 = 0x3000_0000;
    const HEAP: u64 = 0x7f00_0000;
    const DESCRIPTIONS: u64 = 0x5000_0000;
    const PAGES: u64 = 4;
    /// Where the table begins in the data.
    const ROOT: u64 = DATA + 64;

    const TWO: Shape = Shape { levels: &[8, 18], entry: 8, alignment: 64, join: |entry, _| entry };
    const THREE: Shape = Shape {
        levels: &[8, 9, 9],
        entry: 16,
        alignment: 64,
        join: |entry, more| entry | more << 48,
    };

    /// A table that lists the heap's pages, each with a description, and the index of the entry of each level.
    fn memory(shape: &Shape) -> (Pieces, Vec<Range>, Vec<u64>) {
        let bytes: u64 = (1..shape.levels.len()).map(|level| shape.bytes(level)).sum();
        let mut memory = Pieces::default();
        memory.pieces.push((DATA, vec![0; PAGE as usize]));
        memory.pieces.push((PARTS, vec![0; bytes as usize]));
        let ranges = vec![
            Range { kind: RangeKind::File, ..anonymous(DATA, PAGE) },
            anonymous(PARTS, bytes),
            anonymous(DESCRIPTIONS, PAGE),
            anonymous(HEAP, PAGES * PAGE),
        ];
        let mut places = Vec::new();
        let (mut part, mut next) = (ROOT, PARTS);
        for (level, bits) in shape.levels.iter().enumerate() {
            let index = ((HEAP / PAGE) >> shape.below(level)) & ((1 << bits) - 1);
            if level + 1 < shape.levels.len() {
                memory.put(part + index * 8, &[next]);
                places.push(part + index * 8);
                (part, next) = (next, next + shape.bytes(level + 1));
                continue;
            }
            places.push(part + index * shape.entry);
            for page in 0..PAGES {
                let at = part + (index + page) * shape.entry;
                memory.put(at, &[DESCRIPTIONS + page * 64]);
                if shape.entry > 8 {
                    memory.put(at + 8, &[7]);
                }
            }
        }
        (memory, ranges, places)
    }

    fn entries((memory, ranges): &(Pieces, Vec<Range>), shape: &Shape) -> Option<Vec<(u64, u64)>> {
        let space = Space::new(ranges.clone(), memory);
        let known = [(HEAP / PAGE + 1, DESCRIPTIONS + 64)];
        find(&space, shape, &known, |word, one| word == one).map(|listed| listed.entries)
    }

    /// What a table lists is found by one of its pages, with both words of an entry.
    #[test]
    fn listed() {
        for (shape, more) in [(&TWO, 0), (&THREE, 7 << 48)] {
            let (memory, ranges, _) = memory(shape);
            let all = (0..PAGES)
                .map(|page| (HEAP / PAGE + page, DESCRIPTIONS + page * 64 + more))
                .collect::<Vec<_>>();
            assert_eq!(entries(&(memory, ranges), shape), Some(all));
        }
    }

    /// Memory that has one description by chance where a table would have it is no part of one.
    #[test]
    fn chance() {
        const OTHER: u64 = 0x6000_0000;
        let (mut memory, mut ranges, places) = memory(&TWO);
        let bytes = TWO.bytes(1);
        memory.pieces.push((OTHER, vec![0; bytes as usize]));
        ranges.push(anonymous(OTHER, bytes));
        memory.put(DATA + 8, &[OTHER]);
        let one = (HEAP / PAGE + 1, DESCRIPTIONS + 64);
        memory.put(places[1] - PARTS + OTHER + 8, &[one.1]);
        let known = [one, (HEAP / PAGE + 3, DESCRIPTIONS + 3 * 64)];
        let space = Space::new(ranges, &memory);
        let of = |known| {
            let listed = find(&space, &TWO, known, |word, one| word == one);
            listed.expect("there is a table").entries.len() as u64
        };
        assert_eq!(of(&known), PAGES);
        assert_ne!(of(&[one]), PAGES);
    }

    /// Where one entry behind the first level lies elsewhere, no table is found, or it does not list the pages that are known.
    #[test]
    fn shifted() {
        for shape in [&TWO, &THREE] {
            for level in 1..shape.levels.len() {
                let (mut memory, ranges, places) = memory(shape);
                let space = Space::new(ranges.clone(), &memory);
                let words: [u64; 12] = space.words(places[level]).expect("it is written");
                memory.put(places[level], &[0]);
                memory.put(places[level] + 8, &words);
                let found = entries(&(memory, ranges), shape).unwrap_or_default();
                let is_right = |(page, entry): &(u64, u64)| {
                    let number = (entry & 0xffff_ffff).wrapping_sub(DESCRIPTIONS) / 64;
                    *page == HEAP / PAGE + number
                };
                assert!(!found.iter().any(is_right), "{level}: {found:x?}");
            }
        }
    }

    /// What no known stretch accounts for is one stretch, where one description has it and nothing is between.
    #[test]
    fn unknown() {
        let (memory, ranges, _) = memory(&TWO);
        let space = Space::new(ranges, &memory);
        let page = HEAP / PAGE;
        let entries = vec![(page, 1), (page + 1, 2), (page + 3, 2), (page + 9, 3)];
        let listed = Listed { entries, is_whole: true };
        let stretches = |known: &[(u64, u64)]| {
            unlisted(
                &space,
                &Taken::default(),
                known.iter().copied(),
                &listed,
                PAGE.trailing_zeros(),
            )
        };
        let (first, all) = ((HEAP, HEAP + PAGE), (HEAP, HEAP + PAGES * PAGE));
        assert_eq!(stretches(&[all]), []);
        assert_eq!(stretches(&[first]), [(HEAP + PAGE, HEAP + PAGES * PAGE)]);
        assert_eq!(stretches(&[]), [first, (HEAP + PAGE, HEAP + PAGES * PAGE)]);
    }
}
