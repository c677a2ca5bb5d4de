//! The heaps of a process in a few numbers: what is shown of many processes at once, and kept of each.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::{Census, Heap, PartKind, is_partial};

/// The heaps of a process, as a census found them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// Seconds that the reading took.
    pub seconds: f64,
    /// Resident bytes of the process.
    pub rss_bytes: u64,
    /// Its heaps, one per allocator.
    pub heaps: Vec<HeapSummary>,
}

/// A heap: all arenas of one allocator. Bytes are as in `drainprof.census/1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeapSummary {
    /// `glibc`, `cpython`, `jemalloc`.
    pub allocator: String,
    /// Bytes that the allocator has from the system.
    pub mapped_bytes: u64,
    /// Of these, resident.
    pub resident_bytes: u64,
    /// Resident bytes of granules with a live object, whole.
    pub held_bytes: u64,
    /// Live objects.
    pub live_objects: u64,
    /// Bytes of live objects.
    pub live_bytes: u64,
    /// Bytes that the program has freed and the cache of a thread keeps.
    pub cached_bytes: u64,
    /// Bytes that are free, whether resident or not.
    pub free_bytes: u64,
    /// Bytes that could not be read, or made no sense.
    pub unknown_bytes: u64,
    /// Resident bytes that `malloc_trim(0)` would give back; null where the allocator has nothing like it.
    pub trimmable_bytes: Option<u64>,
}

impl Summary {
    /// The summary of a census.
    #[must_use]
    pub fn of(census: &Census) -> Self {
        let heap = |heap: &Heap| HeapSummary {
            allocator: heap.allocator.clone(),
            mapped_bytes: heap.mapped_bytes,
            resident_bytes: heap.resident_bytes,
            held_bytes: held(census, &heap.allocator),
            live_objects: heap.live_objects,
            live_bytes: heap.live_bytes,
            cached_bytes: heap.cached_bytes,
            free_bytes: heap.free_bytes,
            unknown_bytes: heap.unknown_bytes,
            trimmable_bytes: heap.trimmable_bytes,
        };
        Self {
            seconds: census.seconds,
            rss_bytes: census.rss_bytes,
            heaps: census.heaps.iter().map(heap).collect(),
        }
    }
}

fn held(census: &Census, allocator: &str) -> u64 {
    let own = census.parts.iter().filter(|part| {
        part.kind == PartKind::HeapHeld && part.allocator.as_deref() == Some(allocator)
    });
    own.fold(0, |sum, part| sum.saturating_add(part.bytes))
}

impl HeapSummary {
    /// Whether so much of it is unknown that nothing can be said of what is free in it as a whole.
    #[must_use]
    pub const fn is_partial(&self) -> bool {
        is_partial(self.unknown_bytes, self.resident_bytes)
    }

    /// Resident bytes in which no live object lies, at least: free ones, and those in threads' caches. Live objects count
    /// as resident, although parts of large ones need not be.
    #[must_use]
    pub fn idle_bytes(&self) -> u64 {
        let not_live = self.resident_bytes.saturating_sub(self.live_bytes);
        not_live.saturating_sub(self.unknown_bytes).max(self.trimmable_bytes.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Part;

    /// What is held is that of the heap's own part; what is idle is neither live nor unknown.
    #[test]
    fn sums() {
        let part = |kind, allocator: Option<&str>, bytes| Part {
            kind,
            known_by: PartKind::known_by(kind),
            allocator: allocator.map(str::to_owned),
            bytes,
        };
        let heap = Heap {
            allocator: "glibc".to_owned(),
            resident_bytes: 100,
            live_bytes: 30,
            unknown_bytes: 8,
            ..Heap::default()
        };
        let census = Census {
            rss_bytes: 500,
            parts: vec![
                part(PartKind::HeapHeld, Some("cpython"), 7),
                part(PartKind::HeapHeld, Some("glibc"), 40),
                part(PartKind::HeapFree, Some("glibc"), 60),
                part(PartKind::Anonymous, None, 393),
            ],
            heaps: vec![heap],
            ..Census::default()
        };
        let summary = Summary::of(&census);
        assert_eq!((summary.rss_bytes, summary.heaps.len()), (500, 1));
        assert_eq!((summary.heaps[0].held_bytes, summary.heaps[0].idle_bytes()), (40, 62));
        let trimmable = HeapSummary { trimmable_bytes: Some(70), ..summary.heaps[0].clone() };
        assert_eq!(trimmable.idle_bytes(), 70, "a large object is not resident as a whole");
    }
}
