//! Arenas of glibc: where the main one's structure is, and which stretches of memory belong to which.

use std::collections::HashSet;

use super::{
    PAGE, Space,
    layout::{HEAP_ALIGN, HEAP_INFOS, LAYOUTS, Layout},
    params::Params,
    state::State,
};
use crate::space::RangeKind;

/// Reads of an arena that makes no sense: a busy process changes it while it is read.
const STATE_ATTEMPTS: u32 = 16;
/// Arenas, and heaps of one arena, that are followed.
const MAX_ARENAS: usize = 65_536;
const MAX_HEAPS: usize = 4096;
/// Most bytes of one mapping that are searched for the main arena, and of all.
const MAX_DATA: u64 = 64 << 20;
const MAX_ALL_DATA: u64 = 4 << 30;
/// Structures that may be `malloc_par`, at most.
const MAX_PARAMS: usize = 1024;

/// A stretch of memory that is full of chunks.
pub(super) struct Segment {
    /// The address of the arena's structure.
    pub(super) state: u64,
    /// The arena's number.
    pub(super) arena: usize,
    pub(super) is_main: bool,
    /// Where the memory begins, and where its first chunk does.
    pub(super) mapped_start: u64,
    pub(super) start: u64,
    pub(super) end: u64,
    /// The chunk that must be its last one; `None` where the arena has gone on to another heap.
    pub(super) top: Option<u64>,
}

/// The main arena, and what leads to the others.
pub(super) struct Main {
    pub(super) layout: &'static Layout,
    pub(super) segment: Segment,
    pub(super) params: Option<Params>,
    next: u64,
    attached_threads: u64,
}

/// All arenas.
pub(super) struct Arenas {
    pub(super) segments: Vec<Segment>,
    /// Threads that the arenas have.
    pub(super) attached_threads: u64,
    /// Heaps that belong to arenas that do not make sense, or that no arena leads to.
    pub(super) unknown: Vec<(u64, u64)>,
    /// Whether the ring leads back, each arena makes sense, and no heap is left over.
    pub(super) is_whole: bool,
    pub(super) notes: Vec<String>,
}

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
    let (mut mains, mut bases) = (Vec::new(), Vec::new());
    let mut region = space.region(start, end);
    let mut next = start;
    while next < end {
        let at = next;
        if !region.is_present(at) {
            next = region.next_present(at);
            continue;
        }
        next += 8;
        let Some(word) = region.word(at) else { continue };
        if !(heap.0.saturating_sub(PAGE)..heap.1).contains(&word) {
            continue;
        }
        if bases.len() < MAX_PARAMS {
            bases.push((word, at));
        }
        if !word.is_multiple_of(16) {
            continue;
        }
        for layout in &LAYOUTS {
            let state = at.wrapping_sub(layout.top);
            if State::may_be(&mut region, state, layout) {
                mains.extend(main_at(space, heap, (state, layout)));
            }
        }
    }
    let mut main = only(space, mains)?;
    // The first chunk is aligned, the first address need not be.
    let first = main.segment.start.saturating_sub(15)..=main.segment.start;
    let mut params = bases.iter().filter(|(word, _)| first.contains(word));
    main.params = params.find_map(|(_, at)| Params::read(space, *at));
    Some(main)
}

/// The one main arena whose layout is proven: by a ring that leads back, else by other arenas that make sense in it.
fn only(space: &Space<'_>, mut mains: Vec<Main>) -> Option<Main> {
    if mains.len() > 1 {
        let proof = |main: &Main| (way(space, main).1, arenas(space, main).segments.len());
        let proofs: Vec<(bool, usize)> = mains.iter().map(proof).collect();
        let most = proofs.iter().max()?;
        let mut best = proofs.iter().map(|proof| proof == most);
        mains.retain(|_| best.next().unwrap_or(false));
    }
    mains.pop().filter(|_| mains.is_empty())
}

/// The main arena whose structure is at an address.
fn main_at(
    space: &Space<'_>,
    heap: (u64, u64),
    (at, layout): (u64, &'static Layout),
) -> Option<Main> {
    (0..STATE_ATTEMPTS).find_map(|_| main_of(space, heap, &State::read(space, at, layout)?))
}

fn main_of(space: &Space<'_>, heap: (u64, u64), state: &State) -> Option<Main> {
    let (top, end) = state.top(space)?;
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
        is_main: true,
        mapped_start: start,
        start,
        end,
        top: Some(top),
    };
    Some(Main {
        layout: state.layout,
        segment,
        params: None,
        next: state.next(),
        attached_threads: state.attached_threads(),
    })
}

/// The other arenas in the order of the ring, and whether it leads back.
fn way(space: &Space<'_>, main: &Main) -> (Vec<u64>, bool) {
    let (mut states, mut next) = (Vec::new(), main.next);
    // An arena that comes twice ends it.
    let mut met = HashSet::new();
    while next != main.segment.state {
        let is_new = next.is_multiple_of(8) && met.insert(next) && states.len() < MAX_ARENAS;
        let Some(after) = space.field(next, main.layout.next).filter(|_| is_new) else {
            return (states, false);
        };
        states.push(next);
        next = after;
    }
    (states, true)
}

/// All arenas, from the main one on.
pub(super) fn arenas(space: &Space<'_>, main: &Main) -> Arenas {
    let alignments: Vec<u64> = match main.params {
        Some(params) => params.heap_alignments().collect(),
        None => vec![HEAP_ALIGN],
    };
    let mut all = Arenas {
        segments: vec![Segment { ..main.segment }],
        attached_threads: main.attached_threads,
        unknown: Vec::new(),
        is_whole: false,
        notes: Vec::new(),
    };
    let (states, leads_back) = way(space, main);
    let members: HashSet<u64> = states.iter().copied().chain([main.segment.state]).collect();
    let mut refused = Vec::new();
    for at in &states {
        let number = all.segments.last().map_or(0, |last| last.arena + 1);
        let found = (0..STATE_ATTEMPTS).find_map(|_| {
            let state = State::read(space, *at, main.layout)?;
            let free = state.next_free();
            (free == 0 || members.contains(&free)).then_some(())?;
            alignments.iter().find_map(|align| thread_arena(space, &state, *align, number))
        });
        match found {
            Some((segments, attached)) => {
                all.segments.extend(segments);
                all.attached_threads = all.attached_threads.saturating_add(attached);
            }
            None => refused.push(*at),
        }
    }
    if !leads_back {
        let known = states.len() + 1 - refused.len();
        all.notes.push(format!(
            "glibc: the ring of arenas does not lead back to the main one after {known} of them: all others are \
             unknown"
        ));
    }
    all.unknown = strays(space, &all.segments, &alignments);
    for at in &refused {
        let is_listed = all.unknown.iter().any(|(start, end)| (*start..*end).contains(at));
        all.unknown.extend(if is_listed { None } else { around(space, *at) });
    }
    if !refused.is_empty() || !all.unknown.is_empty() {
        let bytes: u64 = all.unknown.iter().map(|(start, end)| end - start).sum();
        all.notes.push(format!(
            "glibc: {} arenas do not make sense, and {} heaps of threads with {bytes} bytes belong to no arena that \
             does: they are unknown",
            refused.len(),
            all.unknown.len()
        ));
    }
    all.is_whole = leads_back && refused.is_empty() && all.unknown.is_empty();
    all
}

/// The anonymous mapping that an arena lies in which makes no sense.
fn around(space: &Space<'_>, state: u64) -> Option<(u64, u64)> {
    let range = space.range_at(state).filter(|range| range.writable)?;
    (range.kind == RangeKind::Anonymous).then_some((range.start, range.end))
}

/// A heap of a thread's arena: who owns it, the one before, and its bytes.
struct HeapInfo {
    owner: u64,
    before: u64,
    bytes: u64,
}

/// What stands at the begin of a thread's heap; `None` where that makes no sense.
fn heap_info(space: &Space<'_>, at: u64, align: u64) -> Option<HeapInfo> {
    let [owner, before, bytes, writable] = space.words(at)?;
    let is_sane = at.is_multiple_of(align)
        && HEAP_INFOS.contains(&(owner % align))
        && before.is_multiple_of(align)
        && bytes.is_multiple_of(PAGE)
        && (PAGE..=align).contains(&bytes)
        && (bytes..=align).contains(&writable);
    is_sane.then_some(HeapInfo { owner, before, bytes })
}

/// The heaps of a thread's arena, from its first to its last, and its threads. They add up to what it has of the system.
fn thread_arena(
    space: &Space<'_>,
    state: &State,
    align: u64,
    arena: usize,
) -> Option<(Vec<Segment>, u64)> {
    let (top, end) = state.top(space)?;
    let first = state.at / align * align;
    let header = state.at - first;
    let mut heap = top / align * align;
    let (mut segments, mut sum) = (Vec::new(), 0u64);
    for _ in 0..MAX_HEAPS {
        let info = heap_info(space, heap, align)?;
        let is_known = segments.iter().any(|one: &Segment| one.mapped_start == heap);
        if info.owner != state.at || is_known || (heap == first) != (info.before == 0) {
            return None;
        }
        sum = sum.checked_add(info.bytes)?;
        let start = if heap == first { state.at + state.layout.bytes } else { heap + header };
        segments.push(Segment {
            state: state.at,
            arena,
            is_main: false,
            mapped_start: heap,
            start: start.next_multiple_of(16),
            end: heap + info.bytes,
            top: None,
        });
        if heap == first {
            break;
        }
        heap = info.before;
    }
    let last = segments.first_mut()?;
    last.top = Some(top);
    let is_top = end == last.end;
    let holds = |chunk: u64| {
        let mut segments = segments.iter();
        chunk.is_multiple_of(16) && segments.any(|one| (one.start..one.end).contains(&chunk))
    };
    let is_whole = is_top && holds(top) && sum == state.system_mem();
    let is_sane = segments.last()?.mapped_start == first && state.is_sane(space, &holds);
    (is_whole && is_sane).then(|| (segments, state.attached_threads()))
}

/// Heaps of threads that no known arena has.
pub(super) fn strays(
    space: &Space<'_>,
    segments: &[Segment],
    alignments: &[u64],
) -> Vec<(u64, u64)> {
    let mut known: Vec<(u64, u64)> =
        segments.iter().map(|one| (one.mapped_start, one.end)).collect();
    known.sort_unstable();
    let mut strays = Vec::new();
    for (range, align) in
        space.anonymous().flat_map(|one| alignments.iter().map(move |by| (one, by)))
    {
        let mut at = range.start.next_multiple_of(*align);
        while at < range.end {
            let is_known = known.binary_search_by_key(&at, |(start, _)| *start).is_ok();
            let info = if is_known { None } else { heap_info(space, at, *align) };
            let is_stray = |info: &HeapInfo| {
                // Its arena lies in a heap that says the same.
                let first = info.owner / align * align;
                space.word(first) == Some(info.owner)
            };
            if let Some(info) = info.filter(is_stray) {
                strays.push((at, at.saturating_add(info.bytes).min(range.end)));
            }
            at = at.saturating_add(*align);
        }
    }
    strays.sort_unstable();
    strays.dedup_by_key(|(start, _)| *start);
    strays
}
