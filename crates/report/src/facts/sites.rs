//! Who allocates, and whose objects pin: call paths with what belongs to them.

use std::sync::Arc;

use drainprof_common::hist::Hist;
use drainprof_process::PathEnd;

use super::survivors::Survivors;
use crate::series::SiteSeries;

/// A call path: return addresses, the allocating call's first, the outermost last.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallPath {
    /// Return addresses in the target's memory; of a frame that a signal has interrupted, one byte behind the
    /// instruction at which it continues, so that for all of them the name is that of the byte before.
    pub addresses: Vec<u64>,
    /// Why it ends.
    pub end: PathEnd,
}

/// How late pins are freed, measured by how long their granules had lived: pins by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lateness {
    /// Less than a tenth of the granule's lifetime after the close.
    pub near: u64,
    /// Up to ten times its lifetime.
    pub moderate: u64,
    /// Later, or not at all until the process ended.
    pub fundamental: u64,
    /// Still live, and not yet old enough to tell; or the granule's lifetime is not known.
    pub undecided: u64,
}

/// A quantity of which each granule holds some, added up over granules.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeldSum {
    /// Its sum.
    pub sum: u64,
    /// The sum of the squares of what each granule holds.
    pub squares: f64,
}

impl HeldSum {
    /// One more granule.
    pub fn add(&mut self, held: u64) {
        self.sum = self.sum.saturating_add(held);
        self.squares += (held as f64).powi(2);
    }

    /// Adds what was summed up elsewhere. Where both have the same granules, the squares come to this at most (Minkowski).
    pub fn join(&mut self, other: Self) {
        self.sum = self.sum.saturating_add(other.sum);
        self.squares = (self.squares.sqrt() + other.squares.sqrt()).powi(2);
    }
}

/// One site: the objects that one call path allocates in granules of one class (those opened at one place).
#[derive(Clone, Debug, Default)]
pub struct SiteFacts {
    /// The call path.
    pub path: Arc<CallPath>,
    /// Where the granules were opened (return address of the open call); 0: unknown.
    pub opened_at: u64,
    /// Objects that it has allocated.
    pub allocated: u64,
    /// Their bytes, where sizes are known.
    pub allocated_bytes: u64,
    /// Its objects that are live now, in open and closed granules; `None` where objects have no ids.
    pub live: Option<u64>,
    /// Their bytes, where sizes are known.
    pub live_bytes: u64,
    /// Pinned closes at which at least one of its objects was live; each counts once.
    pub granules_pinned: u64,
    /// How many of these may be counted twice, because their pins were freed while the path was being learnt.
    pub granules_unsure: u64,
    /// Objects of it that were live at pinned closes: its pins.
    pub pins: u64,
    /// Their bytes, where sizes are known.
    pub pin_bytes: u64,
    /// Pins that are live still.
    pub pins_live: u64,
    /// Their bytes.
    pub pins_live_bytes: u64,
    /// Granules that are retained now with at least one of its objects.
    pub granules_retained: u64,
    /// Bytes of these granules, where known.
    pub retained_bytes: u64,
    /// Open granules with at least one of its live objects, where they are closed only once they are empty (kind
    /// `slab`); 0 for other kinds.
    pub granules_held: u64,
    /// How many of these hold nothing else.
    pub granules_held_alone: u64,
    /// Its live objects that are in these granules, one by one: the others are larger than a granule.
    pub held_objects: HeldSum,
    /// Their bytes, where sizes are known.
    pub held_bytes: HeldSum,
    /// Close → free of each pin that was freed, nanoseconds.
    pub delays: Hist,
    /// Its pins by how late they are freed.
    pub lateness: Lateness,
    /// When the longest-held of its live pins had its granule closed (`CLOCK_MONOTONIC` ns); 0: none.
    pub oldest_close_ns: u64,
    /// Its first allocation (`CLOCK_MONOTONIC` ns).
    pub first_ns: u64,
    /// Its last allocation.
    pub last_ns: u64,
    /// Names of threads that allocate there, a few of them.
    pub threads: Vec<String>,
    /// Whether there are more threads than [`SiteFacts::threads`] names.
    pub more_threads: bool,
    /// Allocation → free of its objects that were freed, nanoseconds, where frees are no late drains.
    pub lives: Hist,
    /// Its live objects, by the time of their allocation; of a sample of pages an estimate for all.
    pub survivors: Survivors,
    /// The granules that it retains, by the time of their close; those of its live objects where they are none.
    pub retained_since: Survivors,
    /// Some of its live objects, the oldest first.
    pub oldest: Vec<LiveObject>,
    /// What it holds back over time; `None` where that is not known. With a duty cycle, in the last window.
    pub over_time: Option<SiteSeries>,
}

/// One object that is live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LiveObject {
    /// When it was allocated (`CLOCK_MONOTONIC` ns).
    pub born_ns: u64,
    /// Its id as the target has it.
    pub id: u64,
    /// Its size; 0 where that is not known.
    pub bytes: u64,
}

/// Objects that a site names.
const OLDEST: usize = 8;
/// Names of threads that are kept per site.
const THREADS: usize = 8;

impl SiteFacts {
    /// A site of which nothing was counted yet.
    #[must_use]
    pub fn new(path: Arc<CallPath>, opened_at: u64) -> Self {
        Self { path, opened_at, ..Self::default() }
    }

    /// Keeps an object in mind, if it is one of the oldest.
    pub fn note(&mut self, object: LiveObject) {
        let at = self.oldest.partition_point(|known| *known < object);
        if at < OLDEST {
            self.oldest.insert(at, object);
            self.oldest.truncate(OLDEST);
        }
    }

    /// The window has ended: what is live is not followed further.
    pub fn leave(&mut self) {
        self.live = self.live.map(|_| 0);
        self.live_bytes = 0;
        self.pins_live = 0;
        self.pins_live_bytes = 0;
        self.granules_retained = 0;
        self.retained_bytes = 0;
        self.granules_held = 0;
        self.granules_held_alone = 0;
        self.held_objects = HeldSum::default();
        self.held_bytes = HeldSum::default();
        self.oldest_close_ns = 0;
        self.survivors = Survivors::default();
        self.retained_since = Survivors::default();
        self.oldest.clear();
    }

    /// The allocator instance was destroyed: what its granules retained and held went with it.
    pub fn end_with_instance(&mut self) {
        self.granules_retained = 0;
        self.retained_bytes = 0;
        self.granules_held = 0;
        self.granules_held_alone = 0;
    }

    /// Adds what was counted of the same site elsewhere: under another number, or in another window. Granules that
    /// both have counted count twice; two time series make none, so the other's is kept.
    pub fn join(&mut self, other: &Self) {
        let earliest =
            |one: u64, two: u64| if one == 0 || (two != 0 && two < one) { two } else { one };
        self.allocated += other.allocated;
        self.allocated_bytes += other.allocated_bytes;
        self.live = match (self.live, other.live) {
            (Some(one), Some(two)) => Some(one + two),
            (one, two) => one.or(two),
        };
        self.live_bytes += other.live_bytes;
        self.granules_pinned += other.granules_pinned;
        self.granules_unsure += other.granules_unsure;
        self.pins += other.pins;
        self.pin_bytes += other.pin_bytes;
        self.pins_live += other.pins_live;
        self.pins_live_bytes += other.pins_live_bytes;
        self.granules_retained += other.granules_retained;
        self.retained_bytes += other.retained_bytes;
        self.granules_held += other.granules_held;
        self.granules_held_alone += other.granules_held_alone;
        self.held_objects.join(other.held_objects);
        self.held_bytes.join(other.held_bytes);
        self.delays.merge(&other.delays);
        self.lives.merge(&other.lives);
        self.survivors.join(&other.survivors);
        self.retained_since.join(&other.retained_since);
        other.oldest.iter().for_each(|object| self.note(*object));
        self.lateness.near += other.lateness.near;
        self.lateness.moderate += other.lateness.moderate;
        self.lateness.fundamental += other.lateness.fundamental;
        self.lateness.undecided += other.lateness.undecided;
        self.oldest_close_ns = earliest(self.oldest_close_ns, other.oldest_close_ns);
        self.first_ns = earliest(self.first_ns, other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.more_threads |= other.more_threads;
        if other.over_time.is_some() {
            self.over_time.clone_from(&other.over_time);
        }
        for name in &other.threads {
            if self.threads.contains(name) {
                continue;
            }
            if self.threads.len() < THREADS {
                self.threads.push(name.clone());
            } else {
                self.more_threads = true;
            }
        }
        self.threads.sort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums over different granules add up; where they have granules in common, no square is too small.
    #[test]
    fn held_sums_join() {
        let (mut one, mut two, mut both) =
            (HeldSum::default(), HeldSum::default(), HeldSum::default());
        for (a, b) in [(10, 0), (0, 7), (5, 5), (100, 1)] {
            one.add(a);
            two.add(b);
            both.add(a + b);
        }
        one.join(two);
        assert_eq!(one.sum, both.sum);
        assert!(one.squares >= both.squares, "{} {}", one.squares, both.squares);
    }
}
