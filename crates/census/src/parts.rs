//! Resident memory by what it is used for: parts that add up.

use crate::{
    model::{Heap, Part, PartKind},
    space::{RangeKind, Space},
};

/// The parts of a process's resident memory; with each heap the resident bytes of its granules that are held.
pub(crate) fn parts(space: &Space<'_>, heaps: &[(Heap, u64)]) -> Vec<Part> {
    let mut parts = Vec::new();
    let mut add = |kind, allocator: Option<&str>, bytes: u64| {
        if bytes > 0 {
            parts.push(Part { kind, allocator: allocator.map(str::to_owned), bytes });
        }
    };
    let sum = |kinds: &[RangeKind]| {
        let ranges = space.ranges.iter().filter(|range| kinds.contains(&range.kind));
        ranges.fold(0u64, |sum, range| sum.saturating_add(range.rss))
    };
    let mut anonymous = sum(&[RangeKind::Heap, RangeKind::Anonymous]);
    for (heap, held) in heaps {
        let name = Some(heap.allocator.as_str());
        // What came since the mappings were read is not in their figures.
        let resident = heap.resident_bytes.min(anonymous);
        let held = (*held).min(resident);
        let unknown = heap.unknown_bytes.min(resident - held);
        add(PartKind::HeapHeld, name, held);
        add(PartKind::HeapFree, name, resident - held - unknown);
        add(PartKind::HeapUnknown, name, unknown);
        anonymous -= resident;
    }
    add(PartKind::Anonymous, None, anonymous);
    add(PartKind::Stack, None, sum(&[RangeKind::Stack]));
    add(PartKind::File, None, sum(&[RangeKind::File]));
    add(PartKind::Shared, None, sum(&[RangeKind::Shared]));
    parts
}
