//! Spans whose list is not known: every description in anonymous memory that makes sense. Whether any is missing is not
//! known, so pages of none are unknown.

use super::{
    layout::{Described, LAYOUTS, SPAN_BYTES, Span, is_heap},
    spans::Spans,
};
use crate::{
    found::{Taken, pieces},
    space::{Range, Space},
};

/// Most memory that is searched.
const MAX_SEARCHED: u64 = 1 << 30;
/// Fewer spans than this may be chance.
const MIN_SPANS: usize = 8;
/// Addresses are the heap's in units of these.
pub(super) const ARENA: u64 = 64 << 20;

/// Looks for descriptions; `None` where there are none, or more than one layout has some.
pub(super) fn heap(space: &Space<'_>, taken: &Taken) -> Option<Spans> {
    let mut found = LAYOUTS.map(|_| Vec::new());
    let mut left = MAX_SEARCHED;
    let mut ranges: Vec<&Range> = space.anonymous().collect();
    // The heap itself has none, and its mappings are the largest.
    ranges.sort_by_key(|range| range.end - range.start);
    for range in ranges {
        left -= pieces(space, (range.start, range.end), taken, left, |piece| {
            let count = |found: &[Vec<Span>]| found.iter().map(Vec::len).sum::<usize>();
            let before = count(&found);
            for at in (0..piece.len()).step_by(8) {
                let Some(description) = piece.get(at..at + SPAN_BYTES) else { break };
                collect(space, taken, description, &mut found);
            }
            // Where there is no room for them, nothing more is read.
            space.budget.keeps::<Span>(count(&found) - before);
        });
    }
    let mut valid = found.into_iter().filter(|spans| spans.len() >= MIN_SPANS);
    let (one, other) = (valid.next()?, valid.next());
    let mut spans = Spans { is_partial: true, ..Spans::default() };
    spans.take(one);
    for span in &spans.known {
        let (first, end) = (span.start / ARENA * ARENA, span.start + span.bytes);
        let end = end.next_multiple_of(ARENA);
        match spans.ranges.last_mut() {
            Some((_, last)) if first <= *last => *last = end.max(*last),
            _ => spans.ranges.push((first, end)),
        }
    }
    if other.is_some() {
        spans.known.clear();
        spans.is_unreadable = true;
    }
    Some(spans)
}

/// Takes the span of a description, for each layout.
fn collect(
    space: &Space<'_>,
    taken: &Taken,
    description: &[u8],
    found: &mut [Vec<Span>; LAYOUTS.len()],
) {
    for (layout, spans) in LAYOUTS.iter().zip(found) {
        // Most words are none, and it costs least to say so.
        if layout.bytes(description).is_none() {
            continue;
        }
        let Described::Span(span) = layout.read(description) else { continue };
        if is_heap(space, taken, span.start, span.start + span.bytes) {
            spans.push(span);
        }
    }
}
