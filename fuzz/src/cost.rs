//! What an input costs: memory that its parser asks for, and time, held against a bound that is linear in its size.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};

/// Counts what each thread allocates.
struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the most of it. What another thread frees is not taken off.
    static HELD: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

fn count(bytes: i64) {
    // A thread that ends has no counters any more.
    let _ = HELD.try_with(|held| {
        let now = held.get().saturating_add(bytes);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
        let _ = CALLS.try_with(|calls| calls.set(calls.get() + u64::from(bytes > 0)));
    });
}

/// A size of memory, which is never larger.
fn signed(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

// SAFETY: the system's allocator does all of it; counters are cells that need no memory of their own.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: as the caller says.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: as the caller says.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // What is large grows where it is, and moves by its pages.
        count(signed(size) - signed(layout.size()));
        // SAFETY: as the caller says.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// What something has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Time of a processor.
    pub time: Duration,
    /// The most bytes that it held at once.
    pub memory: u64,
    /// How often it allocated.
    pub allocations: u64,
}

impl Cost {
    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            time: self.time.max(other.time),
            memory: self.memory.max(other.memory),
            allocations: self.allocations.max(other.allocations),
        }
    }
}

/// Most that an input may cost: so much, and so much for each byte of it.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// For nothing at all.
    pub base: Cost,
    /// For each KiB.
    pub each_kib: Cost,
}

impl Bound {
    /// Why this is too much for so many bytes.
    #[must_use]
    pub fn check(&self, bytes: u64, cost: Cost) -> Option<String> {
        let scaled = |base: u64, each: u64| base.saturating_add(each.saturating_mul(bytes) >> 10);
        let nanos = |time: Duration| time.as_nanos() as u64;
        let rows = [
            ("ns", nanos(self.base.time), nanos(self.each_kib.time), nanos(cost.time)),
            ("bytes", self.base.memory, self.each_kib.memory, cost.memory),
            ("allocations", self.base.allocations, self.each_kib.allocations, cost.allocations),
        ];
        let wrong = rows.iter().find(|(_, base, each, is)| *is > scaled(*base, *each));
        wrong.map(|(what, base, each, is)| {
            format!("takes {is} {what} for {bytes} bytes, of {} at most", scaled(*base, *each))
        })
    }
}

/// What `run` gives, and what it costs.
pub fn cost<T>(run: impl FnOnce() -> T) -> (T, Cost) {
    let (held, calls, began) = (HELD.get(), CALLS.get(), processor_time());
    MOST.set(held);
    let result = run();
    let cost = Cost {
        time: processor_time().saturating_sub(began),
        memory: u64::try_from(MOST.get() - held).unwrap_or(0),
        allocations: CALLS.get() - calls,
    };
    (result, cost)
}

/// Time of a processor that this thread has taken.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What was held at once counts, and is held against a bound.
    #[test]
    fn counted() {
        let ((), cost) = cost(|| {
            for _ in 0..3 {
                std::hint::black_box(vec![1u8; 1 << 20]);
            }
        });
        assert!((1 << 20..2 << 20).contains(&cost.memory), "{cost:?}");
        assert!(cost.allocations >= 3, "{cost:?}");
        let most = |memory| Cost { memory, allocations: 10, time: Duration::from_secs(9) };
        let bound = Bound { base: most(1000), each_kib: most(1024) };
        assert_eq!(bound.check(1 << 20, cost), None);
        assert!(bound.check(1 << 10, cost).is_some_and(|text| text.contains("bytes")));
    }
}
