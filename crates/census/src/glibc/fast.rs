//! Chunks in fastbins, and what lists of free chunks have in common.

use std::collections::HashSet;

use super::{
    layout::{FASTBINS, HEADER, Layout, SMALLEST},
    segment::Segment,
};
use crate::space::Space;

/// Reads of a list that makes no sense: it changes while it is read.
pub(super) const LIST_ATTEMPTS: u32 = 6;

/// Where chunks can be.
pub(super) struct Inside(Vec<(u64, u64, usize)>);

impl Inside {
    pub(super) fn new(segments: &[Segment]) -> Self {
        let numbered = segments.iter().enumerate();
        let mut all: Vec<_> = numbered.map(|(index, one)| (one.start, one.end, index)).collect();
        all.sort_unstable();
        Self(all)
    }

    /// The number of the segment that a chunk lies in.
    pub(super) fn segment(&self, chunk: u64, bytes: u64) -> Option<usize> {
        let next = self.0.partition_point(|(start, ..)| *start <= chunk);
        let (_, end, index) = self.0.get(next.checked_sub(1)?)?;
        let fits = chunk.is_multiple_of(16) && chunk.checked_add(bytes)? <= *end;
        fits.then_some(*index)
    }

    /// Whether a chunk can be at an address.
    pub(super) fn has(&self, chunk: u64) -> bool {
        self.segment(chunk, SMALLEST).is_some()
    }
}

/// The chunks in the fastbins of all arenas, and whether each list leads to its end.
pub(super) fn fast_chunks(
    space: &Space<'_>,
    inside: &Inside,
    segments: &[Segment],
    layout: &Layout,
) -> (HashSet<u64>, bool) {
    let (mut all, mut are_whole) = (HashSet::new(), true);
    let Some((_, first)) = layout.fastbins else { return (all, true) };
    let mut states: Vec<u64> = segments.iter().map(|segment| segment.state).collect();
    states.dedup();
    for state in states {
        let heads: Option<[u64; FASTBINS as usize]> = space.words(state.saturating_add(first));
        let is_empty = |bin: u64| heads.is_some_and(|heads| heads[bin as usize] == 0);
        for bin in (0..FASTBINS).filter(|bin| !is_empty(*bin)) {
            let at = state.saturating_add(first + bin * 8);
            let mut best = HashSet::new();
            let is_whole = (0..LIST_ATTEMPTS).any(|_| {
                let (chunks, is_whole) = fast_list(space, inside, at, bin * 16 + SMALLEST);
                if is_whole || chunks.len() > best.len() {
                    best = chunks;
                }
                is_whole
            });
            are_whole &= is_whole;
            all.extend(best);
        }
    }
    (all, are_whole)
}

/// The chunks of a fastbin whose list begins at an address, and whether it leads to its end.
fn fast_list(space: &Space<'_>, inside: &Inside, first: u64, size: u64) -> (HashSet<u64>, bool) {
    let mut chunks = HashSet::new();
    let mut next = space.word(first).unwrap_or(1);
    while next != 0 {
        let words = inside.segment(next, size).and_then(|_| space.words::<3>(next));
        let words = words.filter(|words| words[1] & !7 == size);
        // A chunk that comes twice ends a circle.
        let Some([.., link]) =
            words.filter(|_| space.budget.keeps::<[u64; 5]>(1) && chunks.insert(next))
        else {
            return (chunks, false);
        };
        next = target(next + HEADER, link, |to| to == 0 || inside.has(to)).unwrap_or(1);
    }
    (chunks, true)
}

/// Where a pointer of a list leads to that stands at an address; from 2.32 on it is masked with that. One of the two can
/// be.
pub(super) fn target(at: u64, word: u64, can_be: impl Fn(u64) -> bool) -> Option<u64> {
    [word ^ (at >> 12), word].into_iter().find(|to| can_be(*to))
}
