//! Arenas of glibc: where the main one's structure is, and which stretches of memory belong to which.

use super::{PAGE, Space};
use crate::space::RangeKind;

/// Threads' heaps begin at multiples of this.
const HEAP_ALIGN: u64 = 64 << 20;
/// Offsets in `struct malloc_state`, and its size.
pub(super) const FASTBINS: u64 = 16;
const TOP: u64 = 96;
const UNSORTED: u64 = 112;
const NEXT: u64 = 2160;
const SYSTEM_MEM: u64 = 2184;
const STATE_BYTES: u64 = 2200;
/// Arenas, and heaps of one arena, that are followed.
const MAX_ARENAS: usize = 4096;
const MAX_HEAPS: usize = 4096;
/// Most bytes of one mapping that are searched for the main arena, and of all.
const MAX_DATA: u64 = 64 << 20;
const MAX_ALL_DATA: u64 = 4 << 30;

/// A stretch of memory that is full of chunks.
pub(super) struct Segment {
    /// The address of the arena's structure; 0 where it is not known.
    pub(super) state: u64,
    /// The arena's number.
    pub(super) arena: usize,
    pub(super) is_main: bool,
    /// Where the memory begins, and where its first chunk does.
    pub(super) mapped_start: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

pub(super) struct Arenas {
    /// Whether the main arena's structure was found, and with it all others.
    pub(super) main_known: bool,
    pub(super) segments: Vec<Segment>,
}

/// All arenas; `None` where there is no heap of glibc.
pub(super) fn segments(space: &Space<'_>) -> Option<Arenas> {
    let (start, end) = main_heap(space)?;
    let main = find_main(space, start, end);
    let mut segments = vec![Segment {
        state: main.unwrap_or(0),
        arena: 0,
        is_main: true,
        mapped_start: start,
        start,
        end,
    }];
    let mut state = main.and_then(|main| space.field(main, NEXT));
    while let Some(next) = state
        && Some(next) != main
        && segments.len() < MAX_ARENAS
        && segments.iter().all(|known| known.state != next)
    {
        if !add_heaps(space, next, &mut segments) {
            break;
        }
        state = space.field(next, NEXT);
    }
    Some(Arenas { main_known: main.is_some(), segments })
}

/// The range of `[heap]`. Its mappings touch each other.
fn main_heap(space: &Space<'_>) -> Option<(u64, u64)> {
    let heaps = space.ranges.iter().filter(|range| range.kind == RangeKind::Heap);
    heaps.fold(None, |sum: Option<(u64, u64)>, range| match sum {
        None => Some((range.start, range.end)),
        Some((start, end)) if end == range.start => Some((start, range.end)),
        sum => sum,
    })
}

/// The main arena: a structure in writable data whose `top` is the last chunk of the heap.
fn find_main(space: &Space<'_>, heap: u64, heap_end: u64) -> Option<u64> {
    let in_heap = |address: u64| (heap..heap_end).contains(&address) && address.is_multiple_of(16);
    let mut left = MAX_ALL_DATA;
    for (index, range) in space.ranges.iter().enumerate() {
        // The data of an object, or what follows it without a file (.bss).
        let before = index.checked_sub(1).and_then(|before| space.ranges.get(before));
        let is_bss = range.kind == RangeKind::Anonymous
            && before
                .is_some_and(|before| before.kind == RangeKind::File && before.end == range.start);
        if !range.writable || (range.kind != RangeKind::File && !is_bss) {
            continue;
        }
        let end = range.end.min(range.start.saturating_add(MAX_DATA.min(left)));
        left -= end - range.start;
        let mut region = space.region(range.start, end);
        let mut next = range.start;
        while next < end {
            let at = next;
            if !region.is_present(at) {
                next = region.next_present(at);
                continue;
            }
            next += 8;
            let Some(top) = region.word(at).filter(|top| in_heap(*top)) else { continue };
            let Some(state) = at.checked_sub(TOP) else { continue };
            let is_last = space
                .field(top, 8)
                .is_some_and(|size| top.checked_add(size & !7) == Some(heap_end));
            let bin = space.field(state, UNSORTED).is_some_and(|bin| bin == at || in_heap(bin));
            let size = space.field(state, SYSTEM_MEM).is_some_and(|size| {
                size.is_multiple_of(PAGE) && size > 0 && size <= heap_end - heap + PAGE
            });
            if is_last && bin && size {
                return Some(state);
            }
        }
    }
    None
}

/// The heaps of a thread's arena, from its last to its first; whether they make sense.
fn add_heaps(space: &Space<'_>, state: u64, segments: &mut Vec<Segment>) -> bool {
    let first = state / HEAP_ALIGN * HEAP_ALIGN;
    let header = state - first;
    let Some(top) = space.field(state, TOP) else { return false };
    let arena = segments.last().map_or(0, |last| last.arena + 1);
    let mut heap = top / HEAP_ALIGN * HEAP_ALIGN;
    if !(32..=64).contains(&header) {
        return false;
    }
    for _ in 0..MAX_HEAPS {
        let Some([owner, before, size]) = space.words(heap) else { return false };
        let is_known = segments.iter().any(|one| one.mapped_start == heap);
        if owner != state || !(2 * PAGE..=HEAP_ALIGN).contains(&size) || is_known {
            return false;
        }
        let start = if heap == first { state + STATE_BYTES } else { heap + header };
        let start = start.next_multiple_of(16);
        let end = heap + size;
        segments.push(Segment { state, arena, is_main: false, mapped_start: heap, start, end });
        if heap == first || before == 0 {
            return true;
        }
        heap = before;
    }
    true
}
