//! Memory that a text describes: what the fuzz target `heaps` is fed with.
//!
//! A line each, numbers in hexadecimal; other lines are passed over.
//!
//! - `range ADDRESS BYTES RESIDENT KIND [constant]`: a mapping, of which nothing can be read yet.
//! - `piece ADDRESS BYTES`: memory that can be read, zero.
//! - `map ADDRESS BYTES KIND`: both, all of it resident.
//! - `put ADDRESS WORD…`: words in pieces.
//! - `fill ADDRESS COUNT STEP (WORD DELTA)…`: these words so many times, each time `STEP` bytes on and larger by `DELTA`.
//! - `absent ADDRESS [BYTES]`: pages that are not present.
//! - `torn ADDRESS WORD`: what every other read finds there.
//! - `guard ADDRESS`: a guard page. `slow`: holes cost time. `vtable ADDRESS NAME`: a vtable with a symbol.
//! - `pointer ADDRESS`: a thread's stack pointer. `root ADDRESS postgres|nginx|apr`: where contexts or pools begin.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
};

use super::range;
use crate::{
    contexts::{self, Contexts},
    heaps::heaps,
    model::{Context, Heap},
    parts::parts,
    pools,
    present::Present,
    space::{Memory, PAGE, Range, RangeKind, Space},
};

/// Bytes of pieces, at most, and words that `fill` writes.
const MOST_BYTES: u64 = 8 << 20;
const MOST_FILLED: u64 = MOST_BYTES / 8;
/// Bytes of these that a `map` has.
const MOST_AT_ONCE: u64 = 1 << 20;
/// Bytes that are present, at most, whether they can be read or not; mappings; pointers; roots.
const MOST_PRESENT: u64 = 64 << 20;
const MOST_RANGES: usize = 1024;
const MOST_POINTERS: usize = 64;
const MOST_ROOTS: usize = 3;
/// Where addresses of processes end.
const END: u64 = 1 << 47;
/// Kinds of mappings by their names.
pub(super) const KINDS: [(&str, RangeKind); 5] = [
    ("heap", RangeKind::Heap),
    ("anonymous", RangeKind::Anonymous),
    ("stack", RangeKind::Stack),
    ("file", RangeKind::File),
    ("shared", RangeKind::Shared),
];

/// Reads the contexts or pools that begin at an address.
type Read = fn(&Space<'_>, u64) -> Contexts;

/// Readers of contexts by name.
const ROOTS: [(&str, Read); 3] = [
    ("postgres", |space, top| contexts::read(space, top, true)),
    ("nginx", pools::NGINX.1),
    ("apr", pools::APR.1),
];

/// What came of a walk.
#[derive(Debug)]
pub struct Walked {
    /// The heaps.
    pub heaps: Vec<Heap>,
    /// What was not seen, in sentences, also of contexts.
    pub notes: Vec<String>,
    /// Bytes of stacks.
    pub stack_bytes: u64,
    /// Memory contexts and pools.
    pub contexts: Vec<Context>,
    /// Bytes that were read, and requests for them, whether they could be read or not.
    pub read_bytes: u64,
    /// See above.
    pub reads: u64,
}

impl Walked {
    /// Whether anything was found.
    pub fn is_any(&self) -> bool {
        !self.heaps.is_empty() || !self.contexts.is_empty() || self.stack_bytes > 0
    }
}

/// A process that a text describes.
#[derive(Default)]
pub struct Described {
    memory: Text,
    ranges: Vec<Range>,
    pointers: Vec<u64>,
    roots: Vec<(Read, u64)>,
    /// Words that `fill` has written.
    filled: u64,
    /// Bytes of pieces.
    held: u64,
    /// Bytes that are present.
    present: u64,
}

#[derive(Default)]
struct Text {
    /// Bytes by address; they do not overlap.
    pieces: BTreeMap<u64, Vec<u8>>,
    /// What is not present: first address, first address after; in the end in ascending order, apart from each other.
    holes: Vec<(u64, u64)>,
    torn: BTreeMap<u64, u64>,
    guards: BTreeSet<u64>,
    vtables: BTreeMap<u64, String>,
    slow: bool,
    reads: Cell<u64>,
}

impl Described {
    /// By its text.
    pub fn new(text: &str) -> Self {
        let mut all = Self::default();
        text.lines().for_each(|line| all.line(line));
        all.ranges.sort_unstable_by_key(|range| range.start);
        all.memory.merge_holes();
        all.limit();
        all.memory.merge_holes();
        all
    }

    /// How large it is: bytes that are present, and a page for each mapping.
    pub fn bytes(&self) -> u64 {
        self.present + self.ranges.len() as u64 * PAGE
    }

    fn line(&mut self, line: &str) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [what, rest @ ..] = words.as_slice() else { return };
        let numbers: Vec<u64> =
            rest.iter().map_while(|word| u64::from_str_radix(word, 16).ok()).collect();
        match (*what, numbers.as_slice(), &rest[numbers.len()..]) {
            ("map", &[start, bytes], [kind]) => {
                if let Some((start, bytes)) = self.range((start, bytes, bytes), kind, true) {
                    let held = self.piece(start, bytes.min(MOST_AT_ONCE));
                    self.memory.holes.push((start + held, start + bytes));
                }
            }
            ("range", &[start, bytes, rss], [kind]) => {
                self.range((start, bytes, rss), kind, true);
            }
            ("range", &[start, bytes, rss], [kind, "constant"]) => {
                self.range((start, bytes, rss), kind, false);
            }
            ("piece", &[start, bytes], []) => drop(self.piece(start / 8 * 8, bytes)),
            ("put", [at, words @ ..], []) => self.memory.put(*at, words),
            ("fill", [at, count, step, words @ ..], []) => self.fill(*at, *count, *step, words),
            ("absent", &[at], []) => self.hole(at, PAGE),
            ("absent", &[at, bytes], []) => self.hole(at, bytes),
            ("torn", &[at, word], []) => drop(self.memory.torn.insert(at, word)),
            ("guard", &[at], []) => drop(self.memory.guards.insert(at / PAGE * PAGE)),
            ("slow", [], []) => self.memory.slow = true,
            ("vtable", &[at], [name]) => {
                drop(self.memory.vtables.insert(at, (*name).to_owned()));
            }
            ("pointer", &[at], []) if self.pointers.len() < MOST_POINTERS => {
                self.pointers.push(at);
            }
            ("root", &[at], [name]) if self.roots.len() < MOST_ROOTS => {
                let found = ROOTS.iter().find(|(known, _)| known == name);
                self.roots.extend(found.map(|(_, read)| (*read, at)));
            }
            _ => {}
        }
    }

    /// Adds a mapping; where it begins, and its bytes.
    fn range(
        &mut self,
        (start, bytes, rss): (u64, u64, u64),
        kind: &str,
        writable: bool,
    ) -> Option<(u64, u64)> {
        let (_, kind) = KINDS.iter().find(|(name, _)| *name == kind)?;
        // The kernel maps whole pages, below the addresses of its own.
        let start = start % END / PAGE * PAGE;
        let bytes = (bytes % END).next_multiple_of(PAGE);
        let rss = rss.min(bytes);
        let one = Range { writable, rss, ..range(start, bytes, *kind) };
        // Of mappings that overlap, the kernel knows the later one only.
        self.ranges.retain(|other: &Range| one.end <= other.start || other.end <= one.start);
        (self.ranges.len() < MOST_RANGES).then(|| self.ranges.push(one))?;
        Some((start, bytes))
    }

    /// Adds a piece where there is none; its bytes, of which there are not too many in all.
    fn piece(&mut self, start: u64, bytes: u64) -> u64 {
        let before = self.memory.pieces.range(..=start).next_back();
        let next = self.memory.pieces.range(start..).next().map_or(END, |(at, _)| *at);
        let is_free = before.is_none_or(|(at, piece)| at + piece.len() as u64 <= start);
        let bytes = bytes.min(MOST_BYTES - self.held).min(next.saturating_sub(start)) / 8 * 8;
        if !is_free || bytes == 0 {
            return 0;
        }
        self.held += bytes;
        self.memory.pieces.insert(start, vec![0; bytes as usize]);
        bytes
    }

    fn fill(&mut self, at: u64, count: u64, step: u64, words: &[u64]) {
        let (step, mut words) = (step.max(8), words.to_vec());
        for index in 0..count {
            self.filled += 1 + words.len() as u64 / 2;
            let Some(at) = index.checked_mul(step).and_then(|offset| at.checked_add(offset)) else {
                return;
            };
            if self.filled > MOST_FILLED {
                return;
            }
            for (pair, at) in words.chunks_exact_mut(2).zip((at..u64::MAX).step_by(8)) {
                self.memory.put(at, &pair[..1]);
                pair[0] = pair[0].wrapping_add(pair[1]);
            }
        }
    }

    fn hole(&mut self, at: u64, bytes: u64) {
        let start = at / PAGE * PAGE;
        self.memory.holes.push((start, at.saturating_add(bytes)));
    }

    /// Nothing is present beyond what a process would need so much memory for.
    fn limit(&mut self) {
        let mut more = Vec::new();
        for range in &self.ranges {
            let mut at = range.start;
            for &(first, after) in self.memory.holes_from(range.start) {
                if first >= range.end {
                    break;
                }
                at = count(&mut self.present, &mut more, at, first.min(range.end)).max(after);
            }
            count(&mut self.present, &mut more, at, range.end);
        }
        self.memory.holes.extend(more);
    }

    /// Walks it as a census does.
    ///
    /// # Panics
    /// The parts do not add up to what is resident.
    pub fn walk(&self) -> Walked {
        let mut space = Space::new(self.ranges.clone(), &self.memory);
        let heaps = heaps(&mut space, &self.pointers);
        let resident = space.ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.rss));
        let all: u64 = parts(&space, &heaps).iter().map(|part| part.bytes).sum();
        assert_eq!(all, resident, "parts add up to what is resident");
        let mut notes: Vec<String> = heaps.notes.into_iter().map(|note| note.text).collect();
        let mut contexts = Vec::new();
        for (read, at) in &self.roots {
            let found = read(&space, *at);
            notes.extend(found.notes);
            contexts.extend(found.contexts);
        }
        Walked {
            heaps: heaps.found.into_iter().map(|(heap, _)| heap).collect(),
            notes,
            stack_bytes: heaps.stack_bytes,
            contexts,
            read_bytes: space.read_bytes(),
            reads: self.memory.reads.take(),
        }
    }
}

/// Counts what is present from `start` to `end`, and where that is too much, what is not; `end`.
fn count(present: &mut u64, holes: &mut Vec<(u64, u64)>, start: u64, end: u64) -> u64 {
    let bytes = end.saturating_sub(start).min(MOST_PRESENT - *present) / PAGE * PAGE;
    *present += bytes;
    if start + bytes < end {
        holes.push((start + bytes, end));
    }
    end
}

impl Text {
    /// Writes words in a row, up to where they do not lie in a piece.
    fn put(&mut self, address: u64, words: &[u64]) {
        for (word, index) in words.iter().zip(0..) {
            let Some(at) = address.checked_add(index * 8) else { return };
            let Some((start, piece)) = self.pieces.range_mut(..=at).next_back() else { return };
            let offset = (at - start) as usize;
            let place = offset.checked_add(8).and_then(|end| piece.get_mut(offset..end));
            let Some(place) = place else { return };
            place.copy_from_slice(&word.to_le_bytes());
        }
    }

    fn merge_holes(&mut self) {
        self.holes.retain(|(first, after)| first < after);
        self.holes.sort_unstable();
        self.holes.dedup_by(|next, last| {
            let meets = next.0 <= last.1;
            if meets {
                last.1 = last.1.max(next.1);
            }
            meets
        });
    }

    /// The holes that end behind an address.
    fn holes_from(&self, address: u64) -> &[(u64, u64)] {
        &self.holes[self.holes.partition_point(|(_, after)| *after <= address)..]
    }
}

impl Memory for Text {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        let Some((start, piece)) = self.pieces.range(..=address).next_back() else { return false };
        let offset = (address - start) as usize;
        let end = offset.checked_add(bytes.len());
        let Some(found) = end.and_then(|end| piece.get(offset..end)) else { return false };
        bytes.copy_from_slice(found);
        if self.reads.get().is_multiple_of(2) {
            let after = address.saturating_add(bytes.len() as u64);
            for (at, word) in self.torn.range(address..after) {
                let offset = (at - address) as usize;
                if let Some(place) = bytes.get_mut(offset..offset + 8) {
                    place.copy_from_slice(&word.to_le_bytes());
                }
            }
        }
        true
    }

    fn present(&self, start: u64, end: u64) -> Present {
        let (mut present, mut at) = (Present::default(), start);
        for &(first, after) in self.holes_from(start) {
            if first >= end {
                break;
            }
            present.push(at, first.min(end));
            at = at.max(after);
        }
        present.push(at, end);
        present
    }

    fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        let is_guard = |page| self.guards.contains(&page);
        (!self.guards.is_empty()).then(|| (start..end).step_by(PAGE as usize).all(is_guard))
    }

    fn skips_holes(&self) -> bool {
        !self.slow
    }

    fn vtable(&self, address: u64) -> Option<String> {
        self.vtables.get(&address).cloned()
    }
}

#[cfg(test)]
mod tests;
