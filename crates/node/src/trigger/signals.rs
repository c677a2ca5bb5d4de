//! What the rules check.

use drainprof_process::memory::{MemoryReading, Pressure};
use drainprof_profile::Kind;
use drainprof_report::memory::MemoryTrend;

use crate::Heaps;

/// What is known of one process at one moment. Unknown values are `None`;
/// non-finite numbers count as unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signals {
    /// When, in seconds on a monotonic clock. A check whose time is not finite, or not
    /// later than the last one's, is passed over.
    pub at: f64,
    /// Counts per profile. A profile that is missing in one check starts afresh in the next.
    pub profiles: Vec<ProfileSignals>,
    /// The process's memory.
    pub memory: Option<MemoryReading>,
    /// Page faults per second since the last check.
    pub faults_per_second: Option<f64>,
    /// How its resident memory grows, over the last minutes.
    pub trend: Option<MemoryTrend>,
    /// Its heaps, as of the last census.
    pub heaps: Option<Heaps>,
    /// Pressure on the memory of its control group.
    pub pressure: Option<Pressure>,
    /// The share of the last ten minutes in which probes were in place, where some were to be.
    pub observed: Option<f64>,
}

/// What is known of one profile in the process. Counts are totals that only grow; one that falls begins again.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileSignals {
    /// The profile's name.
    pub profile: String,
    /// Its decided closes; `None` unless its kind is `drain`.
    pub closes: Option<Closes>,
    /// Its objects; `None` at a level that does not see them, or in a sample.
    pub objects: Option<Objects>,
    /// What it retains now, bytes.
    pub retained_bytes: Option<u64>,
    /// How fast that grows.
    pub retention_slope: Option<Slope>,
}

/// Decided closes so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closes {
    /// With no live object.
    pub drainable: u64,
    /// With at least one.
    pub pinned: u64,
}

/// Allocations and frees so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Allocations.
    pub allocs: u64,
    /// Frees, the unmatched ones included.
    pub frees: u64,
    /// Frees of objects whose allocation was not seen.
    pub unmatched_frees: u64,
}

/// A slope and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slope {
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Its 95 % confidence interval.
    pub interval: [f64; 2],
}

/// More profiles than a process can sensibly have are ignored: their histories would be the daemon's growth.
pub(super) const MAX_PROFILES: usize = 16;

/// `value`, if it is a number.
pub(super) fn finite(value: Option<f64>) -> Option<f64> {
    value.filter(|value| value.is_finite())
}

impl Closes {
    /// How many closes were decided.
    pub(super) const fn decided(self) -> u64 {
        self.drainable.saturating_add(self.pinned)
    }

    /// The rate; `None` with no decided close.
    pub(super) fn dsr(self) -> Option<f64> {
        drainprof_report::dsr(Kind::Drain, self.drainable, self.pinned)
    }
}
