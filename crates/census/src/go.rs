//! The spans of Go's heap, 1.16 and later, without symbols.
//!
//! A span is a run of pages of 8 KiB with objects of one size; its description lies outside of the heap. `listed` finds
//! the list that Go keeps of them: then all are known, and pages of none are free. Where there is no such list, `scan`
//! finds what may be a description, and pages of no span are unknown. What validates (`layout`): the size is that
//! of the class, as many objects as the class has fill the run, no more are in use than fit. One layout of descriptions
//! may validate, and no other. Stacks of goroutines lie in the heap.
//!
//! A live object is one that the collector has not found dead: what it has marked is read where it has not swept yet
//! (`marks`). While it marks, and between its cycles, all that was allocated since counts as live, as in `MemStats`.

mod layout;
mod listed;
mod marks;
mod scan;
mod spans;
#[cfg(test)]
mod tests;

use self::{
    layout::{Span, Use},
    spans::Spans,
};
use crate::{
    found::{Found, Taken},
    granules::{BySize, HeldBySum},
    model::{Granules, Heap, Type},
    region::Region,
    space::{RangeKind, Space},
};

/// The first heap of Go before 1.26 begins where this remains of an address, unless something else is mapped there.
const BASE: u64 = 0xc0 << 32;
const BASE_MASK: u64 = (1 << 40) - 1;
/// What spans by hand are for.
const STACKS: &str = "(goroutine stacks)";
const RUNTIME: &str = "(runtime)";

/// Looks for heaps; `None` where there is no Go.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let has_base = space.anonymous().any(|range| range.start & BASE_MASK == BASE);
    let data = listed::data(space, has_base);
    let mut heaps = listed::heaps(space, taken, &data);
    if heaps.is_empty() && (data.version.is_some() || has_base) {
        heaps.extend(scan::heap(space, taken));
    }
    let version = data.version.as_deref().unwrap_or("an unknown version");
    if heaps.is_empty() {
        data.version.as_ref()?;
        let note = format!("go: the heap of {version} was not found");
        let heap = Heap { allocator: "go".to_owned(), ..Heap::default() };
        return Some(Found { heap, held_bytes: 0, taken: Vec::new(), notes: vec![note] });
    }
    let mut sum = Sum::default();
    for heap in &heaps {
        sum.add(space, taken, heap, version);
    }
    Some(sum.finish())
}

/// What spans add up to.
#[derive(Default)]
struct Sum {
    heap: Heap,
    granules: Granules,
    classes: BySize,
    stacks: Type,
    runtime: Type,
    /// Spans with more than one object, by live ones.
    partly: HeldBySum,
    held_bytes: u64,
    taken: Vec<(u64, u64)>,
    notes: Vec<String>,
}

impl Sum {
    fn add(&mut self, space: &Space<'_>, taken: &Taken, heap: &Spans, version: &str) {
        let mapped = mapped(space, taken, &heap.ranges);
        let bytes: u64 = mapped.iter().map(|(start, end)| end - start).sum();
        let mut spans = heap.known.iter().peekable();
        for (start, end) in &heap.ranges {
            let region = Region::new(space, *start, *end);
            let inside = mapped.iter().filter(|(first, last)| start <= first && last <= end);
            self.heap.resident_bytes +=
                inside.map(|(first, last)| region.present_bytes(*first, *last)).sum::<u64>();
            while let Some(span) = spans.next_if(|span| span.start < *end) {
                let resident = region.present_bytes(span.start, span.start + span.bytes);
                self.span(space, span, resident);
            }
        }
        let used: u64 = heap.known.iter().map(|span| span.bytes).sum();
        let rest = bytes.saturating_sub(used);
        let is_whole = !heap.is_partial && !heap.is_unreadable;
        let unknown = if is_whole { heap.unknown_bytes.min(rest) } else { rest };
        self.heap.mapped_bytes += bytes;
        self.heap.unknown_bytes += unknown;
        self.taken.extend(mapped);
        if heap.is_unreadable {
            self.notes
                .push(format!("go: no known layout of spans, or more than one, fits {version}"));
        } else if heap.is_partial {
            self.notes.push(format!(
                "go: the list of spans of {version} was not found: pages of no span that was found are unknown"
            ));
        } else if heap.unknown_bytes > 0 {
            let unknown = heap.unknown_bytes;
            self.notes.push(format!("go: spans of {unknown} bytes are missing, or make no sense"));
        }
        if heap.unswept > 0 {
            let unswept = heap.unswept;
            self.notes.push(format!(
                "go: dead objects count as live where it could not be read what the collector marked ({unswept} spans)"
            ));
        }
    }

    fn span(&mut self, space: &Space<'_>, span: &Span, resident: u64) {
        let Span { start, bytes, kind, size, fit, used, .. } = *span;
        let live = used * size;
        self.held_bytes += if used > 0 { resident } else { 0 };
        self.heap.live_objects += used;
        self.heap.live_bytes += live;
        space.note_granule(&mut self.heap.map, start, bytes, (used, live));
        let by_hand = match kind {
            Use::Objects => None,
            Use::Stacks => Some(&mut self.stacks),
            Use::Runtime => Some(&mut self.runtime),
        };
        match by_hand {
            Some(by_hand) => {
                by_hand.objects += 1;
                by_hand.bytes += bytes;
            }
            None => self.classes.add(size, used, bytes),
        }
        self.granules.add(&mut self.partly, (used, fit), bytes);
    }

    fn finish(self) -> Found {
        let Self { mut heap, mut granules, classes, stacks, runtime, partly, .. } = self;
        "go".clone_into(&mut heap.allocator);
        for (name, by_hand) in [(STACKS, stacks), (RUNTIME, runtime)] {
            if by_hand.objects > 0 {
                heap.types.push(Type {
                    name: name.to_owned(),
                    arenas: by_hand.objects,
                    arenas_alone: by_hand.objects,
                    alone_bytes: by_hand.bytes,
                    ..by_hand
                });
            }
        }
        let known = heap.live_bytes.saturating_add(heap.unknown_bytes);
        heap.free_bytes = heap.mapped_bytes.saturating_sub(known);
        "span".clone_into(&mut granules.unit);
        granules.held = partly.finish();
        heap.granules = granules;
        heap.classes = classes.finish();
        let (held_bytes, taken, notes) = (self.held_bytes, self.taken, self.notes);
        Found { heap, held_bytes, taken, notes }
    }
}

/// What anonymous memory that no other heap has lies in these address ranges.
fn mapped(space: &Space<'_>, taken: &Taken, ranges: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut mapped = Vec::new();
    for (start, end) in ranges {
        let first = space.ranges.partition_point(|range| range.end <= *start);
        let inside = space.ranges[first..].iter().take_while(|range| range.start < *end);
        for range in inside.filter(|range| range.kind == RangeKind::Anonymous) {
            let part = (range.start.max(*start), range.end.min(*end));
            if !taken.meets(part.0, part.1) {
                mapped.push(part);
            }
        }
    }
    mapped
}
