//! The interpreter's own list of its arenas, which says whether all of them were found.
//!
//! It is an array of 48 bytes each: the address at 0 (0: none), where the next new pool would be at 8, free pools at 16,
//! all pools at 20. Its address is a variable, beside that of its length (16, 32, 64 …); how many arenas there are is
//! another one close by. Up to 3.11 they are variables of their own, in the order that the compiler chose; from 3.12 on
//! they are a structure, of which interpreters with a GIL of their own have one each, outside the program's data. So what
//! points to a list that knows a pool is searched for, and its length and number by what they must be.

use std::collections::BTreeSet;

use super::pools::{MIN_POOLS, Pool, in_use};
use crate::{
    found::{Taken, pieces_at},
    region::Region,
    space::{PAGE, Range, RangeKind, Space, word_of},
};

/// Bytes of an entry.
const ENTRY: u64 = 48;
/// Pools of an arena: 256 KiB or 1 MiB, or 2 MiB for huge pages (3.15).
const POOLS: [u64; 2] = [64, 128];
/// The shortest list, and how often that can double.
const MIN_LENGTH: u64 = 16;
const MAX_DOUBLINGS: u32 = 18;
/// Where the length is, at most so far from the list's address; and the number.
const LENGTH_WITHIN: u64 = 32;
const NUMBER_WITHIN: u64 = 1120;
/// Pools by which a list is searched for, and lists and places that are tried for one.
const SEEDS: usize = 16;
const MAX_LISTS: usize = 16;
/// How often a list is read: the process runs.
const LIST_ATTEMPTS: u32 = 3;
/// Bytes of a pointer with what is read behind it.
const POINTER: usize = 32;
/// Bytes that are searched, at most.
const MAX_SEARCHED_BYTES: u64 = 256 << 20;

/// An arena as the list has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arena {
    pub(super) address: u64,
    pub(super) bytes: u64,
    /// Its number.
    pub(super) index: u64,
    /// Its first pool, and behind the last one that was ever used.
    pub(super) first: u64,
    pub(super) carved: u64,
    /// Free pools, with those that were never used.
    pub(super) free: u64,
    pub(super) total: u64,
}

impl Arena {
    /// Pools that were never used.
    pub(super) fn untouched(&self, pool_bytes: u64) -> u64 {
        self.total - (self.carved - self.first) / pool_bytes
    }
}

/// An entry of a list.
pub(super) enum Entry {
    Unused,
    Arena(Arena),
    Nonsense,
}

fn entry(space: &Space<'_>, bytes: &[u8], index: u64, pool_bytes: u64) -> Entry {
    let words = [0, 8, 16].map(|at| word_of(bytes, at).unwrap_or_default());
    let [address, carved, counts] = words;
    if address == 0 {
        return Entry::Unused;
    }
    let (free, total) = (counts & 0xffff_ffff, counts >> 32);
    let sense = || {
        let first = address.checked_next_multiple_of(pool_bytes)?;
        let cut = u64::from(first != address);
        let pools = POOLS.into_iter().find(|pools| pools - cut == total)?;
        let bytes = pools * pool_bytes;
        let end = address.checked_add(bytes)?;
        let begun = carved.checked_sub(first)?;
        let is_arena = address.is_multiple_of(16)
            && begun.is_multiple_of(pool_bytes)
            && begun / pool_bytes <= total
            && total - begun / pool_bytes <= free
            && free <= total
            && is_heap(space, address, end);
        is_arena.then_some(Arena { address, bytes, index, first, carved, free, total })
    };
    sense().map_or(Entry::Nonsense, Entry::Arena)
}

/// Whether memory between two addresses is mapped, writable and anonymous.
fn is_heap(space: &Space<'_>, start: u64, end: u64) -> bool {
    let mut at = start;
    while at < end {
        let Some(range) = space.range_at(at).filter(|range| range.is_heap()) else {
            return false;
        };
        at = range.end;
    }
    true
}

/// A list of arenas.
pub(super) struct List {
    /// The address of its first entry.
    address: u64,
    /// The arenas, by address.
    pub(super) arenas: Vec<Arena>,
}

impl List {
    /// What the list has now where it had this arena.
    pub(super) fn again(&self, space: &Space<'_>, arena: &Arena, pool_bytes: u64) -> Entry {
        let mut bytes = [0; ENTRY as usize];
        let at = self.address.saturating_add(arena.index * ENTRY);
        if space.read(at, &mut bytes) {
            entry(space, &bytes, arena.index, pool_bytes)
        } else {
            Entry::Nonsense
        }
    }

    /// The arena that a pool lies in.
    pub(super) fn arena_of(&self, pool: &Pool) -> Option<&Arena> {
        let next = self.arenas.partition_point(|arena| arena.address <= pool.address);
        let arena = self.arenas.get(next.checked_sub(1)?)?;
        (pool.address < arena.address + arena.bytes).then_some(arena)
    }
}

/// The lists of all interpreters of the process whose pools these are.
pub(super) fn lists(
    space: &Space<'_>,
    taken: &Taken,
    pools: &[Pool],
    pool_bytes: u64,
) -> Vec<List> {
    let (mut lists, mut left) = (Vec::new(), pools.to_vec());
    let pointers = pointers(space, of_programs(space), |_| true);
    while lists.len() < MAX_LISTS && add(space, &pointers, pool_bytes, &mut left, &mut lists) {}
    // Interpreters beyond the first have theirs in a heap.
    if !lists.is_empty() && in_use(&left) >= MIN_POOLS {
        let heaps = space.heaps();
        let is_open = |range: &&Range| !taken.meets(range.start, range.end);
        let heaps = heaps.filter(is_open).map(|range| (range.start, range.end)).collect();
        let pointers = self::pointers(space, heaps, is_structure);
        while lists.len() < MAX_LISTS && add(space, &pointers, pool_bytes, &mut left, &mut lists) {}
    }
    lists
}

/// Adds the list that knows one of the pools that are left, and takes its pools from these; whether there is one.
fn add(
    space: &Space<'_>,
    pointers: &[(u64, u64)],
    pool_bytes: u64,
    left: &mut Vec<Pool>,
    lists: &mut Vec<List>,
) -> bool {
    // One of each arena, as far as arenas can be distinguished without a list.
    let mut seeds: Vec<&Pool> = left.iter().filter(|pool| pool.used() > 0).collect();
    seeds.dedup_by_key(|pool| (pool.arena(), pool.address / (POOLS[0] * pool_bytes)));
    let step = (seeds.len() / SEEDS).max(1);
    let seeds = seeds.into_iter().step_by(step).take(SEEDS);
    let Some(list) = seeds.into_iter().find_map(|seed| list(space, pointers, seed, pool_bytes))
    else {
        return false;
    };
    left.retain(|pool| list.arena_of(pool).is_none());
    lists.push(list);
    true
}

/// Data of programs and libraries, and what follows it: variables that are 0 at first.
fn of_programs(space: &Space<'_>) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    let mut file_end = 0;
    for range in &space.ranges {
        let is_data = range.kind == RangeKind::File && range.writable;
        let follows = range.start == file_end && range.is_heap();
        if range.kind == RangeKind::File {
            file_end = range.end;
        }
        if is_data || follows {
            found.push((range.start, range.end));
        }
    }
    found
}

/// Words that point into heaps, with their addresses; `wanted` sees each word with the three behind it.
fn pointers(
    space: &Space<'_>,
    stretches: Vec<(u64, u64)>,
    wanted: fn([u64; 4]) -> bool,
) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    let mut left = MAX_SEARCHED_BYTES;
    let heaps = || space.heaps();
    let all = heaps().map(|range| range.start).min()..heaps().map(|range| range.end).max();
    let mut heap = (0, 0);
    for bounds in stretches {
        left -= pieces_at(space, bounds, &Taken::default(), left, |at, piece| {
            for (words, at) in piece.windows(POINTER).step_by(8).zip((at..).step_by(8)) {
                let word = word_of(words, 0).unwrap_or_default();
                if !word.is_multiple_of(8) || !all.contains(&Some(word)) {
                    continue;
                }
                if !(heap.0..heap.1).contains(&word) {
                    let range = space.range_at(word).filter(|range| range.is_heap());
                    let Some(range) = range else { continue };
                    heap = (range.start, range.end);
                }
                let is_wanted =
                    || wanted([0, 8, 16, 24].map(|by| word_of(words, by).unwrap_or_default()));
                // With what is read of each.
                if is_wanted() && space.budget.keeps::<[u64; 6]>(1) {
                    found.push((at, word));
                }
            }
        });
    }
    found
}

/// Whether these are the variables of 3.12 and later: the list, its length, its first unused entry, and its first one
/// with free pools.
fn is_structure([list, length, unused, usable]: [u64; 4]) -> bool {
    let length = length & 0xffff_ffff;
    let inside = |at: u64| {
        let offset = at.checked_sub(list);
        at == 0 || offset.is_some_and(|by| by.is_multiple_of(ENTRY) && by / ENTRY < length)
    };
    is_length(length) && inside(unused) && inside(usable)
}

fn is_length(length: u64) -> bool {
    (0..MAX_DOUBLINGS).any(|by| MIN_LENGTH << by == length)
}

/// The one list that these words point to and that knows the pool.
fn list(space: &Space<'_>, pointers: &[(u64, u64)], seed: &Pool, pool_bytes: u64) -> Option<List> {
    let places: Vec<u64> = pointers
        .iter()
        .map(|(_, list)| list.saturating_add(seed.arena() * ENTRY).min(u64::MAX - PAGE))
        .collect();
    let entries = space.read_each::<{ ENTRY as usize }>(&places);
    let has_seed = |bytes: &[u8]| match entry(space, bytes, seed.arena(), pool_bytes) {
        Entry::Arena(arena) => (arena.first..arena.carved).contains(&seed.address),
        _ => false,
    };
    let known = pointers.iter().zip(&entries);
    let known = known.filter(|(_, bytes)| bytes.as_ref().is_some_and(|bytes| has_seed(bytes)));
    let mut found: Vec<List> = Vec::new();
    for ((variable, address), _) in known.take(MAX_LISTS) {
        let tried =
            (0..LIST_ATTEMPTS).find_map(|_| read(space, *variable, *address, seed, pool_bytes));
        if let Some(list) = tried {
            found.push(list);
        }
    }
    let first = found.pop()?;
    // Variables that disagree: none is believed.
    let agree = found.iter().all(|other| {
        let addresses = |list: &List| -> BTreeSet<u64> {
            list.arenas.iter().map(|arena| arena.address).collect()
        };
        addresses(other) == addresses(&first)
    });
    agree.then_some(first)
}

/// The list at an address that a variable holds: its length and the number of arenas must stand close by.
fn read(
    space: &Space<'_>,
    variable: u64,
    address: u64,
    seed: &Pool,
    pool_bytes: u64,
) -> Option<List> {
    let start = variable.saturating_sub(NUMBER_WITHIN);
    let mut region = Region::new(space, start, variable.checked_add(NUMBER_WITHIN + 8)?);
    let near: Vec<(u64, u64)> = (start..variable + NUMBER_WITHIN + 8)
        .step_by(8)
        .filter_map(|at| Some((at, region.word(at)?)))
        .collect();
    let lengths = near.iter().filter(|(at, word)| {
        at.abs_diff(variable) <= LENGTH_WITHIN
            && is_length(word & 0xffff_ffff)
            && word & 0xffff_ffff > seed.arena()
    });
    let mut found: Vec<Vec<Arena>> = Vec::new();
    for (at, length) in lengths {
        let Some(arenas) = arenas(space, address, length & 0xffff_ffff, pool_bytes) else {
            continue;
        };
        let number = arenas.len() as u64;
        let is_said = near.iter().any(|(place, word)| place != at && *word == number);
        if is_said && !found.contains(&arenas) {
            found.push(arenas);
        }
    }
    let (Some(arenas), true) = (found.pop(), found.is_empty()) else { return None };
    Some(List { address, arenas })
}

/// The arenas of a list, by address; `None` where an entry makes no sense, or two overlap.
fn arenas(space: &Space<'_>, address: u64, length: u64, pool_bytes: u64) -> Option<Vec<Arena>> {
    let end = address.checked_add(length * ENTRY)?;
    space.range_at(address).filter(|range| end <= range.end)?;
    let mut bytes = vec![0; usize::try_from(length * ENTRY).ok()?];
    if !space.read(address, &mut bytes) {
        return None;
    }
    let mut arenas = Vec::new();
    for (index, bytes) in (0..).zip(bytes.chunks_exact(ENTRY as usize)) {
        match entry(space, bytes, index, pool_bytes) {
            Entry::Unused => {}
            Entry::Arena(arena) => arenas.push(arena),
            Entry::Nonsense => return None,
        }
    }
    arenas.sort_unstable();
    let apart = arenas.windows(2).all(|two| two[0].address + two[0].bytes <= two[1].address);
    let alike = arenas.windows(2).all(|two| two[0].bytes == two[1].bytes);
    (apart && alike).then_some(arenas)
}
