//! What one census may take, whatever the process has made of its memory. All readers read through a `Space`, which counts
//! here, and gives nothing more to read once a bound is met: what was not read is unknown then.
//!
//! | What             | for each resident byte       | and  | beside                    |
//! |------------------|------------------------------|------|---------------------------|
//! | bytes read       | 16                           | 64 MiB |                         |
//! | of these, in searches | 12                      | 16 MiB | where broken chains go on |
//! | structures read  | 1/8: one for each word       | 2^20 | which pages are present   |
//! | memory of ours   | 1/8                          | 32 MiB | at most `Options::memory` |
//! | CPU time         | 20 ns: 2 s for 100 MB        | 1 s  |                           |
//! | time             | 100 ns: 10 s for 100 MB      | 10 s | at most `Options::deadline` |
//!
//! An ordinary heap takes one to three bytes, a fiftieth of a byte of ours, and 1 ns for each byte. Memory of ours is
//! what readers keep of each page, extent, span or chunk; what is in a hash table counts twice, since that has room.

use std::{
    cell::Cell,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use nix::time::{ClockId, clock_gettime};

/// A bound that grows with resident memory: so much for each KiB of it, and so much more.
struct Linear {
    each_kib: u64,
    more: u64,
}

impl Linear {
    const fn of(&self, resident: u64) -> u64 {
        (resident / 1024).saturating_mul(self.each_kib).saturating_add(self.more)
    }
}

const READ: Linear = Linear { each_kib: 16 << 10, more: 64 << 20 };
/// Bytes of what is read.
const SEARCHED: Linear = Linear { each_kib: 12 << 10, more: 16 << 20 };
const STEPS: Linear = Linear { each_kib: 128, more: 1 << 20 };
const KEPT: Linear = Linear { each_kib: 128, more: 32 << 20 };
/// Nanoseconds.
const CPU: Linear = Linear { each_kib: 20 << 10, more: 1_000_000_000 };
const TIME: Linear = Linear { each_kib: 100 << 10, more: 10_000_000_000 };
/// How much slower a build without optimizations may be.
const SLOW: u64 = if cfg!(debug_assertions) { 16 } else { 1 };
/// Clocks are read after so many structures, or so many times as many bytes.
const CLOCK_STEPS: u64 = 256;
const STEP_BYTES: u64 = 4096;
/// Questions which pages are present that are still answered after the end: what is unknown has a size.
const LATE: u64 = 1 << 16;

/// What a census runs out of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Read,
    Steps,
    Kept,
    Cpu,
    Time,
}

/// What a census may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) read: u64,
    /// Of what is read, what finds where broken chains go on.
    pub(crate) searched: u64,
    pub(crate) steps: u64,
    pub(crate) kept: u64,
    pub(crate) cpu: Duration,
    pub(crate) time: Duration,
}

impl Bounds {
    /// Those of a process with so many resident bytes.
    pub(crate) fn of(resident: u64) -> Self {
        let time = |bound: &Linear| Duration::from_nanos(bound.of(resident).saturating_mul(SLOW));
        Self {
            read: READ.of(resident),
            searched: SEARCHED.of(resident),
            steps: STEPS.of(resident),
            kept: KEPT.of(resident),
            cpu: time(&CPU),
            time: time(&TIME),
        }
    }
}

/// What a census has taken, and may take.
#[derive(Debug)]
pub(crate) struct Budget {
    bounds: Bounds,
    read: Cell<u64>,
    searched: Cell<u64>,
    steps: Cell<u64>,
    /// Memory of ours now, and the most that it was.
    kept: Cell<u64>,
    #[cfg(test)]
    most_kept: Cell<u64>,
    /// Work until the clocks are read again.
    until_look: Cell<u64>,
    began: Instant,
    began_cpu: Duration,
    /// Set by others: the time is over.
    stop: Option<Arc<AtomicBool>>,
    over: Cell<Option<Resource>>,
    late: Cell<u64>,
}

impl Budget {
    pub(crate) fn new(bounds: Bounds, stop: Option<Arc<AtomicBool>>) -> Self {
        Self {
            bounds,
            read: Cell::new(0),
            searched: Cell::new(0),
            steps: Cell::new(0),
            kept: Cell::new(0),
            #[cfg(test)]
            most_kept: Cell::new(0),
            until_look: Cell::new(CLOCK_STEPS),
            began: Instant::now(),
            began_cpu: cpu_time(),
            stop,
            over: Cell::new(None),
            late: Cell::new(0),
        }
    }

    /// Takes a read of so many bytes in so many structures; whether it may be done.
    pub(crate) fn reads(&self, bytes: u64, steps: u64) -> bool {
        if self.is_over() {
            return false;
        }
        let (read, all) = (self.read.get().saturating_add(bytes), self.steps.get() + steps);
        if read > self.bounds.read {
            return self.ends(Resource::Read);
        }
        if all > self.bounds.steps {
            return self.ends(Resource::Steps);
        }
        self.read.set(read);
        self.steps.set(all);
        let work = steps + bytes / STEP_BYTES;
        match self.until_look.get().checked_sub(work) {
            Some(left) => self.until_look.set(left),
            None => return self.look(),
        }
        true
    }

    /// Counts bytes that were read to find where a chain goes on.
    pub(crate) fn searches(&self, bytes: u64) {
        self.searched.set(self.searched.get().saturating_add(bytes));
    }

    /// Bytes that may still be read for that. Where there are none, all else is read on.
    pub(crate) fn search_left(&self) -> u64 {
        self.bounds.searched.saturating_sub(self.searched.get())
    }

    /// Whether time is left, where something else than a read takes it.
    pub(crate) fn look(&self) -> bool {
        self.until_look.set(CLOCK_STEPS);
        let is_stopped = || self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
        if self.is_over() {
            false
        } else if is_stopped() || self.began.elapsed() > self.bounds.time {
            self.ends(Resource::Time)
        } else if cpu_time().saturating_sub(self.began_cpu) > self.bounds.cpu {
            self.ends(Resource::Cpu)
        } else {
            true
        }
    }

    /// Whether it may be asked once more which pages are present: some times also after the end.
    pub(crate) fn asks(&self) -> bool {
        if self.reads(0, 1) {
            return true;
        }
        self.late.set(self.late.get() + 1);
        self.late.get() <= LATE
    }

    /// Takes memory of ours; whether it may be had.
    pub(crate) fn keeps_bytes(&self, bytes: u64) -> bool {
        if self.is_over() {
            return false;
        }
        let kept = self.kept.get().saturating_add(bytes);
        if kept > self.bounds.kept {
            return self.ends(Resource::Kept);
        }
        self.kept.set(kept);
        #[cfg(test)]
        self.most_kept.set(self.most_kept.get().max(kept));
        true
    }

    /// Takes memory for so many entries of a list.
    pub(crate) fn keeps<T>(&self, entries: usize) -> bool {
        self.keeps_bytes((entries as u64).saturating_mul(size_of::<T>() as u64))
    }

    /// Whether so much memory of ours is left.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.kept.get().saturating_add(bytes) <= self.bounds.kept
    }

    /// Gives memory of ours back.
    pub(crate) fn gives_back(&self, bytes: u64) {
        self.kept.set(self.kept.get().saturating_sub(bytes));
    }

    /// Memory of ours now.
    pub(crate) fn kept(&self) -> u64 {
        self.kept.get()
    }

    /// The most memory of ours so far.
    #[cfg(test)]
    pub(crate) fn most_kept(&self) -> u64 {
        self.most_kept.get()
    }

    /// Structures that were read.
    #[cfg(test)]
    pub(crate) fn steps(&self) -> u64 {
        self.steps.get()
    }

    pub(crate) fn read_bytes(&self) -> u64 {
        self.read.get()
    }

    /// Whether nothing more may be read.
    pub(crate) fn is_over(&self) -> bool {
        self.over.get().is_some()
    }

    /// What ran out, with the bound, as text.
    pub(crate) fn ran_out(&self) -> Option<String> {
        let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
        let bounds = &self.bounds;
        let (what, most): (_, &dyn fmt::Display) = match self.over.get()? {
            Resource::Read => ("bytes to read", &mib(bounds.read)),
            Resource::Steps => ("structures to read", &bounds.steps),
            Resource::Kept => ("memory for what is kept of them", &mib(bounds.kept)),
            Resource::Cpu => ("CPU time", &format!("{:.1} s", bounds.cpu.as_secs_f64())),
            Resource::Time => ("time", &format!("{:.1} s", bounds.time.as_secs_f64())),
        };
        Some(format!("{what}, of which a process of this size has {most}"))
    }

    fn ends(&self, resource: Resource) -> bool {
        if !self.is_over() {
            self.over.set(Some(resource));
        }
        false
    }
}

/// CPU time of this thread since it began.
fn cpu_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(bounds: Bounds) -> Budget {
        Budget::new(bounds, None)
    }

    /// Bounds are linear, as the table says.
    #[test]
    fn table() {
        let (none, some) = (Bounds::of(0), Bounds::of(100 << 20));
        assert_eq!(some.read - none.read, 1600 << 20);
        assert_eq!(some.searched - none.searched, 1200 << 20);
        assert_eq!(some.steps - none.steps, (100 << 20) / 8);
        assert_eq!(some.kept - none.kept, (100 << 20) / 8);
        let nanos = |more: Duration, less: Duration| more.as_nanos() - less.as_nanos();
        let slow = u128::from(SLOW);
        assert_eq!(nanos(some.cpu, none.cpu), slow * (100 << 20) * 20);
        assert_eq!(nanos(some.time, none.time), slow * (100 << 20) * 100);
        assert_eq!((none.read, none.searched), (64 << 20, 16 << 20));
        assert_eq!((none.steps, none.kept), (1 << 20, 32 << 20));
        assert_eq!(none.cpu.as_nanos(), slow * 1_000_000_000);
        assert_eq!(none.time.as_nanos(), slow * 10_000_000_000);
    }

    /// Each bound is met exactly, and what ran out first is said.
    #[test]
    fn exact() {
        let of = || budget(Bounds { read: 100, steps: 4, kept: 64, ..Bounds::of(0) });
        let all = of();
        assert!(all.reads(50, 1) && all.reads(50, 3) && !all.is_over());
        assert!(!all.reads(1, 0) && all.is_over() && !all.keeps_bytes(1));
        assert_eq!(all.read_bytes(), 100);
        assert!(all.ran_out().is_some_and(|text| text.starts_with("bytes to read")));
        let all = budget(Bounds { searched: 100, ..Bounds::of(0) });
        all.searches(60);
        assert_eq!(all.search_left(), 40);
        all.searches(60);
        assert!(all.search_left() == 0 && !all.is_over());
        let all = of();
        assert!(all.reads(0, 4) && !all.reads(0, 1));
        assert!(
            all.ran_out().is_some_and(|text| text.contains("structures") && text.contains('4'))
        );
        let all = of();
        assert!(all.keeps::<u64>(6) && !all.keeps::<u64>(3));
        assert_eq!((all.kept(), all.most_kept()), (48, 48));
        assert!(all.ran_out().is_some_and(|text| text.starts_with("memory")));
        let all = of();
        assert!(all.keeps_bytes(60));
        all.gives_back(50);
        assert!(all.keeps_bytes(54) && !all.keeps_bytes(1));
        assert_eq!(all.most_kept(), 64);
    }

    /// Time that is over ends it soon, and so does who asks for that.
    #[test]
    fn late() {
        let tries = |budget: &Budget| {
            (0..=2 * CLOCK_STEPS).take_while(|_| budget.reads(0, 1)).count() as u64
        };
        let over = budget(Bounds { time: Duration::ZERO, ..Bounds::of(0) });
        assert!(
            tries(&over) <= CLOCK_STEPS
                && over.ran_out().is_some_and(|text| text.starts_with("time"))
        );
        let over = budget(Bounds { cpu: Duration::ZERO, ..Bounds::of(0) });
        assert!(
            tries(&over) <= CLOCK_STEPS
                && over.ran_out().is_some_and(|text| text.starts_with("CPU"))
        );
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Budget::new(Bounds::of(0), Some(Arc::clone(&stop)));
        assert!(tries(&stopped) > CLOCK_STEPS);
        stop.store(true, Ordering::Relaxed);
        assert!(tries(&stopped) <= CLOCK_STEPS);
        // What is not known has a size still.
        assert_eq!((0..2 * LATE).take_while(|_| stopped.asks()).count() as u64, LATE);
    }
}
