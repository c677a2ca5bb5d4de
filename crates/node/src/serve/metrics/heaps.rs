//! Metrics of heaps, from censuses.

use std::collections::BTreeMap;

use drainprof_census::HeapSummary;

use super::{
    family::{Families, with},
    table,
};
use crate::NodeTarget;

/// The heaps of the processes of one label set.
#[derive(Default)]
pub(super) struct HeapSums {
    /// Whether a process had no census.
    is_partial: bool,
    longest: f64,
    /// Milliseconds since 1970.
    oldest: Option<u64>,
    heaps: BTreeMap<String, HeapSummary>,
}

impl HeapSums {
    pub(super) fn add(&mut self, target: &NodeTarget) {
        let known = target.heaps.as_ref().filter(|heaps| heaps.failure.is_none());
        let Some(known) = known else {
            self.is_partial = true;
            return;
        };
        self.longest = self.longest.max(known.summary.seconds);
        self.oldest = Some(self.oldest.map_or(known.unix_ms, |oldest| oldest.min(known.unix_ms)));
        for heap in &known.summary.heaps {
            match self.heaps.get_mut(&heap.allocator) {
                Some(sum) => add(sum, heap),
                None => drop(self.heaps.insert(heap.allocator.clone(), heap.clone())),
            }
        }
    }

    /// Writes the sums, if all processes had a census.
    pub(super) fn write(&self, labels: &[(&'static str, String)], families: &mut Families) {
        let Some(oldest) = self.oldest.filter(|_| !self.is_partial) else { return };
        families.measure(&table::HEAP_SECONDS, labels.to_vec(), self.longest);
        families.measure(&table::HEAP_TIME, labels.to_vec(), oldest as f64 / 1e3);
        for (allocator, heap) in &self.heaps {
            let labels = with(labels, "allocator", allocator);
            for (of, bytes) in [
                (&table::HEAP_MAPPED, heap.mapped_bytes),
                (&table::HEAP_RESIDENT, heap.resident_bytes),
                (&table::HEAP_HELD, heap.held_bytes),
                (&table::HEAP_LIVE, heap.live_bytes),
                (&table::HEAP_CACHED, heap.cached_bytes),
                (&table::HEAP_FREE, heap.free_bytes),
                (&table::HEAP_UNKNOWN, heap.unknown_bytes),
            ] {
                families.count(of, labels.clone(), bytes);
            }
            if let Some(bytes) = heap.trimmable_bytes {
                families.count(&table::HEAP_TRIMMABLE, labels, bytes);
            }
        }
    }
}

/// Adds a heap of another process. What is not known of one is not known of the sum.
fn add(sum: &mut HeapSummary, heap: &HeapSummary) {
    let trimmable = sum.trimmable_bytes.zip(heap.trimmable_bytes);
    sum.trimmable_bytes = trimmable.map(|(one, other)| one.saturating_add(other));
    for (sum, bytes) in [
        (&mut sum.mapped_bytes, heap.mapped_bytes),
        (&mut sum.resident_bytes, heap.resident_bytes),
        (&mut sum.held_bytes, heap.held_bytes),
        (&mut sum.live_bytes, heap.live_bytes),
        (&mut sum.cached_bytes, heap.cached_bytes),
        (&mut sum.free_bytes, heap.free_bytes),
        (&mut sum.unknown_bytes, heap.unknown_bytes),
    ] {
        *sum = sum.saturating_add(bytes);
    }
}
