//! Arenas of glibc: the ring that they are, and which stretches of memory belong to which.

use std::collections::HashSet;

use super::{
    layout::{HEAP_ALIGN, HEAP_INFOS},
    segment::{Main, Segment},
    state::State,
};
use crate::space::{PAGE, RangeKind, Space};

/// Reads of all arenas where one makes no sense.
const RING_ATTEMPTS: u32 = 3;
/// Further reads of single arenas, in all.
const MAX_ATTEMPTS: u32 = 4096;
/// Arenas, and heaps of one arena, that are followed.
const MAX_ARENAS: usize = 65_536;
const MAX_HEAPS: usize = 4096;

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

/// The other arenas in the order of the ring, and whether it leads back.
pub(super) fn way(space: &Space<'_>, main: &Main) -> (Vec<u64>, bool) {
    let (mut states, mut next) = (Vec::new(), main.next);
    // An arena that comes twice ends it.
    let mut met = HashSet::new();
    while next != main.state {
        // With what is kept of an arena.
        let is_room = states.len() < MAX_ARENAS && space.budget.keeps::<[u64; 32]>(1);
        let is_new = is_room && next.is_multiple_of(8) && met.insert(next);
        let Some(after) = space.field(next, main.layout.next).filter(|_| is_new) else {
            return (states, false);
        };
        states.push(next);
        next = after;
    }
    (states, true)
}

/// All arenas, from the main one on. The process may make or give back heaps meanwhile.
pub(super) fn arenas(space: &Space<'_>, main: &Main) -> Arenas {
    let mut left = MAX_ATTEMPTS;
    let mut all = ring(space, main, &mut left);
    for _ in 1..RING_ATTEMPTS {
        if all.is_whole {
            break;
        }
        let again = ring(space, main, &mut left);
        if again.unknown_bytes() <= all.unknown_bytes() {
            all = again;
        }
    }
    all
}

impl Arenas {
    fn unknown_bytes(&self) -> u64 {
        self.unknown.iter().map(|(start, end)| end - start).sum()
    }
}

fn ring(space: &Space<'_>, main: &Main, left: &mut u32) -> Arenas {
    let alignments: Vec<u64> = match main.params {
        Some(params) => params.heap_alignments().collect(),
        None => vec![HEAP_ALIGN],
    };
    let mut all = Arenas {
        segments: main.segments.clone(),
        attached_threads: main.attached_threads,
        unknown: Vec::new(),
        is_whole: false,
        notes: Vec::new(),
    };
    let (states, leads_back) = way(space, main);
    let members: HashSet<u64> = states.iter().copied().chain([main.state]).collect();
    let mut refused = Vec::new();
    for at in &states {
        let number = all.segments.last().map_or(0, |last| last.arena + 1);
        let read = |state: &State| {
            let free = state.next_free();
            (free == 0 || members.contains(&free)).then_some(())?;
            alignments.iter().find_map(|align| thread_arena(space, state, *align, number))
        };
        let mut found = None;
        for (index, state) in State::readings(space, *at, main.layout).enumerate() {
            let Some(after) = left.checked_sub(u32::from(index > 0)) else { break };
            *left = after;
            found = read(&state);
            if found.is_some() {
                break;
            }
        }
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
    // An arena whose heap is not known by its first words leads to the others.
    let leads = |at: u64| {
        let mut states = HEAP_INFOS.iter().map(|info| at.saturating_add(*info));
        states
            .any(|at| space.field(at, main.layout.next).is_some_and(|next| members.contains(&next)))
    };
    all.unknown = strays(space, &all.segments, &alignments, &leads);
    for at in &refused {
        let known = all.segments.iter().map(|one| (one.mapped_start, one.end));
        let mut known = known.chain(all.unknown.iter().copied());
        let is_listed = known.any(|(start, end)| (start..end).contains(at));
        all.unknown.extend(if is_listed { None } else { around(space, *at) });
    }
    if !refused.is_empty() || !all.unknown.is_empty() {
        all.notes.push(format!(
            "glibc: {} arenas do not make sense, and {} heaps of threads with {} bytes belong to no arena that does: \
             they are unknown",
            refused.len(),
            all.unknown.len(),
            all.unknown_bytes()
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
            shrinks: false,
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
    // It may have grown or shrunk since it was read.
    let (before, now) = (state.system_mem(), state.system_mem_now(space)?);
    let adds_up = (before.min(now)..=before.max(now)).contains(&sum);
    let is_whole = is_top && holds(top) && adds_up;
    let is_sane = segments.last()?.mapped_start == first && state.is_sane(space, &holds);
    (is_whole && is_sane).then(|| (segments, state.attached_threads()))
}

/// Heaps of threads that no known arena has; `leads` says whether an arena at the begin of one leads to those that are
/// known.
pub(super) fn strays(
    space: &Space<'_>,
    segments: &[Segment],
    alignments: &[u64],
    leads: &dyn Fn(u64) -> bool,
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
            let bytes = info.filter(is_stray).map(|info| info.bytes);
            let bytes = bytes.or_else(|| (!is_known && leads(at)).then_some(*align));
            if let Some(bytes) = bytes {
                strays.push((at, at.saturating_add(bytes).min(range.end)));
            }
            at = at.saturating_add(*align);
        }
    }
    strays.sort_unstable();
    strays.dedup_by_key(|(start, _)| *start);
    strays
}
