//! What spans add up to.

use std::collections::BTreeMap;

use super::span::{Span, Use};
use crate::{
    found::{Found, joined, region_with},
    granules::{BySize, HeldBySum},
    model::{Granules, Heap},
    space::Space,
};

/// The heap of these spans, of stretches of which nothing is known, and with as many objects in caches, by size.
pub(super) fn sum(
    space: &Space<'_>,
    spans: &[(u64, Span)],
    unknown: &[(u64, u64)],
    cached: &BTreeMap<u64, u64>,
) -> Found {
    let mut heap = Heap { allocator: "tcmalloc".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "span".to_owned(), ..Granules::default() };
    let (mut classes, mut partly, mut held_bytes) = (BySize::default(), HeldBySum::default(), 0);
    let mut last = None;
    for (start, span) in spans {
        let (bytes, size, used) = (span.bytes(), span.size(), span.used());
        let region = region_with(space, &mut last, (*start, start + bytes));
        let resident = region.present_bytes(*start, start + bytes);
        let live = used * size;
        heap.mapped_bytes += bytes;
        heap.resident_bytes += resident;
        heap.free_bytes += bytes.saturating_sub(live);
        heap.live_objects += used;
        heap.live_bytes += live;
        space.note_granule(&mut heap.map, *start, bytes, (used, live));
        if span.kind != Use::Free {
            classes.add(size, used, bytes);
        }
        held_bytes += if used > 0 { resident } else { 0 };
        // Most of what is free was never touched.
        if used > 0 || resident > 0 {
            granules.add(&mut partly, (used, span.fit()), bytes);
        }
    }
    let mut notes = Vec::new();
    let mut last = None;
    for (start, end) in unknown {
        let region = region_with(space, &mut last, (*start, *end));
        let resident = region.present_bytes(*start, *end);
        heap.mapped_bytes += end - start;
        heap.resident_bytes += resident;
        heap.unknown_bytes += resident;
    }
    if heap.unknown_bytes > 0 {
        let kib = heap.unknown_bytes.div_ceil(1 << 10);
        notes.push(format!("tcmalloc: {kib} KiB should be spans, and make no sense: not counted"));
    }
    granules.held = partly.finish();
    heap.granules = granules;
    heap.classes = classes.finish();
    for class in &mut heap.classes {
        let count = cached.get(&class.size).copied().unwrap_or_default().min(class.objects);
        let bytes = count * class.size;
        class.objects -= count;
        class.bytes -= bytes;
        heap.live_objects -= count;
        heap.live_bytes -= bytes;
        heap.cached_bytes += bytes;
    }
    let taken = spans.iter().map(|(start, span)| (*start, start + span.bytes()));
    let taken = joined(space, taken.chain(unknown.iter().copied()));
    Found { heap, held_bytes, taken, notes }
}
