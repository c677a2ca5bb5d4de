//! Chunks that look in use and are not: those in fastbins and in threads' caches.

use std::collections::{HashMap, HashSet};

use super::{
    OVERHEAD, SMALLEST, Space,
    arena::Segment,
    layout::{CACHES, CacheLayout, FASTBINS, Layout, cache_of},
};
use crate::space::{Region, word_of};

/// Most chunks in one list of a thread's cache: a tunable that no program sets higher.
const MAX_CACHED: u64 = 65_535;
/// Reads of a cache that makes no sense.
const CACHE_ATTEMPTS: u32 = 8;
/// Bytes before an object.
const HEADER: u64 = 16;

/// What the caches of all threads have.
#[derive(Default)]
pub(super) struct Cached {
    /// Chunks, with their sizes.
    pub(super) chunks: HashMap<u64, u64>,
    /// Bytes of chunks that caches count and that were not found.
    pub(super) lost_bytes: u64,
    /// Caches that were found.
    pub(super) caches: u64,
}

/// The chunks in the fastbins of all arenas, and whether each list leads to its end.
pub(super) fn fast_chunks(
    space: &Space<'_>,
    segments: &[Segment],
    layout: &Layout,
) -> (HashSet<u64>, bool) {
    let (mut all, mut are_whole) = (HashSet::new(), true);
    let Some((_, first)) = layout.fastbins else { return (all, true) };
    let mut states: Vec<u64> = segments.iter().map(|segment| segment.state).collect();
    states.dedup();
    for state in states {
        for bin in 0..FASTBINS {
            let size = bin * 16 + SMALLEST;
            let mut next = space.field(state, first + bin * 8).unwrap_or_default();
            // A chunk that comes twice ends a circle.
            while next != 0 {
                if !is_chunk(space, segments, next, size) || !all.insert(next) {
                    are_whole = false;
                    break;
                }
                next =
                    link(space, next + HEADER, |to| to == 0 || is_chunk(space, segments, to, size))
                        .unwrap_or(1);
            }
        }
    }
    (all, are_whole)
}

/// Whether a chunk in use can hold a thread's cache: what the first lists count agrees with where they begin.
pub(super) fn may_hold_one(region: &mut Region<'_>, chunk: u64, bytes: u64) -> bool {
    let Some(layout) = cache_of(bytes) else { return false };
    let Some(counters) = region.word(chunk + HEADER) else { return false };
    let first = chunk + HEADER + layout.lists * layout.width;
    let bits = layout.width * 8;
    let agrees = |list: &u64| {
        let Some(entry) = region.word(first + list * 8) else { return false };
        let is_zero = u64::from((counters >> (list * bits)).trailing_zeros()) >= bits;
        entry.is_multiple_of(16) && (layout.counts_left || is_zero == (entry == 0))
    };
    // One may change while it is read.
    (0..64 / bits).filter(agrees).count() as u64 >= 64 / bits - 1
}

/// Chunks in the caches of threads; `candidates` are chunks that may hold a cache. Chunks with a mapping of their own are
/// not told apart from those that are in use.
pub(super) fn cached_chunks(space: &Space<'_>, segments: &[Segment], candidates: &[u64]) -> Cached {
    let mut designs: [Cached; CACHES.len()] = Default::default();
    for chunk in candidates {
        // Lists can change while they are read: the reading that lost least counts.
        let mut best: Option<(usize, Cached)> = None;
        for _ in 0..CACHE_ATTEMPTS {
            let lost = best.as_ref().map_or(u64::MAX, |(_, best)| best.lost_bytes);
            if lost == 0 {
                break;
            }
            best = cache(space, segments, *chunk).filter(|(_, one)| one.lost_bytes < lost).or(best);
        }
        let Some((design, best)) = best else { continue };
        let all = &mut designs[design];
        all.caches += 1;
        all.lost_bytes = all.lost_bytes.saturating_add(best.lost_bytes);
        all.chunks.extend(best.chunks);
    }
    // An empty cache and an object of zeros look the same. Chunks in a list prove the design.
    let proven = designs.iter().filter(|one| !one.chunks.is_empty()).count();
    if proven > 1 {
        return Cached::default();
    }
    let best = designs.into_iter().max_by_key(|one| (!one.chunks.is_empty(), one.caches));
    best.unwrap_or_default()
}

/// The cache in a chunk, and the number of its design; `None` where it is none.
fn cache(space: &Space<'_>, segments: &[Segment], chunk: u64) -> Option<(usize, Cached)> {
    let layout = cache_of(space.field(chunk, OVERHEAD)? & !7)?;
    let counters = layout.lists * layout.width;
    let mut bytes = vec![0; usize::try_from(counters + layout.lists * 8).ok()?];
    if !space.read(chunk.checked_add(HEADER)?, &mut bytes) {
        return None;
    }
    let (counters, entries) = bytes.split_at(usize::try_from(counters).ok()?);
    let counters = counters.chunks_exact(usize::try_from(layout.width).ok()?);
    let counters: Vec<u64> = counters
        .map(|one| one.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
        .collect();
    let entries: Vec<u64> =
        (0..entries.len()).step_by(8).filter_map(|at| word_of(entries, at)).collect();
    let most = limit(layout, &counters, &entries)?;
    let mut found = Cached::default();
    let mut key = None;
    for (index, (counter, first)) in counters.iter().zip(&entries).enumerate() {
        let count = if layout.counts_left { most.checked_sub(*counter)? } else { *counter };
        if (count == 0) != (*first == 0) {
            return None;
        }
        let list = List { layout, index: index as u64, count, first: *first };
        list.follow(space, segments, &mut key, &mut found)?;
    }
    let design = CACHES.iter().position(|one| one.chunk == layout.chunk)?;
    Some((design, found))
}

/// The most chunks that a list can have. Where counters say what is left, empty lists have all of it, and the same.
fn limit(layout: &CacheLayout, counters: &[u64], entries: &[u64]) -> Option<u64> {
    if !layout.counts_left {
        return Some(MAX_CACHED);
    }
    let mut empty = counters.iter().zip(entries).filter(|(_, first)| **first == 0);
    let most = *empty.next()?.0;
    (most > 0 && empty.all(|(left, _)| *left == most)).then_some(most)
}

/// A list of a cache.
struct List<'a> {
    layout: &'a CacheLayout,
    index: u64,
    count: u64,
    first: u64,
}

impl List<'_> {
    /// Adds its chunks. `None` where the first one is none: then there is no cache.
    fn follow(
        &self,
        space: &Space<'_>,
        segments: &[Segment],
        key: &mut Option<u64>,
        found: &mut Cached,
    ) -> Option<()> {
        let mut object = self.first;
        let mut met = 0;
        while met < self.count {
            let chunk = object.wrapping_sub(HEADER);
            let size = if object == 0 { None } else { self.size(space, segments, chunk) };
            let size = size.filter(|_| !self.layout.has_key || has_key(space, object, key));
            let Some(size) = size else { break };
            found.chunks.insert(chunk, size);
            met += 1;
            let is_next =
                |to: u64| to == 0 || self.size(space, segments, to.wrapping_sub(HEADER)).is_some();
            object = link(space, object, is_next).unwrap_or(1);
        }
        // The list of so many chunks ends there.
        let lost = (self.count - met).max(u64::from(object != 0));
        found.lost_bytes = found.lost_bytes.saturating_add(lost.saturating_mul(self.least()));
        (self.count == 0 || met > 0).then_some(())
    }

    /// The least bytes of its chunks.
    fn least(&self) -> u64 {
        let small = self.index.min(self.layout.small) * 16 + SMALLEST;
        match self.index.checked_sub(self.layout.small) {
            Some(large) => 1024 << large.min(20),
            None => small,
        }
    }

    /// The bytes of a chunk that can be in it.
    fn size(&self, space: &Space<'_>, segments: &[Segment], chunk: u64) -> Option<u64> {
        let size = space.field(chunk, OVERHEAD)? & !7;
        let least = self.least();
        let fits = if self.index < self.layout.small {
            size == least
        } else {
            (least..least * 2).contains(&size)
        };
        (fits && is_inside(segments, chunk, size)).then_some(size)
    }
}

/// Whether the second word of an object is that of the others in its cache.
fn has_key(space: &Space<'_>, object: u64, key: &mut Option<u64>) -> bool {
    space.field(object, 8).is_none_or(|own| *key.get_or_insert(own) == own)
}

/// The next of a list, whose pointer is at `at`; from 2.32 on it is masked with its own address.
fn link(space: &Space<'_>, at: u64, is_one: impl Fn(u64) -> bool) -> Option<u64> {
    let word = space.word(at)?;
    [word ^ (at >> 12), word].into_iter().find(|to| is_one(*to))
}

fn is_chunk(space: &Space<'_>, segments: &[Segment], chunk: u64, size: u64) -> bool {
    is_inside(segments, chunk, size)
        && space.field(chunk, OVERHEAD).is_some_and(|word| word & !7 == size)
}

fn is_inside(segments: &[Segment], chunk: u64, bytes: u64) -> bool {
    chunk.is_multiple_of(16)
        && segments.iter().any(|one| {
            one.start <= chunk && chunk.checked_add(bytes).is_some_and(|end| end <= one.end)
        })
}
