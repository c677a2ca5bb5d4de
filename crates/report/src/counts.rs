//! What granules came to: counts that only grow, and gauges of what is held now.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    kind::Kind,
    model::allocator::{Allocator, Granules, dsr},
};

/// Opens, and closes by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Granules opened.
    pub opened: u64,
    /// Closes with no live object.
    pub drainable: u64,
    /// Closes with at least one.
    pub pinned: u64,
    /// Closes that could not be decided, and all closes of kinds that decide none.
    pub unknown: u64,
}

impl From<Granules> for Counts {
    fn from(granules: Granules) -> Self {
        let Granules { opened, drainable, pinned, closed, .. } = granules;
        Self { opened, drainable, pinned, unknown: closed.saturating_sub(granules.decided()) }
    }
}

impl Counts {
    /// Adds others.
    pub const fn add(&mut self, more: Self) {
        self.opened = self.opened.saturating_add(more.opened);
        self.drainable = self.drainable.saturating_add(more.drainable);
        self.pinned = self.pinned.saturating_add(more.pinned);
        self.unknown = self.unknown.saturating_add(more.unknown);
    }

    /// What came since `earlier`; `None` if a count has fallen.
    #[must_use]
    pub fn since(self, earlier: Self) -> Option<Self> {
        Some(Self {
            opened: self.opened.checked_sub(earlier.opened)?,
            drainable: self.drainable.checked_sub(earlier.drainable)?,
            pinned: self.pinned.checked_sub(earlier.pinned)?,
            unknown: self.unknown.checked_sub(earlier.unknown)?,
        })
    }

    /// As many for each of `times`: an estimate for all, of a sample.
    #[must_use]
    pub const fn times(self, times: u64) -> Self {
        Self {
            opened: self.opened.saturating_mul(times),
            drainable: self.drainable.saturating_mul(times),
            pinned: self.pinned.saturating_mul(times),
            unknown: self.unknown.saturating_mul(times),
        }
    }

    /// Closes of all outcomes.
    #[must_use]
    pub const fn closed(self) -> u64 {
        self.drainable.saturating_add(self.pinned).saturating_add(self.unknown)
    }

    /// drainable / (drainable + pinned); `None` without a decided close, and for kinds without verdicts.
    #[must_use]
    pub fn dsr(self, kind: Kind) -> Option<f64> {
        dsr(kind, self.drainable, self.pinned)
    }
}

/// What is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Held {
    /// Granules open now.
    pub open_now: u64,
    /// Granules retained now; null where that is not known at this level.
    pub retained_granules: Option<u64>,
    /// Their bytes; null also where the profile knows none.
    pub retained_bytes: Option<u64>,
}

impl From<&Allocator> for Held {
    fn from(allocator: &Allocator) -> Self {
        Self {
            open_now: allocator.granules.open_now,
            retained_granules: allocator.retention.granules,
            retained_bytes: allocator.retention.bytes,
        }
    }
}

impl Held {
    /// Adds what is known of another.
    pub fn add(&mut self, more: Self) {
        self.open_now = self.open_now.saturating_add(more.open_now);
        for (sum, more) in [
            (&mut self.retained_granules, more.retained_granules),
            (&mut self.retained_bytes, more.retained_bytes),
        ] {
            *sum = sum.map_or(more, |sum| Some(sum.saturating_add(more.unwrap_or_default())));
        }
    }

    /// Both together; what is not known of one is not known of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(one?.saturating_add(other?));
        Self {
            open_now: self.open_now.saturating_add(other.open_now),
            retained_granules: both(self.retained_granules, other.retained_granules),
            retained_bytes: both(self.retained_bytes, other.retained_bytes),
        }
    }

    /// As much for each of `times`: an estimate for all, of a sample.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        let all = |count: u64| count.saturating_mul(times);
        Self {
            open_now: all(self.open_now),
            retained_granules: self.retained_granules.map(all),
            retained_bytes: self.retained_bytes.map(all),
        }
    }
}
