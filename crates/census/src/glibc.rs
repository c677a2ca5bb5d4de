//! The heaps of glibc's malloc (2.27 and later): chunks, arenas, and what its caches keep.
//!
//! A chunk has its size at +8 (bit 0: the chunk before is in use; bit 1: it is a mapping of its own); the next chunk
//! follows. The last one of an arena is `top`. The main arena's structure is found in writable data by its `top` and
//! its size; it leads to the others. Sources: `malloc/malloc.c` and `malloc/arena.c` of glibc 2.27 to 2.41.

mod arena;
mod caches;

use std::collections::HashSet;

use self::arena::{Segment, segments};
use crate::{
    classes::class_of,
    cxx::Classes,
    found::{Found, Taken},
    granules::{Label, PageSums, Pages},
    model::{Arena, Heap},
    space::{PAGE, Region, Space},
};

/// Bytes of a chunk that are the allocator's.
const OVERHEAD: u64 = 8;
/// The smallest chunk.
const SMALLEST: u64 = 32;
/// Chunks that must follow each other before a chain that broke is believed again.
const PROOF: u32 = 8;
/// Reads of a piece that makes no sense, before it is passed over.
const ATTEMPTS: u32 = 3;

/// Looks for glibc's heaps; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let arena::Arenas { main_known, segments } = segments(space)?;
    // Another allocator may use `brk`.
    if !main_known && segments.iter().any(|one| taken.meets(one.start, one.end)) {
        return None;
    }
    let heap = Heap { allocator: "glibc".to_owned(), ..Heap::default() };
    let sums = PageSums::default();
    let mut walk = Walk { space, heap, sums, cxx: Classes::new(space), candidates: Vec::new() };
    let fast = if main_known { caches::fast_chunks(space, &segments) } else { HashSet::new() };
    let mut trimmable = 0;
    let mut stretches = Vec::new();
    for segment in &segments {
        let region = space.region(segment.mapped_start, segment.end);
        let mut pages = Pages::new(region.pages());
        let (region, would_go) = walk.segment(region, segment, &fast, &mut pages);
        trimmable += would_go;
        stretches.push((region, pages));
    }
    walk.take_cached(&segments, &mut stretches);
    for (segment, (region, pages)) in segments.iter().zip(&stretches) {
        let bytes = segment.end - segment.mapped_start;
        walk.heap.mapped_bytes += bytes;
        walk.arena(segment.arena).mapped_bytes += bytes;
        walk.heap.resident_bytes +=
            region.present_bytes(segment.mapped_start / PAGE * PAGE, segment.end);
        let map = &mut walk.heap.map;
        let note = |address, live| space.note_granule(map, address, PAGE, live);
        walk.sums.add(pages, |address| region.is_present(address), note);
    }
    let mut all = taken.clone();
    all.add(segments.iter().map(|segment| (segment.mapped_start, segment.end)));
    walk.mapped_chunks(&all);
    let Walk { mut heap, sums, cxx, .. } = walk;
    heap.trimmable_bytes = main_known.then_some(trimmable);
    heap.granules = sums.granules();
    heap.classes = sums.classes(OVERHEAD);
    heap.types = cxx.finish(sums.alone_kinds());
    let note = "glibc: its main arena was not found, so chunks in fastbins count as live, and other arenas are missing";
    let notes = if main_known { Vec::new() } else { vec![note.to_owned()] };
    let taken = segments.iter().map(|segment| (segment.mapped_start, segment.end)).collect();
    Some(Found { heap, held_bytes: sums.held_bytes(), taken, notes })
}

struct Walk<'a> {
    space: &'a Space<'a>,
    heap: Heap,
    sums: PageSums,
    cxx: Classes<'a>,
    /// Chunks that may be a thread's cache.
    candidates: Vec<u64>,
}

/// A chunk that validates.
struct Chunk {
    bytes: u64,
    in_use: bool,
    is_top: bool,
}

impl<'a> Walk<'a> {
    /// Walks the chunks of a segment; returns the bytes that `malloc_trim` would give back of it.
    fn segment(
        &mut self,
        mut region: Region<'a>,
        segment: &Segment,
        fast: &HashSet<u64>,
        pages: &mut Pages,
    ) -> (Region<'a>, u64) {
        let mut trimmable = 0;
        let mut run = None;
        let mut at = segment.start;
        while at + SMALLEST <= segment.end {
            let Some(chunk) = read_chunk(&mut region, at, segment) else {
                let next = resume(&mut region, at, segment);
                self.heap.unknown_bytes += next - at;
                (at, run) = (next, None);
                continue;
            };
            let is_fast = chunk.in_use && fast.contains(&at);
            if chunk.in_use && !is_fast {
                if let Some(start) = run.take() {
                    trimmable += would_go(&region, start, at, false);
                }
                let word = region.word(at + 16).unwrap_or_default();
                self.live(at, chunk.bytes, word, segment.arena, pages);
            } else {
                let start = *run.get_or_insert(at);
                self.heap.free_bytes += chunk.bytes;
                if chunk.is_top {
                    // The end of a thread's arena is not given back by `malloc_trim`.
                    trimmable += if segment.is_main {
                        would_go(&region, start, segment.end, true)
                    } else {
                        0
                    };
                    run = None;
                }
            }
            at += chunk.bytes;
        }
        (region, trimmable)
    }

    /// A chunk in use, with the first word of its object.
    fn live(&mut self, at: u64, bytes: u64, word: u64, arena: usize, pages: &mut Pages) {
        if bytes < SMALLEST {
            // The mark at the end of a heap.
            return;
        }
        if caches::SIZES.contains(&bytes) {
            self.candidates.push(at);
        }
        let label = self.label(at, bytes, word);
        pages.add(at, bytes, label);
        self.sums.count(label.class, bytes, true);
        self.arena(arena).live_objects += 1;
        self.arena(arena).live_bytes += bytes;
        self.heap.live_objects += 1;
        self.heap.live_bytes += bytes;
    }

    fn label(&mut self, at: u64, bytes: u64, word: u64) -> Label {
        let kind = self.cxx.class(word);
        self.cxx.count(kind, 1, bytes, (at / PAGE, (at + bytes - 1) / PAGE));
        Label { class: class_of(bytes), kind }
    }

    fn arena(&mut self, index: usize) -> &mut Arena {
        while self.heap.arenas.len() <= index {
            let number = self.heap.arenas.len() as u64;
            self.heap.arenas.push(Arena { number, ..Arena::default() });
        }
        &mut self.heap.arenas[index]
    }

    /// Chunks in threads' caches look in use: takes them back.
    fn take_cached(&mut self, segments: &[Segment], stretches: &mut [(Region<'a>, Pages)]) {
        for (at, bytes) in caches::cached_chunks(self.space, segments, &self.candidates) {
            let Some(index) = segments.iter().position(|one| (one.start..one.end).contains(&at))
            else {
                continue;
            };
            stretches[index].1.remove(at, bytes);
            self.sums.count(class_of(bytes), bytes, false);
            let arena = self.arena(segments[index].arena);
            arena.live_objects = arena.live_objects.saturating_sub(1);
            arena.live_bytes = arena.live_bytes.saturating_sub(bytes);
            self.heap.live_objects = self.heap.live_objects.saturating_sub(1);
            self.heap.live_bytes = self.heap.live_bytes.saturating_sub(bytes);
            self.heap.cached_bytes += bytes;
        }
    }

    /// Chunks with a mapping of their own: they begin at a page, and their size is a number of pages.
    fn mapped_chunks(&mut self, taken: &Taken) {
        let ranges: Vec<(u64, u64)> =
            self.space.anonymous().map(|range| (range.start, range.end)).collect();
        for (start, end) in ranges {
            let region = self.space.region(start, end);
            let mut at = start;
            while at < end {
                if let Some(to) = taken.end_of(at) {
                    at = to;
                    continue;
                }
                let bytes = match region.is_present(at).then(|| self.space.words(at)).flatten() {
                    Some([0, size]) if is_mapped_size(size) && size - 2 <= end - at => size - 2,
                    _ => {
                        at = region.next_present(at + PAGE);
                        continue;
                    }
                };
                let resident = region.present_bytes(at, at + bytes);
                let word = self.space.word(at + 16).unwrap_or_default();
                let label = self.label(at, bytes, word);
                self.sums.add_large(label, bytes, resident);
                self.space.note_granule(&mut self.heap.map, at, bytes, (1, bytes));
                self.heap.live_objects += 1;
                self.heap.live_bytes += bytes;
                self.heap.mapped_alone_bytes += bytes;
                self.heap.mapped_bytes += bytes;
                self.heap.resident_bytes += resident;
                at += bytes;
            }
        }
    }
}

/// A size word of a chunk with a mapping of its own: whole pages, and bit 1 alone.
const fn is_mapped_size(size: u64) -> bool {
    size & 7 == 2 && size > PAGE && (size - 2).is_multiple_of(PAGE)
}

/// The chunk at an address; read again some times where it makes no sense.
fn read_chunk(region: &mut Region<'_>, at: u64, segment: &Segment) -> Option<Chunk> {
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            region.refresh();
        }
        if let Some(chunk) = chunk(region, at, segment) {
            return Some(chunk);
        }
        region.ask_again(at + 8);
        if let Some(word) = region.word(at + 8) {
            region.ask_again(at.saturating_add(word & !7).saturating_add(8));
        }
        if !region.is_present(at + 8) {
            return None;
        }
    }
    None
}

fn chunk(region: &mut Region<'_>, at: u64, segment: &Segment) -> Option<Chunk> {
    let word = region.word(at + 8)?;
    let bytes = word & !7;
    let room = segment.end - at;
    let is_mark = bytes == 16 && room <= SMALLEST;
    if word & 2 != 0 || !bytes.is_multiple_of(16) || bytes > room || (bytes < SMALLEST && !is_mark)
    {
        return None;
    }
    if is_mark || bytes == room {
        return Some(Chunk { bytes, in_use: is_mark, is_top: bytes == room && !is_mark });
    }
    let next = region.word(at + bytes + 8)?;
    Some(Chunk { bytes, in_use: next & 1 != 0, is_top: false })
}

/// The next address from which on the chain is whole again, at the latest the segment's end.
fn resume(region: &mut Region<'_>, broken: u64, segment: &Segment) -> u64 {
    let mut at = broken + 16;
    while at + SMALLEST <= segment.end {
        if !region.is_present(at) {
            at = region.next_present(at);
        } else if is_chain(region, at, segment) {
            return at;
        } else {
            at += 16;
        }
    }
    segment.end
}

fn is_chain(region: &mut Region<'_>, start: u64, segment: &Segment) -> bool {
    let mut at = start;
    for _ in 0..PROOF {
        match chunk(region, at, segment) {
            Some(chunk) if chunk.is_top => return true,
            Some(chunk) => at += chunk.bytes,
            None => return false,
        }
    }
    true
}

/// Resident bytes of whole pages in a run of free chunks, as `malloc_trim(0)` gives them back: behind the header of the
/// first, up to the last page boundary; of `top` all but the smallest chunk.
fn would_go(region: &Region<'_>, start: u64, end: u64, is_top: bool) -> u64 {
    let kept = if is_top { SMALLEST + 1 } else { 48 };
    region.present_bytes((start + kept).next_multiple_of(PAGE), end / PAGE * PAGE)
}

#[cfg(test)]
mod tests;
