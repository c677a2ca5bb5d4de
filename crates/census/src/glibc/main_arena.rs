//! The main arena: where its structure is, and its memory, which is what `brk` moves.

use super::{
    arena::{arenas, way},
    layout::{LAYOUTS, Layout},
    segment::{Main, Segment},
    state::State,
};
use crate::{
    region::Region,
    space::{PAGE, RangeKind, Space},
};

/// Most bytes of one mapping that are searched for the main arena, and of all.
const MAX_DATA: u64 = 64 << 20;
const MAX_ALL_DATA: u64 = 4 << 30;
/// Structures that may be `malloc_par`, at most.
const MAX_PARAMS: usize = 1024;

/// Where a structure can be, in a layout.
type Place = (u64, &'static Layout);

/// The range of `[heap]`. Its mappings touch each other.
pub(super) fn main_heap(space: &Space<'_>) -> Option<(u64, u64)> {
    let heaps = space.ranges.iter().filter(|range| range.kind == RangeKind::Heap);
    heaps.fold(None, |sum: Option<(u64, u64)>, range| match sum {
        None => Some((range.start, range.end)),
        Some((start, end)) if end == range.start => Some((start, range.end)),
        sum => sum,
    })
}

/// The main arena: a structure in writable data whose `top` is the last chunk of the heap, and that validates in exactly
/// one of the known layouts.
pub(super) fn find_main(space: &Space<'_>, heap: (u64, u64)) -> Option<Main> {
    let mut left = MAX_ALL_DATA;
    // It may have grown since the mappings were read.
    let heap = (heap.0, space.mapped_end(heap.1).unwrap_or(heap.1));
    for (start, end) in space.data() {
        let end = end.min(start.saturating_add(MAX_DATA.min(left)));
        left -= end - start;
        let found = search(space, heap, (start, end));
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Searches a mapping: words that can be the `top` of an arena, and such that can be the `sbrk_base` of `mp_`.
fn search(space: &Space<'_>, heap: (u64, u64), (start, end): (u64, u64)) -> Option<Main> {
    let can_be = |word: u64| (heap.0.saturating_sub(PAGE)..heap.1).contains(&word);
    let (states, bases) = candidates(space, (start, end), can_be);
    let mains = states.into_iter().filter_map(|state| main_at(space, heap, state)).collect();
    let mut main = only(space, mains)?;
    main.find_params(space, &bases);
    Some(main)
}

/// Addresses at which a structure can be, by its layout; and words that can be the `sbrk_base` of `mp_`, with addresses.
pub(super) fn candidates(
    space: &Space<'_>,
    (start, end): (u64, u64),
    can_be_heap: impl Fn(u64) -> bool,
) -> (Vec<Place>, Vec<(u64, u64)>) {
    let (mut states, mut bases) = (Vec::new(), Vec::new());
    let mut region = Region::new(space, start, end);
    let mut next = start;
    while next < end {
        let at = next;
        if !region.is_present(at) {
            next = region.next_present(at);
            continue;
        }
        next += 8;
        let Some(word) = region.word(at).filter(|word| can_be_heap(*word)) else { continue };
        if bases.len() < MAX_PARAMS {
            bases.push((word, at));
        }
        if !word.is_multiple_of(16) {
            continue;
        }
        for layout in &LAYOUTS {
            let state = at.wrapping_sub(layout.top);
            if State::may_be(&mut region, state, layout) {
                states.push((state, layout));
            }
        }
    }
    (states, bases)
}

/// The one main arena whose layout is proven: by a ring that leads back, else by other arenas that make sense in it.
pub(super) fn only(space: &Space<'_>, mut mains: Vec<Main>) -> Option<Main> {
    best(&mut mains, |main| way(space, main).1);
    best(&mut mains, |main| arenas(space, main).segments.len());
    mains.pop().filter(|_| mains.is_empty())
}

/// Keeps those with the most proof, where there are several.
fn best<T: Ord>(mains: &mut Vec<Main>, proof: impl Fn(&Main) -> T) {
    if mains.len() > 1 {
        let proofs: Vec<T> = mains.iter().map(proof).collect();
        let most = proofs.iter().max();
        let mut best = proofs.iter().map(|proof| Some(proof) == most);
        mains.retain(|_| best.next().unwrap_or(false));
    }
}

/// The main arena whose structure is at an address.
fn main_at(
    space: &Space<'_>,
    heap: (u64, u64),
    (at, layout): (u64, &'static Layout),
) -> Option<Main> {
    State::readings(space, at, layout).find_map(|state| main_of(space, heap, &state))
}

fn main_of(space: &Space<'_>, heap: (u64, u64), state: &State) -> Option<Main> {
    let (top, end) = state.top(space).or_else(|| state.absent_top(space, heap))?;
    // It may have grown or shrunk since it was read.
    (state.system_mem_now(space)? == state.system_mem()).then_some(())?;
    // A static program has put its own data before the first chunk, and what follows `top` is not glibc's.
    let start = end.checked_sub(state.system_mem())?.next_multiple_of(16);
    let is_main =
        (heap.0.saturating_sub(PAGE)..heap.1).contains(&start) && (start..heap.1).contains(&top);
    let holds = |chunk: u64| chunk.is_multiple_of(16) && (start..end).contains(&chunk);
    if !is_main || !state.is_sane(space, &holds) {
        return None;
    }
    let segment = Segment {
        state: state.at,
        arena: 0,
        shrinks: true,
        mapped_start: start,
        start,
        end,
        top: Some(top),
    };
    Some(Main {
        layout: state.layout,
        state: state.at,
        segments: vec![segment],
        params: None,
        missing: 0,
        next: state.next(),
        attached_threads: state.attached_threads(),
    })
}
