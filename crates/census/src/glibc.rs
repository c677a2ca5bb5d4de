//! The heaps of glibc's malloc (2.27 to 2.43): chunks, arenas, and what its caches keep.
//!
//! A chunk has its size at +8 (bit 0: the chunk before is in use; bit 1: it is a mapping of its own); the next chunk
//! follows. The last one of an arena is `top`. The main arena's structure is found in writable data by its `top` and
//! by all that it says of itself, in one of the layouts of `layout.rs`; it leads to the others, and they lead back.
//! What is known to be glibc's and does not make sense is unknown.

mod arena;
mod caches;
mod chunks;
mod fast;
mod layout;
mod main_arena;
mod mapped;
mod params;
mod regions;
mod segment;
mod state;
mod trail;
mod version;
mod walk;

use self::{
    layout::{HEADER, OVERHEAD},
    segment::{Main, Segment},
    walk::Walk,
};
use crate::{
    found::{Found, Taken},
    granules::Pages,
    model::Heap,
    region::Region,
    space::{PAGE, Space},
};

/// Where more than a part of so many of the arenas is unknown, nothing is said of what would be given back.
const MAX_UNKNOWN: u64 = 32;

/// Looks for glibc's heaps; `None` where there are none.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let heap = main_arena::main_heap(space);
    let main = heap.and_then(|heap| main_arena::find_main(space, heap));
    match main.or_else(|| regions::find_main(space, taken)) {
        Some(main) => Some(read(space, taken, &main, heap)),
        // Another allocator may use `brk`.
        None => heap
            .filter(|(start, end)| !taken.meets(*start, *end))
            .and_then(|heap| unread(space, heap)),
    }
}

/// A heap of glibc whose arenas were not found: its version is named, and nothing else is said of it.
fn unread(space: &Space<'_>, (start, end): (u64, u64)) -> Option<Found> {
    let mut region = Region::new(space, start, end);
    let whole =
        Segment { state: 0, arena: 0, shrinks: true, mapped_start: start, start, end, top: None };
    if !chunks::is_chain(&mut region, start, &whole) {
        return None;
    }
    let version = version::version(space)?;
    let mut unknown = arena::strays(space, &[], &[layout::HEAP_ALIGN], &|_| false);
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
        heap.resident_bytes +=
            Region::new(space, *start, *end).present_bytes(*start, *end / PAGE * PAGE);
    }
}

/// What lies before the first chunk that `brk` has moved: nothing, or data of a static program. Which of the two is only
/// known where glibc says where it began.
fn before_first(main: &Main, heap: Option<(u64, u64)>) -> Option<(u64, u64)> {
    let (start, first) = (heap?.0, main.segments.first()?.start);
    let is_gap = main.params.is_none() && main.segments[0].shrinks && first >= start + HEADER;
    is_gap.then_some((start, first))
}

/// Reads all arenas.
fn read(space: &Space<'_>, taken: &Taken, main: &Main, heap: Option<(u64, u64)>) -> Found {
    let arena::Arenas { mut segments, attached_threads, mut unknown, mut is_whole, notes } =
        arena::arenas(space, main);
    let mut walk = Walk::new(space, main, notes);
    if let Some(gap) = before_first(main, heap) {
        walk.notes.push(
            "glibc: where its heap began was not found: what is before its first chunk is unknown"
                .to_owned(),
        );
        unknown.push(gap);
        is_whole = false;
    }
    let inside = fast::Inside::new(&segments);
    let (fast, fast_whole) = fast::fast_chunks(space, &inside, &segments, main.layout);
    if !fast_whole {
        walk.notes.push(
            "glibc: a list of free chunks changed while it was read: some count as live".to_owned(),
        );
    }
    let mut stretches = Vec::new();
    for segment in &mut segments {
        let region = Region::new(space, segment.mapped_start, segment.end);
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
    if space.budget.search_left() == 0 {
        walk.notes.push(
            "glibc: so many chains of chunks are broken that it was not searched where all go on: what follows is unknown"
                .to_owned(),
        );
    }
    // What would be given back is only known where nearly all is.
    let nearly = walk.heap.unknown_bytes <= walk.heap.mapped_bytes / MAX_UNKNOWN;
    // Of huge pages of hugetlbfs the kernel gives back whole ones only, where it can.
    let is_hugetlb =
        |one: &Segment| space.range_at(one.mapped_start).is_some_and(|range| range.hugetlb > 0);
    let is_hugetlb = segments.iter().any(is_hugetlb);
    if is_hugetlb {
        walk.notes.push(
            "glibc: it is in huge pages of hugetlbfs: what would be given back is not known"
                .to_owned(),
        );
    }
    let is_known = is_whole && walk.ends_at_top && nearly && main.missing == 0 && !is_hugetlb;
    let mut own: Vec<(u64, u64)> =
        segments.iter().map(|segment| (segment.mapped_start, segment.end)).collect();
    own.extend(&unknown);
    let mut all = taken.clone();
    all.add(own.iter().copied());
    walk.mapped_chunks(mapped::find(space, &all, main.layout, main.params));
    walk.missing(main.missing);
    let Walk { mut heap, sums, cxx, notes, trimmable, .. } = walk;
    add_unknown(space, &mut heap, &unknown);
    heap.trimmable_bytes = is_known.then_some(trimmable);
    heap.granules = sums.granules();
    heap.classes = sums.classes(OVERHEAD);
    heap.types = cxx.finish(sums.alone_kinds());
    Found { heap, held_bytes: sums.held_bytes(), taken: own, notes }
}

#[cfg(test)]
mod tests;
