//! From counters to what has changed in a time. Pure.

use drainprof_profile::Kind;

use super::moment::ProfileCounts;

/// What has been added to the counters of one profile in one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Sums {
    /// Granules opened.
    pub opened: u64,
    /// Closes with no live object.
    pub drainable: u64,
    /// Closes with at least one.
    pub pinned: u64,
    /// Closes that could not be decided, and all closes of kinds that decide none.
    pub unknown: u64,
}

impl Sums {
    /// drainable / (drainable + pinned); `None` without a decided close.
    #[must_use]
    pub fn dsr(&self) -> Option<f64> {
        drainprof_report::dsr(Kind::Drain, self.drainable, self.pinned)
    }

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            opened: self.opened.saturating_add(other.opened),
            drainable: self.drainable.saturating_add(other.drainable),
            pinned: self.pinned.saturating_add(other.pinned),
            unknown: self.unknown.saturating_add(other.unknown),
        }
    }

    /// What was added since `earlier`; `None` if a counter has fallen.
    const fn since(self, earlier: Self) -> Option<Self> {
        let (Some(opened), Some(drainable), Some(pinned), Some(unknown)) = (
            self.opened.checked_sub(earlier.opened),
            self.drainable.checked_sub(earlier.drainable),
            self.pinned.checked_sub(earlier.pinned),
            self.unknown.checked_sub(earlier.unknown),
        ) else {
            return None;
        };
        Some(Self { opened, drainable, pinned, unknown })
    }
}

impl From<ProfileCounts> for Sums {
    fn from(counts: ProfileCounts) -> Self {
        let ProfileCounts { opened, drainable, pinned, unknown, .. } = counts;
        Self { opened, drainable, pinned, unknown }
    }
}

/// Adds up what the counters of one profile in one process gain from point to point.
///
/// Counters begin at 0 with each run of the daemon; and where one has fallen all the same, the process is observed
/// again, and what it has now came since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    last: Option<(i64, Sums)>,
}

impl Tally {
    /// What the point adds to the one before it. The first one adds all that it has.
    pub fn add(&mut self, run: i64, counts: ProfileCounts) -> Sums {
        let now = Sums::from(counts);
        let added = match self.last {
            Some((earlier_run, earlier)) if earlier_run == run => now.since(earlier).unwrap_or(now),
            _ => now,
        };
        self.last = Some((run, now));
        added
    }
}
