//! The map of pages, which lists all spans.

use super::span::{PAGE_BITS, SPAN, Span, span, without_overlaps};
use crate::{
    found::{Taken, pieces, pieces_at},
    radix::{self, Shape},
    space::Space,
};

/// The map of pages.
const MAP: Shape = Shape { levels: &[17, 18], entry: 8, alignment: 8, join: |entry, _| entry };
/// Most memory that is searched for descriptions.
const MAX_SEARCHED: u64 = 4 << 30;
/// Spans by which the map is searched for.
const SAMPLED_SPANS: usize = 16;
/// Fewer spans than this may be chance.
const MIN_SPANS: usize = 8;
/// Descriptions that are read at once.
const DESCRIPTIONS_AT_ONCE: usize = 4096;

/// Spans in ascending order, and the stretches that should be spans, and are none.
pub(super) type Known = (Vec<(u64, Span)>, Vec<(u64, u64)>);

/// What the map of pages lists.
pub(super) fn mapped(
    space: &Space<'_>,
    taken: &Taken,
    sizes: &[u64],
    notes: &mut Vec<String>,
) -> Option<Known> {
    let known = some(space, taken, sizes);
    let listed = radix::find(space, &MAP, &known, |word, description| word == description)?;
    let entries = &listed.entries;
    if !listed.is_whole {
        notes.push("tcmalloc: its map lists more pages than were read".to_owned());
    }
    let at = |page: u64| {
        let index = entries.binary_search_by_key(&page, |(page, _)| *page).ok()?;
        Some(entries[index].1)
    };
    if !space.budget.keeps::<u64>(entries.len()) {
        return None;
    }
    let mut descriptions: Vec<u64> = entries.iter().map(|(_, description)| *description).collect();
    descriptions.sort_unstable();
    descriptions.dedup();
    let mut known = Vec::new();
    for some in descriptions.chunks(DESCRIPTIONS_AT_ONCE) {
        for (description, bytes) in some.iter().zip(space.read_near::<SPAN>(some)) {
            let Some((start, span)) = bytes.and_then(|bytes| span(space, taken, &bytes, sizes))
            else {
                continue;
            };
            let (first, pages) = (start >> PAGE_BITS, span.bytes() >> PAGE_BITS);
            // What the map does not lead back to, is out of date.
            let is_listed =
                [first, first + pages - 1].iter().all(|page| at(*page) == Some(*description));
            // A list that grows has its double at most.
            if is_listed && space.budget.keeps::<[(u64, Span); 2]>(1) {
                known.push((start, span));
            }
        }
    }
    let spans = without_overlaps(known);
    (spans.len() >= MIN_SPANS).then(|| {
        let known = spans.iter().map(|(start, span)| (*start, start + span.bytes()));
        let unknown = radix::unlisted(space, taken, known, &listed, PAGE_BITS);
        (spans, unknown)
    })
}

/// A few spans with objects of a class, each by its first page and its description.
fn some(space: &Space<'_>, taken: &Taken, sizes: &[u64]) -> Vec<(u64, u64)> {
    let (mut found, mut left) = (Vec::new(), MAX_SEARCHED);
    for range in space.heaps() {
        left -= pieces_at(space, (range.start, range.end), taken, left, |at, piece| {
            for (one, at) in piece.windows(SPAN).step_by(8).zip((at..).step_by(8)) {
                if found.len() >= SAMPLED_SPANS * SAMPLED_SPANS {
                    return;
                }
                let known = span(space, taken, one, sizes);
                if let Some((start, _)) = known.filter(|(_, span)| span.fit() > 1) {
                    found.push((start >> PAGE_BITS, at));
                }
            }
        });
        if found.len() >= SAMPLED_SPANS * SAMPLED_SPANS {
            break;
        }
    }
    // From all of them: some may be out of date.
    let every = found.len().div_ceil(SAMPLED_SPANS).max(1);
    found.into_iter().step_by(every).collect()
}

/// What is found where all memory is searched for descriptions.
pub(super) fn searched(
    space: &Space<'_>,
    taken: &Taken,
    sizes: &[u64],
    notes: &mut Vec<String>,
) -> Option<Known> {
    let (mut spans, mut left) = (Vec::new(), MAX_SEARCHED);
    for range in space.heaps() {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            let descriptions = piece.windows(SPAN).step_by(8);
            let before = spans.len();
            spans.extend(descriptions.filter_map(|one| span(space, taken, one, sizes)));
            // Where there is no room for them, nothing more is read.
            space.budget.keeps::<[(u64, Span); 2]>(spans.len() - before);
        });
    }
    let spans = without_overlaps(spans);
    if spans.len() < MIN_SPANS {
        return None;
    }
    if left == 0 {
        notes.push("tcmalloc: not all memory was searched for spans".to_owned());
    }
    let mut unknown = Vec::new();
    // What lies between spans of one mapping, may be spans that were not found.
    for pair in spans.windows(2) {
        let [(first, one), (second, _)] = pair else { continue };
        let end = first + one.bytes();
        let is_one = space.range_at(*first).is_some_and(|range| *second < range.end);
        if is_one && end < *second && !taken.meets(end, *second) {
            unknown.push((end, *second));
        }
    }
    notes.push("tcmalloc: its map of pages was not found: spans may be missing".to_owned());
    Some((spans, unknown))
}
