//! A main arena whose memory `brk` does not move: with huge pages (`glibc.malloc.hugetlb=2`, from 2.35 on), in a second
//! namespace, or where `brk` failed. It maps regions: one ends with `top`, the others with two marks. They add up to what
//! the arena has of the system.

use super::{
    chunks::{MAX_MARK_BYTES, Search, chunk},
    layout::PROOF,
    main_arena::{candidates, only},
    segment::{Main, Segment},
    state::State,
};
use crate::{
    found::Taken,
    region::Region,
    space::{PAGE, Range, Space},
};

/// Most bytes of one mapping that are searched for the arena, and of all.
const MAX_DATA: u64 = 4 << 20;
const MAX_ALL_DATA: u64 = 256 << 20;
/// How often all memory is read at most, of a busy process or where several structures may be the arena.
const READINGS: u64 = 8;
/// Bytes of the two marks, and of one.
const MARKS: u64 = 32;
const MARK: u64 = 16;

/// The main arena, by a structure in writable data.
pub(super) fn find_main(space: &Space<'_>, taken: &Taken) -> Option<Main> {
    let mut left = MAX_ALL_DATA;
    let memory = space.heaps();
    let resident = memory.fold(0u64, |sum, range| sum.saturating_add(range.rss));
    let mut search = Search::new(space, resident, READINGS);
    for (start, end) in space.data() {
        let end = end.min(start.saturating_add(MAX_DATA.min(left)));
        left -= end - start;
        let can_be = |word: u64| is_heap(space, taken, word);
        let (states, bases) = candidates(space, (start, end), can_be);
        let mains = states.into_iter().filter_map(|(at, layout)| {
            State::readings(space, at, layout)
                .find_map(|state| main(space, taken, &state, &mut search))
        });
        if let Some(mut main) = only(space, mains.collect()) {
            main.find_params(space, &bases);
            return Some(main);
        }
    }
    None
}

fn is_heap(space: &Space<'_>, taken: &Taken, address: u64) -> bool {
    space.range_at(address).is_some_and(Range::is_heap) && taken.end_of(address).is_none()
}

fn main(space: &Space<'_>, taken: &Taken, state: &State, search: &mut Search<'_>) -> Option<Main> {
    let (top, end) = state.top(space)?;
    let holds = |chunk: u64| chunk.is_multiple_of(16) && is_heap(space, taken, chunk);
    if search.is_over() || !holds(top) || !state.is_sane(space, &holds) {
        return None;
    }
    let mut segments = Vec::new();
    let before = space.read_bytes();
    for range in space.heaps() {
        let bounds = (range.start, range.end);
        segments.append(&mut regions(space, taken, bounds, (top, end), (search, before)));
    }
    search.charge(before);
    let mapped: u64 = segments.iter().map(|(start, end)| end - start).sum();
    let has_top = segments.iter().any(|(start, last)| *start <= top && *last == end);
    let now = [state.system_mem(), state.system_mem_now(space)?];
    // What is more than the arena has would be another's.
    if !has_top || mapped > now[0].max(now[1]) {
        return None;
    }
    let segment = |(start, last): (u64, u64)| Segment {
        state: state.at,
        arena: 0,
        shrinks: false,
        mapped_start: start,
        start,
        end: last,
        top: (last == end).then_some(top),
    };
    Some(Main {
        layout: state.layout,
        state: state.at,
        segments: segments.into_iter().map(segment).collect(),
        params: None,
        missing: now[0].min(now[1]).saturating_sub(mapped),
        next: state.next(),
        attached_threads: state.attached_threads(),
    })
}

/// The regions in a mapping: they begin at a page, and may touch each other and what is none.
fn regions(
    space: &Space<'_>,
    taken: &Taken,
    (start, end): (u64, u64),
    top: (u64, u64),
    (search, before): (&mut Search<'_>, u64),
) -> Vec<(u64, u64)> {
    let mut region = Region::new(space, start, end);
    let (mut at, mut found) = (start, Vec::new());
    // Chains that break at the end are followed from each page on: that is a search, too.
    while at < end && !search.is_over_since(before) {
        if let Some(to) = taken.end_of(at) {
            at = to.next_multiple_of(PAGE);
        } else if !region.is_present(at) {
            at = region.next_present(at);
        } else if let Some(last) = region_end(&mut region, (at, end), top, search) {
            found.push((at, last));
            at = last;
        } else {
            let size = region.word(at + 8).unwrap_or_default();
            // An object with a mapping of its own.
            let is_alone = size & 7 == 2 && size - 2 <= end - at && size > PAGE;
            at = if is_alone { at + (size - 2) } else { at + PAGE }.next_multiple_of(PAGE);
        }
    }
    found
}

/// Where the region ends that begins at an address.
fn region_end(
    region: &mut Region<'_>,
    (start, limit): (u64, u64),
    top: (u64, u64),
    search: &mut Search<'_>,
) -> Option<u64> {
    let whole = Segment {
        state: 0,
        arena: 0,
        shrinks: false,
        mapped_start: start,
        start,
        end: limit,
        top: None,
    };
    let (mut at, mut proven) = (start, 0);
    while at < limit {
        if at == top.0 {
            return Some(top.1);
        }
        let word = region.word(at + 8)?;
        if word & !7 == MARK {
            // Two, and one more where `top` had too few bytes for a chunk.
            let end = at.next_multiple_of(PAGE);
            let mut marks = (at..end).step_by(MARK as usize);
            let are_marks = (MARKS..=MAX_MARK_BYTES).contains(&(end - at))
                && marks.all(|mark| region.word(mark + 8).is_some_and(|word| word & !7 == MARK));
            return are_marks.then_some(end);
        }
        // Bit 2: of a thread's arena.
        match chunk(region, at, &whole).filter(|_| word & 4 == 0 && (at > start || word & 1 == 1)) {
            Some(chunk) if at + chunk.bytes == top.1 => return Some(top.1),
            Some(chunk) if !chunk.is_top => (at, proven) = (at + chunk.bytes, proven + 1),
            _ if proven >= PROOF => at = search.resume(region, at, &whole),
            _ => return None,
        }
    }
    None
}
