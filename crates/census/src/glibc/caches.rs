//! Chunks that look in use and are not: those in threads' caches.

use std::collections::{HashMap, HashSet};

use super::{
    fast::{Inside, LIST_ATTEMPTS, target},
    layout::{CACHES, CacheLayout, HEADER, OVERHEAD, SMALLEST, cache_of},
};
use crate::{
    region::Region,
    space::{Space, word_of},
};

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
/// not distinguished from those that are in use.
pub(super) fn cached_chunks(space: &Space<'_>, inside: &Inside, candidates: &[u64]) -> Cached {
    let mut designs: [Cached; CACHES.len()] = Default::default();
    let mut left = MAX_STEPS;
    for chunk in candidates {
        let cache = Cache { space, inside, chunk: *chunk };
        let kept = space.budget.kept();
        let found = cache.read(&mut left);
        space.budget.gives_back(space.budget.kept().saturating_sub(kept));
        let Some((design, found)) = found else { continue };
        if !space.budget.keeps::<[u64; 4]>(found.chunks.len()) {
            break;
        }
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

    /// Its head as it is now.
    fn renew(&mut self, head: Head) {
        self.moves |= self.head != head;
        self.head = head;
    }

    /// Whether it makes no sense, and did not change.
    fn contradicts(&self) -> bool {
        !self.is_whole && self.chunks.is_empty() && !self.moves
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
        let mut bytes = vec![0; usize::try_from(layout.lists * (layout.width + 8)).ok()?];
        self.refresh(&mut bytes)?;
        let most = if layout.counts_left { most_left(layout, &bytes)? } else { 0 };
        let head = |bytes: &[u8], index| head(layout, most, bytes, index);
        let of = |head| List { head, chunks: Vec::new(), is_whole: false, moves: false };
        let mut lists: Vec<List> = (0..layout.lists).map(|index| of(head(&bytes, index))).collect();
        let mut key = None;
        // This reader may have been interrupted itself, so that all has changed.
        for attempt in 0..2 {
            if attempt > 0 {
                self.refresh(&mut bytes)?;
                for (index, list) in (0..).zip(&mut lists) {
                    list.renew(head(&bytes, index));
                }
            }
            self.follow(layout, &mut lists, 0, (&mut key, Run::is_whole), left);
            if lists.iter().filter(|list| list.contradicts()).count() <= lists.len() / 2 {
                break;
            }
            if attempt > 0 {
                return None;
            }
        }
        // What a thread changes without pause is read a list at a time, as fast as can be.
        for index in 0..lists.len() {
            for _ in 1..LIST_ATTEMPTS {
                if lists[index].is_whole {
                    break;
                }
                self.refresh(&mut bytes)?;
                let list = &mut lists[index..=index];
                list[0].renew(head(&bytes, index as u64));
                self.follow(layout, list, index, (&mut key, Run::is_whole), left);
            }
        }
        if layout.has_key && key.is_none() {
            // No list is whole: what most chunks have is the key.
            self.follow(layout, &mut lists, 0, (&mut key, |_| true), left);
        }
        Some((design, found_in(layout, &lists)?))
    }

    /// Reads counters and first objects again.
    fn refresh(&self, bytes: &mut [u8]) -> Option<()> {
        self.space.read(self.chunk.checked_add(HEADER)?, bytes).then_some(())
    }

    /// Follows lists side by side, of which the first has a number.
    fn follow(
        &self,
        layout: &CacheLayout,
        lists: &mut [List],
        first: usize,
        (key, proves_key): (&mut Option<u64>, fn(&Run) -> bool),
        left: &mut u64,
    ) {
        let open = (first..).zip(lists.iter());
        let open = open.filter_map(|(list, one)| Some((list, one.head.count?, one.head.first)));
        let run = |(list, count, first)| Run { list, count, object: Some(first), chunks: vec![] };
        let mut runs: Vec<Run> = open.map(run).collect();
        let mut met = HashSet::new();
        loop {
            let mut now: Vec<&mut Run> = runs.iter_mut().filter(|run| run.wants_more()).collect();
            let places: Vec<u64> = now.iter().filter_map(|run| run.chunk()).collect();
            let steps = places.len() as u64;
            let is_room = self.space.budget.keeps::<[u64; 8]>(places.len());
            if steps == 0 || steps > *left || !is_room {
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
            // An object that the program has got meanwhile ends its list.
            let proven = runs.iter().filter(|run| proves_key(run));
            *key = most_common(proven.flat_map(|run| &run.chunks).map(|(.., key)| *key));
        }
        for mut run in runs {
            // The second words of all chunks are the same.
            let is_other =
                |(.., own): &(u64, u64, u64)| layout.has_key && key.is_none_or(|key| *own != key);
            if let Some(others) = run.chunks.iter().position(is_other) {
                run.chunks.truncate(others);
                run.object = None;
            }
            let list = &mut lists[run.list - first];
            list.is_whole = run.is_whole();
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

/// What the lists of a chunk have; `None` where they make no sense, so that it is no cache.
fn found_in(layout: &CacheLayout, lists: &[List]) -> Option<Cached> {
    let proving = lists.iter().filter(|list| list.is_whole && !list.chunks.is_empty()).count();
    let contradicting = lists.iter().filter(|list| list.contradicts()).count();
    if contradicting > usize::from(proving >= PROVING_LISTS) {
        return None;
    }
    let most = lists.iter().filter(|list| list.is_whole).map(List::count).max();
    let mut found = Cached::default();
    for (index, list) in (0..).zip(lists) {
        // The list of so many chunks ends there.
        let count = if list.chunks.is_empty() { list.count().min(most?) } else { list.count() };
        let lost = count.saturating_sub(list.chunks.len() as u64);
        let lost = if list.is_whole { 0 } else { lost.max(1) };
        let bytes = lost.saturating_mul(least(layout, index));
        found.lost_bytes = found.lost_bytes.saturating_add(bytes);
        found.chunks.extend(list.chunks.iter().map(|(chunk, bytes, _)| (*chunk, *bytes)));
    }
    Some(found)
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
    fn is_whole(&self) -> bool {
        self.object == Some(0) && self.chunks.len() as u64 == self.count
    }

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

/// The head of a list in the bytes of a cache: first all counters, then the first objects.
fn head(layout: &CacheLayout, most: u64, bytes: &[u8], index: u64) -> Head {
    let counter = counter(layout, bytes, index);
    let first = (layout.lists * layout.width + index * 8) as usize;
    let first = word_of(bytes, first).unwrap_or_default();
    let count = if layout.counts_left { most.checked_sub(counter) } else { Some(counter) };
    let count = count.filter(|count| *count <= MAX_CACHED && (*count == 0) == (first == 0));
    Head { count, first }
}

fn counter(layout: &CacheLayout, bytes: &[u8], index: u64) -> u64 {
    let (at, width) = ((index * layout.width) as usize, layout.width as usize);
    let bytes = bytes.get(at..at + width).unwrap_or_default();
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// The most chunks that a list can have, where counters say what is left: empty lists have all of it.
fn most_left(layout: &CacheLayout, bytes: &[u8]) -> Option<u64> {
    let first = |index: u64| word_of(bytes, (layout.lists * layout.width + index * 8) as usize);
    let empty = (0..layout.lists).filter(|index| first(*index) == Some(0));
    most_common(empty.map(|index| counter(layout, bytes, index)))
}

/// The number other than 0 that comes most often.
fn most_common(numbers: impl Iterator<Item = u64>) -> Option<u64> {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    for number in numbers.filter(|number| *number != 0) {
        *counts.entry(number).or_default() += 1;
    }
    counts.into_iter().max_by_key(|(number, count)| (*count, *number)).map(|(number, _)| number)
}
