//! Who allocates, and whose objects pin: call paths with what belongs to them.

use std::sync::Arc;

use drainprof_common::hist::Hist;

/// Why a call path ends where it does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathEnd {
    /// At the start of its thread or process: it is whole.
    Start,
    /// It is deeper than is followed.
    TooDeep,
    /// At code that has no unwind information, and no frame pointer to go by.
    NoUnwindInfo,
    /// At a part of the stack that could not be read.
    Unreadable,
    /// The stack was not captured in time: the first allocations of a path that was not known yet.
    #[default]
    NotCaptured,
}

impl PathEnd {
    /// Whether the path goes to the start of its thread.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        matches!(self, Self::Start)
    }
}

/// A call path: return addresses, the allocating call's first, the outermost last.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallPath {
    /// Return addresses in the target's memory.
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

/// One site: the objects that one call path allocates in granules of one class (those opened at one place).
#[derive(Clone, Debug)]
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
    /// Close → free of each pin that was freed, nanoseconds.
    pub delays: Hist,
    /// Its pins by how late they are freed.
    pub lateness: Lateness,
    /// When the longest-held of its live pins had its granule closed (`CLOCK_MONOTONIC` ns); 0: none.
    pub oldest_close_ns: u64,
    /// Its first allocation (`CLOCK_MONOTONIC` ns, to some milliseconds).
    pub first_ns: u64,
    /// Its last allocation.
    pub last_ns: u64,
    /// Names of threads that allocate there, a few of them.
    pub threads: Vec<String>,
    /// Whether there are more threads than [`SiteFacts::threads`] names.
    pub more_threads: bool,
}
