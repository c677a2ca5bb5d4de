//! Chunks that look in use and are not: those in fastbins and in threads' caches.

use std::collections::{HashMap, HashSet};

use super::{
    SMALLEST, Space,
    arena::{FASTBINS, Segment},
};
use crate::space::word_of;

/// Sizes of the chunk that holds a thread's cache: glibc 2.26 to 2.29 (counters of a byte), and 2.30 to 2.41 (two bytes).
pub(super) const SIZES: [u64; 2] = [0x250, 0x290];
/// Lists of a thread's cache, and fastbins of an arena.
const BINS: u64 = 64;
const FAST_BINS: u64 = 10;
/// Most chunks in one list of a thread's cache: a tunable that no program sets higher.
const MAX_CACHED: u64 = 65_535;

/// The chunks in the fastbins of all arenas.
pub(super) fn fast_chunks(space: &Space<'_>, segments: &[Segment]) -> HashSet<u64> {
    let mut all = HashSet::new();
    let mut states: Vec<u64> = segments.iter().map(|segment| segment.state).collect();
    states.dedup();
    for state in states.into_iter().filter(|state| *state != 0) {
        for bin in 0..FAST_BINS {
            let mut next = space.word(state + FASTBINS + bin * 8);
            // Whoever was met before ends a circle.
            while let Some(chunk) = next
                && is_inside(segments, chunk, SMALLEST)
                && all.insert(chunk)
            {
                next = link(space, segments, chunk + 16, 0);
            }
        }
    }
    all
}

/// Chunks in the caches of threads, with their sizes; `candidates` are chunks that may hold a cache.
pub(super) fn cached_chunks(
    space: &Space<'_>,
    segments: &[Segment],
    candidates: &[u64],
) -> HashMap<u64, u64> {
    let mut all = HashMap::new();
    for chunk in candidates {
        if let Some(cached) = cache(space, segments, *chunk) {
            all.extend(cached);
        }
    }
    all
}

/// The chunks of the cache in a chunk; `None` where it is none.
fn cache(space: &Space<'_>, segments: &[Segment], chunk: u64) -> Option<Vec<(u64, u64)>> {
    let width = if space.word(chunk + 8)? & !7 == SIZES[0] { 1 } else { 2 };
    let mut bytes = vec![0; usize::try_from(BINS * width + BINS * 8).ok()?];
    if !space.read(chunk + 16, &mut bytes) {
        return None;
    }
    let (counters, entries) = bytes.split_at(usize::try_from(BINS * width).ok()?);
    let counters = counters.chunks_exact(usize::try_from(width).ok()?);
    let counters =
        counters.map(|one| one.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)));
    let entries = (0..entries.len()).step_by(8).filter_map(|at| word_of(entries, at));
    let mut found = Vec::new();
    for (index, (count, mut entry)) in counters.zip(entries).enumerate() {
        let size = index as u64 * 16 + SMALLEST;
        if (count == 0) != (entry == 0) || count > MAX_CACHED {
            return None;
        }
        for number in 0..count {
            let is_chunk = entry.checked_sub(16).is_some_and(|chunk| {
                is_inside(segments, chunk, size)
                    && space.word(chunk + 8).is_some_and(|word| word & !7 == size)
            });
            if !is_chunk {
                // The first of a list is sure; later ones can change while they are read.
                if number == 0 {
                    return None;
                }
                break;
            }
            found.push((entry - 16, size));
            let Some(next) = link(space, segments, entry, 16) else { break };
            entry = next;
        }
    }
    Some(found)
}

/// The next of a list, whose pointer is at `at`; from 2.32 on it is masked with its own address. `offset` leads from a
/// chunk to what the list points to.
fn link(space: &Space<'_>, segments: &[Segment], at: u64, offset: u64) -> Option<u64> {
    let word = space.word(at)?;
    let is_chunk =
        |to: &u64| to.checked_sub(offset).is_some_and(|chunk| is_inside(segments, chunk, SMALLEST));
    [word ^ (at >> 12), word].into_iter().find(is_chunk)
}

fn is_inside(segments: &[Segment], chunk: u64, bytes: u64) -> bool {
    chunk.is_multiple_of(16)
        && segments.iter().any(|one| {
            one.start <= chunk && chunk.checked_add(bytes).is_some_and(|end| end <= one.end)
        })
}
