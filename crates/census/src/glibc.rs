//! The heaps of glibc's malloc (2.27 to 2.43): chunks, arenas, and what its caches keep.
//!
//! A chunk has its size at +8 (bit 0: the chunk before is in use; bit 1: it is a mapping of its own); the next chunk
//! follows. The last one of an arena is `top`. The main arena's structure is found in writable data by its `top` and
//! by all that it says of itself, in one of the layouts of `layout.rs`; it leads to the others, and they lead back.
//! What is known to be glibc's and does not make sense is unknown.

mod arena;
mod caches;
mod layout;
mod mapped;
mod params;
mod state;
mod version;

use std::collections::HashSet;

use self::{
    arena::{Main, Segment},
    layout::Layout,
    mapped::Mapped,
    params::Params,
};
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
/// Where more than a part of so many of the arenas is unknown, nothing is said of what would be given back.
const MAX_UNKNOWN: u64 = 32;

/// Looks for glibc's heaps; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let heap = arena::main_heap(space)?;
    match arena::find_main(space, heap) {
        Some(main) => Some(read(space, taken, &main)),
        // Another allocator may use `brk`.
        None if taken.meets(heap.0, heap.1) => None,
        None => unread(space, heap),
    }
}

/// A heap of glibc whose arenas were not found: its version is named, and nothing else is said of it.
fn unread(space: &Space<'_>, (start, end): (u64, u64)) -> Option<Found> {
    let mut region = space.region(start, end);
    let whole =
        Segment { state: 0, arena: 0, is_main: true, mapped_start: start, start, end, top: None };
    if !is_chain(&mut region, start, &whole) {
        return None;
    }
    let version = version::version(space)?;
    let mut unknown = arena::strays(space, &[], &[layout::HEAP_ALIGN]);
    unknown.push((start, end));
    let mut heap = Heap { allocator: "glibc".to_owned(), ..Heap::default() };
    add_unknown(space, &mut heap, &unknown);
    let known: Vec<&str> = layout::LAYOUTS.iter().map(|layout| layout.versions).collect();
    let note = format!(
        "glibc {version}: its main arena was not found in any known layout (those of {}), so its memory is unknown; if \
         the process is busy, freeze it",
        known.join(", ")
    );
    Some(Found { heap, held_bytes: 0, taken: unknown, notes: vec![note] })
}

/// Counts memory of which nothing is said.
fn add_unknown(space: &Space<'_>, heap: &mut Heap, stretches: &[(u64, u64)]) {
    for (start, end) in stretches {
        let bytes = end.saturating_sub(*start);
        heap.mapped_bytes += bytes;
        heap.unknown_bytes += bytes;
        heap.resident_bytes += space.region(*start, *end).present_bytes(*start, *end);
    }
}

/// Reads all arenas.
fn read(space: &Space<'_>, taken: &Taken, main: &Main) -> Found {
    let arena::Arenas { segments, attached_threads, unknown, is_whole, notes } =
        arena::arenas(space, main);
    let mut walk = Walk::new(space, main, notes);
    let (fast, fast_whole) = caches::fast_chunks(space, &segments, main.layout);
    if !fast_whole {
        walk.notes.push(
            "glibc: a list of free chunks changed while it was read: some count as live".to_owned(),
        );
    }
    let mut stretches = Vec::new();
    for segment in &segments {
        let region = space.region(segment.mapped_start, segment.end);
        let mut pages = Pages::new(region.pages());
        let region = walk.segment(region, segment, &fast, &mut pages);
        stretches.push((region, pages));
    }
    walk.take_cached(&segments, attached_threads, &mut stretches);
    for (segment, (region, pages)) in segments.iter().zip(&stretches) {
        walk.finish(segment, region, pages);
    }
    if walk.heap.unknown_bytes > 0 {
        let unknown = walk.heap.unknown_bytes;
        walk.notes.push(format!(
            "glibc: {unknown} bytes of its arenas are not present, changed while they were read, or make no sense"
        ));
    }
    // What would be given back is only known where nearly all is.
    let nearly = walk.heap.unknown_bytes <= walk.heap.mapped_bytes / MAX_UNKNOWN;
    let is_known = is_whole && walk.ends_at_top && nearly;
    let mut own: Vec<(u64, u64)> =
        segments.iter().map(|segment| (segment.mapped_start, segment.end)).collect();
    own.extend(&unknown);
    let mut all = taken.clone();
    all.add(own.iter().copied());
    walk.mapped_chunks(mapped::find(space, &all, main.layout, main.params));
    let Walk { mut heap, sums, cxx, notes, trimmable, .. } = walk;
    add_unknown(space, &mut heap, &unknown);
    heap.trimmable_bytes = is_known.then_some(trimmable);
    heap.granules = sums.granules();
    heap.classes = sums.classes(OVERHEAD);
    heap.types = cxx.finish(sums.alone_kinds());
    Found { heap, held_bytes: sums.held_bytes(), taken: own, notes }
}

struct Walk<'a> {
    space: &'a Space<'a>,
    heap: Heap,
    sums: PageSums,
    cxx: Classes<'a>,
    layout: &'static Layout,
    params: Option<Params>,
    /// Chunks that may be a thread's cache.
    candidates: Vec<u64>,
    /// Resident bytes that `malloc_trim` would give back.
    trimmable: u64,
    /// Whether the chunks of each arena end at its `top`.
    ends_at_top: bool,
    notes: Vec<String>,
}

/// A chunk that validates.
struct Chunk {
    bytes: u64,
    in_use: bool,
    is_top: bool,
}

impl<'a> Walk<'a> {
    fn new(space: &'a Space<'a>, main: &Main, notes: Vec<String>) -> Self {
        Self {
            space,
            heap: Heap { allocator: "glibc".to_owned(), ..Heap::default() },
            sums: PageSums::default(),
            cxx: Classes::new(space),
            layout: main.layout,
            params: main.params,
            candidates: Vec::new(),
            trimmable: 0,
            ends_at_top: true,
            notes,
        }
    }

    /// Walks the chunks of a segment.
    fn segment(
        &mut self,
        mut region: Region<'a>,
        segment: &Segment,
        fast: &HashSet<u64>,
        pages: &mut Pages,
    ) -> Region<'a> {
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
            if chunk.is_top && !self.is_top(segment, at) {
                self.heap.unknown_bytes += chunk.bytes;
            } else if chunk.in_use && !is_fast {
                if let Some(start) = run.take() {
                    self.trimmable += would_go(&region, start, at);
                }
                self.live(&mut region, at, chunk.bytes, segment.arena, pages);
            } else {
                let start = *run.get_or_insert(at);
                self.heap.free_bytes += chunk.bytes;
                if chunk.is_top && segment.is_main {
                    let unit = self.params.map_or(PAGE, |params| params.trim_unit);
                    self.trimmable += top_would_go(&region, start, segment.end, unit);
                }
            }
            at += chunk.bytes;
        }
        region
    }

    /// Whether the last chunk of a segment is the arena's `top`, as the arena says now or said before.
    fn is_top(&mut self, segment: &Segment, at: u64) -> bool {
        let now = || self.space.field(segment.state, self.layout.top);
        if segment.top == Some(at) || now() == Some(at) {
            return true;
        }
        if self.ends_at_top {
            let number = segment.arena;
            self.notes.push(format!("glibc: the chunks of arena {number} do not end at its top"));
        }
        self.ends_at_top = false;
        false
    }

    /// A chunk in use.
    fn live(
        &mut self,
        region: &mut Region<'_>,
        at: u64,
        bytes: u64,
        arena: usize,
        pages: &mut Pages,
    ) {
        if bytes < SMALLEST {
            // The mark at the end of a heap.
            return;
        }
        if caches::may_hold_one(region, at, bytes) {
            self.candidates.push(at);
        }
        let word = region.word(at + 16).unwrap_or_default();
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
    fn take_cached(
        &mut self,
        segments: &[Segment],
        threads: u64,
        stretches: &mut [(Region<'a>, Pages)],
    ) {
        let cached = caches::cached_chunks(self.space, segments, &self.candidates);
        for (at, bytes) in cached.chunks {
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
        if cached.lost_bytes > 0 {
            let lost = cached.lost_bytes.min(self.heap.live_bytes);
            self.heap.live_bytes -= lost;
            self.heap.unknown_bytes += lost;
            self.notes.push(format!("glibc: {lost} bytes in threads' caches were not found"));
        }
        if cached.caches == 0 && threads > 0 {
            let is_off = self.params.is_some_and(|params| params.cached == 0);
            let what = if is_off {
                "caches of threads are switched off, and none was found"
            } else {
                "no thread's cache was found: what caches keep is unknown and counts as live"
            };
            self.notes.push(format!("glibc: {what}"));
        }
    }

    /// Adds the pages of a segment up.
    fn finish(&mut self, segment: &Segment, region: &Region<'_>, pages: &Pages) {
        let bytes = segment.end - segment.mapped_start;
        self.heap.mapped_bytes += bytes;
        self.arena(segment.arena).mapped_bytes += bytes;
        self.heap.resident_bytes +=
            region.present_bytes(segment.mapped_start / PAGE * PAGE, segment.end);
        let map = &mut self.heap.map;
        let note = |address, live| self.space.note_granule(map, address, PAGE, live);
        self.sums.add(pages, |address| region.is_present(address), note);
    }

    /// Chunks with a mapping of their own.
    fn mapped_chunks(&mut self, mapped: Mapped) {
        for chunk in mapped.live {
            let word = self.space.word(chunk.at + 16).unwrap_or_default();
            let label = self.label(chunk.at, chunk.bytes, word);
            self.sums.add_large(label, chunk.bytes, chunk.resident);
            self.space.note_granule(&mut self.heap.map, chunk.at, chunk.bytes, (1, chunk.bytes));
            self.heap.live_objects += 1;
            self.heap.live_bytes += chunk.bytes;
            self.heap.mapped_alone_bytes += chunk.bytes;
            self.heap.mapped_bytes += chunk.bytes;
            self.heap.resident_bytes += chunk.resident;
        }
        for chunk in mapped.unknown {
            self.heap.mapped_bytes += chunk.bytes;
            self.heap.unknown_bytes += chunk.bytes;
            self.heap.resident_bytes += chunk.resident;
        }
        self.heap.mapped_bytes = self.heap.mapped_bytes.saturating_add(mapped.missing);
        self.heap.unknown_bytes = self.heap.unknown_bytes.saturating_add(mapped.missing);
        self.notes.extend(mapped.notes);
    }
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
    // `top` may have grown since the mappings were read.
    if segment.top == Some(at) && word & 3 == 1 && bytes > room {
        return Some(Chunk { bytes: room, in_use: false, is_top: true });
    }
    if word & 2 != 0 || !bytes.is_multiple_of(16) || bytes > room || (bytes < SMALLEST && !is_mark)
    {
        return None;
    }
    if is_mark || bytes == room {
        return Some(Chunk { bytes, in_use: is_mark, is_top: bytes == room && !is_mark });
    }
    let next = region.word(at + bytes + 8)?;
    let in_use = next & 1 != 0;
    // A free chunk has its size at its end, too.
    let is_whole = in_use || region.word(at + bytes)? == bytes;
    is_whole.then_some(Chunk { bytes, in_use, is_top: false })
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
/// first, up to the last page boundary.
fn would_go(region: &Region<'_>, start: u64, end: u64) -> u64 {
    region.present_bytes((start + 48).next_multiple_of(PAGE), end / PAGE * PAGE)
}

/// Of a run that ends with the main arena's `top`: a multiple of `unit`, and not the smallest chunk. The end of a thread's
/// arena is not given back.
fn top_would_go(region: &Region<'_>, start: u64, end: u64, unit: u64) -> u64 {
    let bytes = (end - start).saturating_sub(SMALLEST + 1) / unit * unit;
    region.present_bytes((end - bytes).next_multiple_of(PAGE), end / PAGE * PAGE)
}

#[cfg(test)]
mod tests;
