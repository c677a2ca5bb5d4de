//! Walks the chunks of all arenas, and adds them up.

use std::collections::HashSet;

use super::{
    caches,
    chunks::{Chunk, LARGE, SEARCHES_PER_BYTE, Search, read_chunk, top_would_go, would_go},
    fast::Inside,
    layout::{Layout, SMALLEST},
    mapped::Mapped,
    params::Params,
    segment::{Main, Segment},
    trail::{Place, Trail},
};
use crate::{
    classes::class_of,
    cxx::Classes,
    granules::{Label, PageSums, Pages},
    model::{Arena, Heap},
    region::Region,
    space::{PAGE, Space},
};

/// What is read of all arenas.
pub(super) struct Walk<'a> {
    space: &'a Space<'a>,
    pub(super) heap: Heap,
    pub(super) sums: PageSums,
    pub(super) cxx: Classes<'a>,
    layout: &'static Layout,
    params: Option<Params>,
    /// Chunks that may be a thread's cache.
    candidates: Vec<u64>,
    /// Resident bytes that `malloc_trim` would give back.
    pub(super) trimmable: u64,
    /// Whether the chunks of each arena end at its `top`.
    pub(super) ends_at_top: bool,
    pub(super) notes: Vec<String>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(space: &'a Space<'a>, main: &Main, notes: Vec<String>) -> Self {
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

    /// Walks the chunks of a segment. Where its end has been given back meanwhile, it ends earlier.
    pub(super) fn segment(
        &mut self,
        mut region: Region<'a>,
        segment: &mut Segment,
        fast: &HashSet<u64>,
        pages: &mut Pages,
    ) -> Region<'a> {
        let (mut run, mut trail) = (None, Trail::default());
        let present = region.present_bytes(segment.start / PAGE * PAGE, segment.end);
        let mut search = Search::new(self.space, present, SEARCHES_PER_BYTE);
        let mut at = segment.start;
        while at + SMALLEST <= segment.end {
            // Before what follows is read, which may need the next window.
            let word = region.word(at + 16).unwrap_or_default();
            let loads = region.loads();
            let read = read_chunk(&mut region, at, segment);
            // What was read at once was there at one time.
            let is_at_once = region.loads() == loads;
            let chunk = match read {
                Some(chunk) if is_at_once && chunk.bytes <= LARGE && !chunk.is_top => chunk,
                read => match self.place(&mut region, segment, (at, read), &mut trail, &mut search)
                {
                    Place::Chunk(chunk) => chunk,
                    Place::Unknown(next) => {
                        self.heap.unknown_bytes += next - at;
                        (at, run) = (next, None);
                        continue;
                    }
                },
            };
            trail.add(at, chunk.word);
            let is_fast = chunk.in_use && fast.contains(&at);
            if chunk.is_top && !self.is_top(segment, at) {
                self.heap.unknown_bytes += chunk.bytes;
            } else if chunk.in_use && !is_fast {
                if let Some(start) = run.take() {
                    self.trimmable += would_go(&region, start, at);
                }
                self.live(&mut region, (at, chunk.bytes, word), segment.arena, pages);
            } else {
                let start = *run.get_or_insert(at);
                self.heap.free_bytes += chunk.bytes;
                if chunk.is_top && segment.shrinks {
                    let unit = self.params.map_or(PAGE, |params| params.trim_unit);
                    self.trimmable += top_would_go(&region, start, segment.end, unit);
                }
            }
            at += chunk.bytes;
        }
        region.release();
        region
    }

    /// What the chain leads to at an address, where this chunk was read.
    fn place(
        &self,
        region: &mut Region<'_>,
        segment: &mut Segment,
        (at, read): (u64, Option<Chunk>),
        trail: &mut Trail,
        search: &mut Search<'_>,
    ) -> Place {
        let is_top = |chunk: &Chunk| {
            let now = || self.space.field(segment.state, self.layout.top);
            chunk.is_top && (segment.top.is_none() || now() == Some(at))
        };
        match read {
            Some(chunk) if is_top(&chunk) => return Place::Chunk(chunk),
            _ => {}
        }
        if search.is_over() || self.space.budget.is_over() {
            return Place::Unknown(segment.end);
        }
        let before = self.space.read_bytes();
        let place = trail.confirm(self.space, region, segment, (at, read));
        search.charge(before);
        if let Some(place) = place {
            return place;
        }
        if let Some(top) = self.top_now(segment, at) {
            return Place::Chunk(top);
        }
        trail.clear();
        Place::Unknown(search.resume(region, at, segment))
    }

    /// What is the arena's `top` now, where the chunk there does not fit what the arena had.
    fn top_now(&self, segment: &mut Segment, at: u64) -> Option<Chunk> {
        let is_top = || self.space.field(segment.state, self.layout.top) == Some(at);
        if segment.top.is_none() || !is_top() {
            return None;
        }
        let size = self.space.field(at, 8).filter(|size| size & 7 == 1)?;
        let end = at.checked_add(size - 1).filter(|end| end.is_multiple_of(PAGE) && is_top())?;
        segment.end = segment.end.min(end);
        Some(Chunk { word: size, bytes: segment.end - at, in_use: false, is_top: true })
    }

    /// Whether the last chunk of a segment is the arena's `top`, as the arena says now or said before, or was it before
    /// that moved.
    fn is_top(&mut self, segment: &Segment, at: u64) -> bool {
        let now = self.space.field(segment.state, self.layout.top);
        let has_moved = |listed: u64| {
            let size = self.space.field(at, 8).unwrap_or_default();
            now.is_some_and(|now| now != listed) || at.saturating_add(size & !7) != segment.end
        };
        let was = |listed: u64| listed == at || has_moved(listed);
        if now == Some(at) || segment.top.is_some_and(was) {
            return true;
        }
        if self.ends_at_top {
            let number = segment.arena;
            self.notes.push(format!("glibc: the chunks of arena {number} do not end at its top"));
        }
        self.ends_at_top = false;
        false
    }

    /// A chunk in use, with the first word of its object.
    fn live(
        &mut self,
        region: &mut Region<'_>,
        (at, bytes, word): (u64, u64, u64),
        arena: usize,
        pages: &mut Pages,
    ) {
        if bytes < SMALLEST {
            // The mark at the end of a heap.
            return;
        }
        if caches::may_hold_one(region, at, bytes) && self.space.budget.keeps::<u64>(1) {
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
    pub(super) fn take_cached(
        &mut self,
        segments: &[Segment],
        threads: u64,
        stretches: &mut [(Region<'a>, Pages)],
    ) {
        let inside = Inside::new(segments);
        let cached = caches::cached_chunks(self.space, &inside, &self.candidates);
        for (at, bytes) in cached.chunks {
            let Some(index) = inside.segment(at, bytes) else { continue };
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
    pub(super) fn finish(&mut self, segment: &Segment, region: &Region<'_>, pages: &Pages) {
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
    pub(super) fn mapped_chunks(&mut self, mapped: Mapped) {
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

    /// Memory that the main arena has, and that was not found.
    pub(super) fn missing(&mut self, bytes: u64) {
        if bytes > 0 {
            self.heap.mapped_bytes = self.heap.mapped_bytes.saturating_add(bytes);
            self.heap.unknown_bytes = self.heap.unknown_bytes.saturating_add(bytes);
            self.notes.push(format!(
                "glibc: {bytes} bytes that its main arena has of the system were not found: they are unknown"
            ));
        }
    }
}
