//! All heaps of a process: the readers in their order, what they say that they did not see, and the stacks that no heap
//! has.

use crate::{
    cpython,
    found::{Found, Taken, Walker},
    glibc, go,
    granules::cells,
    jemalloc, mimalloc,
    model::Heap,
    musl, ruby,
    space::{PAGE, Space},
    stacks, tcmalloc,
};

/// The walkers, the surest first: a chunk of glibc may look like anything, a pool does not.
const WALKERS: [Walker; 8] = [
    cpython::find,
    ruby::find,
    go::find,
    mimalloc::find,
    jemalloc::find,
    tcmalloc::find,
    musl::find,
    glibc::find,
];

/// What was found in a process.
#[derive(Default)]
pub(crate) struct Heaps {
    /// The heaps, each with the resident bytes of its granules that are held.
    pub(crate) found: Vec<(Heap, u64)>,
    pub(crate) notes: Vec<Note>,
    /// Resident bytes of stacks of threads, which no heap has.
    pub(crate) stack_bytes: u64,
    /// Bytes of huge pages in which nothing lives, beside what does; `None`: not known.
    pub(crate) huge_idle_bytes: Option<u64>,
}

/// What was not seen, in a sentence.
pub(crate) struct Note {
    /// The heap that it is about; `None`: memory of no known heap.
    pub(crate) allocator: Option<String>,
    pub(crate) text: String,
}

/// What is said where not all was read.
const ENDED: &str = "the reading ended before all was read: it has used up the";

/// What a heap is whose reader could not read all: what was read counts, if it is known how much was not. Else it is
/// unknown as a whole.
fn cut(found: &mut Found, what: &str) {
    let heap = &mut found.heap;
    heap.trimmable_bytes = None;
    // What no heap has is unknown anyway.
    if heap.mapped_bytes == 0 {
        return;
    }
    if !heap.is_partial() {
        let whole = std::mem::take(heap);
        *heap = Heap {
            allocator: whole.allocator,
            mapped_bytes: whole.mapped_bytes,
            resident_bytes: whole.resident_bytes,
            unknown_bytes: whole.mapped_bytes.max(whole.resident_bytes),
            ..Heap::default()
        };
        found.held_bytes = 0;
    }
    let (name, unknown) = (&heap.allocator, heap.unknown_bytes);
    found.notes.push(format!("{name}: {ENDED} {what}: {unknown} bytes are unknown"));
}

/// Bytes of a heap that are in huge pages and hold nothing, at least, where other pages of these do. `None` where too much of
/// it is unknown. Nothing is said of unknown bytes.
fn huge_idle(space: &Space<'_>, found: &Found) -> Option<u64> {
    let huge = space.huge.borrow();
    let stretches = found.taken.iter();
    let idle =
        stretches.fold(0u64, |sum, (start, end)| sum.saturating_add(huge.idle(*start, *end)));
    let heap = &found.heap;
    if idle > 0 && heap.is_partial() {
        return None;
    }
    let free = heap.resident_bytes.saturating_sub(found.held_bytes);
    Some(idle.min(free).saturating_sub(heap.unknown_bytes))
}

/// The heaps, and the stacks that these stack pointers lie in. All memory is searched for heaps first: goroutines' stacks
/// lie in the heap, for example.
pub(crate) fn heaps(space: &mut Space<'_>, pointers: &[u64]) -> Heaps {
    let is_huge_known = space.find_huge();
    let (mut all, mut taken) = (Heaps::default(), Taken::default());
    let mut idle_bytes = is_huge_known.then_some(0u64);
    for walker in WALKERS {
        if space.budget.is_over() {
            break;
        }
        let kept = space.budget.kept();
        let found = walker(space, &taken);
        // What it has kept is gone, but for the heap.
        space.budget.gives_back(space.budget.kept().saturating_sub(kept));
        let Some(mut found) = found else { continue };
        if let Some(what) = space.budget.ran_out() {
            cut(&mut found, &what);
        }
        let is_heap = found.heap.mapped_bytes > 0;
        let allocator = is_heap.then(|| found.heap.allocator.clone());
        let note = |text| Note { allocator: allocator.clone(), text };
        all.notes.extend(found.notes.drain(..).map(note));
        if !is_heap {
            continue;
        }
        let idle = huge_idle(space, &found);
        idle_bytes = idle_bytes.zip(idle).map(|(sum, idle)| sum.saturating_add(idle));
        space.budget.keeps::<[u64; 4]>(found.taken.len());
        taken.add(found.taken);
        let heap = &mut found.heap;
        heap.map = cells(std::mem::take(&mut heap.map));
        if heap.is_partial() {
            heap.trimmable_bytes = None;
        }
        let used = heap.live_bytes.saturating_add(heap.unknown_bytes);
        heap.compaction_bytes = heap.resident_bytes.saturating_sub(used) / PAGE * PAGE;
        all.found.push((found.heap, found.held_bytes));
    }
    let ran_out = space.budget.ran_out();
    all.huge_idle_bytes = idle_bytes.filter(|_| ran_out.is_none());
    all.stack_bytes = stacks::bytes(space, pointers, &taken);
    let mut note = |text| all.notes.push(Note { allocator: None, text });
    if let Some(text) = space.note() {
        note(text);
    }
    if let Some(what) = ran_out {
        note(format!(
            "{ENDED} {what}: memory of which nothing was read is of no known heap, and unknown"
        ));
    }
    if all.found.is_empty() {
        note(
            "no heap was found whose structures are known: glibc, musl, CPython, Ruby, Go, jemalloc 5.1 to 5.4, \
             gperftools 2.10 to 2.18, mimalloc 2.0 to 3.6"
                .to_owned(),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Pieces, anonymous};

    /// Where nothing is known, that is a note of no heap.
    #[test]
    fn nothing() {
        let memory = Pieces::default();
        let mut space = Space::new(vec![anonymous(1 << 30, PAGE)], &memory);
        let found = heaps(&mut space, &[1 << 30]);
        assert!(found.found.is_empty() && found.notes.len() == 1 && found.stack_bytes == 0);
        assert!(found.notes[0].allocator.is_none() && found.notes[0].text.contains("no heap"));
        assert_eq!(found.huge_idle_bytes, Some(0));
    }
}
