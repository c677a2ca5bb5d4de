//! Chunks that look in use and are not: those in threads' caches.

use std::collections::{HashMap, HashSet};

use super::{
    HEADER, OVERHEAD, SMALLEST, Space,
    fast::{Inside, LIST_ATTEMPTS, target},
    layout::{CACHES, CacheLayout, cache_of},
};
use crate::space::{Region, word_of};

/// Most chunks in one list of a thread's cache: a tunable that no program sets higher.
const MAX_CACHED: u64 = 65_535;
/// Chunks in lists of caches that are read, at most.
const MAX_STEPS: u64 = 1 << 23;
/// Whole lists that prove a cache of which one list contradicts.
const PROVING_LISTS: usize = 3;
/// Bytes of a free chunk that are read: its size, the next one, and a key.
const FREE: usize = 32;

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
pub(super) fn cached_chunks(space: &Space<'_>, inside: &Inside, candidates: &[u64]) -> Cached {
    let mut designs: [Cached; CACHES.len()] = Default::default();
    let mut left = MAX_STEPS;
    for chunk in candidates {
        let cache = Cache { space, inside, chunk: *chunk };
        let Some((design, found)) = cache.read(&mut left) else { continue };
        let all = &mut designs[design];
        all.caches += 1;
        all.lost_bytes = all.lost_bytes.saturating_add(found.lost_bytes);
        all.chunks.extend(found.chunks);
    }
    // An empty cache and an object of zeros look the same. Chunks in a list prove the design.
    let proven = designs.iter().filter(|one| !one.chunks.is_empty()).count();
    if proven > 1 {
        return Cached::default();
    }
    let best = designs.into_iter().max_by_key(|one| (!one.chunks.is_empty(), one.caches));
    best.unwrap_or_default()
}

/// A list of a cache as the cache has it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Head {
    /// Chunks; `None` where the counter cannot be.
    count: Option<u64>,
    first: u64,
}

/// A list, as it was read best.
#[derive(Clone)]
struct List {
    head: Head,
    /// Chunks, with their sizes and keys.
    chunks: Vec<(u64, u64, u64)>,
    is_whole: bool,
    /// Whether its head changed between two readings.
    moves: bool,
}

impl List {
    fn count(&self) -> u64 {
        self.head.count.unwrap_or_default()
    }
}

/// A chunk that may hold a cache.
struct Cache<'a> {
    space: &'a Space<'a>,
    inside: &'a Inside,
    chunk: u64,
}

impl Cache<'_> {
    /// The number of its design, and what it has; `None` where it is no cache.
    fn read(&self, left: &mut u64) -> Option<(usize, Cached)> {
        let layout = cache_of(self.space.field(self.chunk, OVERHEAD)? & !7)?;
        let design = CACHES.iter().position(|one| one.chunk == layout.chunk)?;
        let of = |head: Head| List { head, chunks: Vec::new(), is_whole: false, moves: false };
        let mut lists: Vec<List> = self.heads(layout)?.into_iter().map(of).collect();
        let mut key = None;
        for attempt in 0..LIST_ATTEMPTS {
            if attempt > 0 {
                for (list, head) in lists.iter_mut().zip(self.heads(layout)?) {
                    if !list.is_whole {
                        list.moves |= list.head != head;
                        list.head = head;
                    }
                }
            }
            self.follow(layout, &mut lists, &mut key, left);
            if lists.iter().all(|list| list.is_whole) || *left == 0 {
                break;
            }
        }
        let proving = lists.iter().filter(|list| list.is_whole && !list.chunks.is_empty()).count();
        let contradicts = |list: &&List| !list.is_whole && list.chunks.is_empty() && !list.moves;
        let contradicting = lists.iter().filter(contradicts).count();
        if contradicting > usize::from(proving >= PROVING_LISTS) {
            return None;
        }
        let most = lists.iter().filter(|list| list.is_whole).map(List::count).max();
        let mut found = Cached::default();
        for (index, list) in (0..).zip(&lists) {
            // The list of so many chunks ends there.
            let count = if list.chunks.is_empty() { list.count().min(most?) } else { list.count() };
            let lost = count.saturating_sub(list.chunks.len() as u64);
            let lost = if list.is_whole { 0 } else { lost.max(1) };
            let bytes = lost.saturating_mul(least(layout, index));
            found.lost_bytes = found.lost_bytes.saturating_add(bytes);
            found.chunks.extend(list.chunks.iter().map(|(chunk, bytes, _)| (*chunk, *bytes)));
        }
        Some((design, found))
    }

    /// All lists as the cache has them.
    fn heads(&self, layout: &CacheLayout) -> Option<Vec<Head>> {
        let counters = layout.lists * layout.width;
        let mut bytes = vec![0; usize::try_from(counters + layout.lists * 8).ok()?];
        if !self.space.read(self.chunk.checked_add(HEADER)?, &mut bytes) {
            return None;
        }
        let (counters, entries) = bytes.split_at(usize::try_from(counters).ok()?);
        let counters = counters.chunks_exact(usize::try_from(layout.width).ok()?);
        let counters: Vec<u64> = counters
            .map(|one| one.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
            .collect();
        let entries: Vec<u64> =
            (0..entries.len()).step_by(8).filter_map(|at| word_of(entries, at)).collect();
        let most = if layout.counts_left { most_left(&counters, &entries)? } else { 0 };
        let head = |(counter, first): (&u64, &u64)| {
            let count =
                if layout.counts_left { most.checked_sub(*counter) } else { Some(*counter) };
            let count =
                count.filter(|count| *count <= MAX_CACHED && (*count == 0) == (*first == 0));
            Head { count, first: *first }
        };
        Some(counters.iter().zip(&entries).map(head).collect())
    }

    /// Follows all lists that are not whole side by side, so that little changes meanwhile.
    fn follow(
        &self,
        layout: &CacheLayout,
        lists: &mut [List],
        key: &mut Option<u64>,
        left: &mut u64,
    ) {
        let open = lists.iter().enumerate().filter(|(_, list)| !list.is_whole);
        let open = open.filter_map(|(list, one)| Some((list, one.head.count?, one.head.first)));
        let run = |(list, count, first)| Run { list, count, object: Some(first), chunks: vec![] };
        let mut runs: Vec<Run> = open.map(run).collect();
        let mut met = HashSet::new();
        loop {
            let mut now: Vec<&mut Run> = runs.iter_mut().filter(|run| run.wants_more()).collect();
            let places: Vec<u64> = now.iter().filter_map(|run| run.chunk()).collect();
            let steps = places.len() as u64;
            if steps == 0 || steps > *left {
                break;
            }
            *left -= steps;
            let chunks = self.space.read_each::<FREE>(&places);
            for ((run, chunk), bytes) in now.iter_mut().zip(places).zip(chunks) {
                // A chunk that comes twice ends a circle.
                let bytes = bytes.filter(|_| met.insert(chunk));
                run.object = bytes.and_then(|bytes| self.step(layout, run, chunk, &bytes));
            }
        }
        if layout.has_key && key.is_none() {
            *key = most_common(runs.iter().flat_map(|run| &run.chunks).map(|(.., key)| *key));
        }
        for mut run in runs {
            // The second words of all chunks are the same.
            let is_other = |(.., own): &(u64, u64, u64)| key.is_some_and(|key| *own != key);
            if let Some(first) = run.chunks.iter().position(is_other) {
                run.chunks.truncate(first);
                run.object = None;
            }
            let list = &mut lists[run.list];
            list.is_whole = run.object == Some(0) && run.chunks.len() as u64 == run.count;
            if list.is_whole || run.chunks.len() > list.chunks.len() {
                list.chunks = run.chunks;
            }
        }
    }

    /// Adds a chunk to a list; the object that follows.
    fn step(&self, layout: &CacheLayout, run: &mut Run, chunk: u64, bytes: &[u8]) -> Option<u64> {
        let [size, next, key] = [8, 16, 24].map(|at| word_of(bytes, at).unwrap_or_default());
        let (size, index) = (size & !7, run.list as u64);
        let least = least(layout, index);
        let is_small = index < layout.small;
        let fits = if is_small { size == least } else { (least..least * 2).contains(&size) };
        if !fits || self.inside.segment(chunk, size).is_none() {
            return None;
        }
        run.chunks.push((chunk, size, key));
        let is_object = |to: u64| to == 0 || self.inside.has(to.wrapping_sub(HEADER));
        target(chunk + HEADER, next, is_object)
    }
}

/// A list that is followed.
struct Run {
    /// Its number.
    list: usize,
    count: u64,
    /// The next object, 0 at the end; `None` where the list breaks.
    object: Option<u64>,
    /// Chunks, with their sizes and keys.
    chunks: Vec<(u64, u64, u64)>,
}

impl Run {
    fn wants_more(&self) -> bool {
        self.chunk().is_some()
    }

    /// The next chunk.
    fn chunk(&self) -> Option<u64> {
        let is_open = (self.chunks.len() as u64) < self.count;
        self.object.filter(|object| is_open && *object != 0)?.checked_sub(HEADER)
    }
}

/// The least bytes of the chunks in a list.
fn least(layout: &CacheLayout, index: u64) -> u64 {
    match index.checked_sub(layout.small) {
        Some(large) => 1024 << large.min(20),
        None => index * 16 + SMALLEST,
    }
}

/// The most chunks that a list can have, where counters say what is left: empty lists have all of it.
fn most_left(counters: &[u64], entries: &[u64]) -> Option<u64> {
    let empty = counters.iter().zip(entries).filter(|(_, first)| **first == 0);
    most_common(empty.map(|(left, _)| *left))
}

/// The number other than 0 that comes most often.
fn most_common(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for number in numbers.filter(|number| *number != 0) {
        *counts.entry(number).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(number, count)| (*count, *number)).map(|(number, _)| number)
}
