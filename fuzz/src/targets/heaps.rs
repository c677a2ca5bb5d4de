//! Heaps of processes that lie.

use std::{
    fmt::{self, Display, Formatter},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use drainprof_census::testing::{Described, Walked};

use crate::{Bound, Cost, cost};

/// What a walk may cost by the bytes that the process has: time in a debug build on a busy machine, memory and
/// allocations of ours. Most of the memory is what is read at once. An extent of jemalloc costs most for what it has: 100
/// bytes for 136.
const BOUND: Bound = Bound {
    base: Cost { time: Duration::from_millis(200), memory: 4 << 20, allocations: 50_000 },
    each_kib: Cost { time: Duration::from_micros(50), memory: 4 << 10, allocations: 640 },
};
/// Bytes that may be read, as the budget of a census has it: so many, and so many for each byte that the process has, of
/// which the budget knows those that are resident.
const MOST_READ: u64 = 64 << 20;
const MOST_READ_EACH: u64 = 16;
/// Requests for memory: so many, and so many for each page. A page of jemalloc's tree leads to 512 descriptions, and each
/// is asked for twice in each layout where it cannot be read.
const MOST_READS: u64 = 10_000;
const MOST_READS_EACH: u64 = 128;

/// How the names of each reader's seeds begin, and those of what is about all of them.
pub const SEEDS: [(&str, &[&str]); 13] = [
    ("apr", &["apr"]),
    ("cpython", &["cpython"]),
    ("glibc", &["glibc", "broken", "circle", "torn"]),
    ("go", &["go", "unlisted-go"]),
    (
        "jemalloc",
        &["jemalloc", "extents", "more-free-than-regions", "parts-repeated", "found-jemalloc"],
    ),
    ("mimalloc", &["mimalloc"]),
    ("musl", &["musl"]),
    ("nginx", &["nginx"]),
    ("postgres", &["postgres"]),
    ("ruby", &["ruby", "found-ruby"]),
    ("stacks", &["stacks"]),
    ("tcmalloc", &["tcmalloc", "found-tcmalloc"]),
    ("mappings", &["huge", "large-file", "reservation"]),
];

/// Processes that are smaller cost what any costs, so what a byte of them costs says nothing.
const LEAST_BYTES: u64 = 1 << 20;

/// The most that a byte of a process has cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    nanos: f64,
    memory: f64,
    read: f64,
}

static WORST: Mutex<Worst> = Mutex::new(Worst { nanos: 0.0, memory: 0.0, read: 0.0 });

/// The most that a byte of a process of at least 1 MiB has cost so far.
pub fn worst() -> Worst {
    *WORST.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Display for Worst {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let Self { nanos, memory, read } = self;
        write!(
            out,
            "at most {nanos:.1} ns, {memory:.2} bytes of ours and {read:.1} bytes read for a byte of a process of 1 MiB \
             or more"
        )
    }
}

fn note(bytes: u64, cost: Cost, read: u64) {
    if bytes >= LEAST_BYTES {
        let mut worst = WORST.lock().unwrap_or_else(PoisonError::into_inner);
        let each = |of: u64| of as f64 / bytes as f64;
        worst.nanos = worst.nanos.max(each(cost.time.as_nanos() as u64));
        worst.memory = worst.memory.max(each(cost.memory));
        worst.read = worst.read.max(each(read));
    }
}

/// A memory that a text describes, walked as that of a process.
pub(super) fn heaps(bytes: &[u8]) -> bool {
    walk(&String::from_utf8_lossy(bytes)).is_any()
}

/// Walks a text, held against what a walk may cost.
///
/// # Panics
/// It costs more.
#[must_use]
pub fn walk(text: &str) -> Walked {
    let process = Described::new(text);
    let (walked, cost) = cost(|| process.walk());
    let bytes = process.bytes();
    let wrong = BOUND.check(bytes, cost);
    assert!(wrong.is_none(), "a walk {}", wrong.unwrap_or_default());
    let Walked { read_bytes, reads, .. } = walked;
    note(bytes, cost, read_bytes);
    let most = MOST_READ + MOST_READ_EACH * bytes;
    assert!(read_bytes <= most, "a walk reads {read_bytes} of {bytes} bytes, {most} at most");
    let most = MOST_READS + MOST_READS_EACH * (bytes >> 12);
    assert!(reads <= most, "a walk of {bytes} bytes reads {reads} times, {most} at most");
    walked
}
