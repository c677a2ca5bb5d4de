//! What is known of one allocator of a process, and of its granules.

use drainprof_process::Frame;
use drainprof_profile::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    census::Census,
    constraints,
    series::{Bucket, Growth, LiveOverTime, Spread},
    site::Site,
};
use crate::kind::{self, Kind};

/// One allocator instance of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("allOf" = constraints::allocator()))]
pub struct Allocator {
    /// The profile.
    pub profile: String,
    /// The allocator's kind.
    #[serde(with = "kind")]
    #[schemars(schema_with = "kind::schema")]
    pub kind: Kind,
    /// The instance; null where the profile names none.
    pub instance: Option<String>,
    /// Whether the instance was torn down.
    pub destroyed: bool,
    /// How deep it was examined.
    pub level: Level,
    /// Why nothing can be said of its granules: no close has a verdict then. Null where something can.
    #[serde(default)]
    pub not_measurable: Option<String>,
    /// Counts of granules.
    pub granules: Granules,
    /// drainable / (drainable + pinned); null without a decided close, and for `bulk` and `slab`.
    pub dsr: Option<f64>,
    /// Sampling of pages: all other counts are then of the pages in the sample. Null without.
    #[serde(default)]
    pub sampling: Option<Sampling>,
    /// Counts of objects; null below level `objects`.
    pub objects: Option<Objects>,
    /// What pinned closes held, added up over all of them.
    pub pins: Pins,
    /// What is retained now.
    pub retention: Retention,
    /// Live objects over time, of kind `slab`; absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live_over_time: Option<LiveOverTime>,
    /// How long granules live.
    pub lifetimes: Lifetimes,
    /// The granules that have been open longest.
    pub open_granules: Vec<OpenGranule>,
    /// The retained granules that have been closed longest.
    pub pinned_granules: Vec<PinnedGranule>,
    /// Granules that outlive their peers.
    pub overdue: Overdue,
    /// How full the open granules are; null for other kinds than `slab`, and at level `boundary`.
    pub census: Option<Census>,
    /// The call paths that allocate, those that pin most first; null at other levels than `stacks`.
    #[serde(default)]
    pub sites: Option<Vec<Site>>,
    /// How many sites there are, listed or not; null at other levels than `stacks`.
    #[serde(default)]
    pub sites_total: Option<u64>,
}

impl Allocator {
    /// One of which nothing else is known.
    #[must_use]
    pub fn unknown(profile: &str, kind: Kind, level: Level) -> Self {
        Self {
            profile: profile.to_owned(),
            kind,
            instance: None,
            destroyed: false,
            level,
            not_measurable: None,
            granules: Granules::default(),
            dsr: None,
            sampling: None,
            objects: None,
            pins: Pins::default(),
            retention: Retention::default(),
            live_over_time: None,
            lifetimes: Lifetimes::default(),
            open_granules: Vec::new(),
            pinned_granules: Vec::new(),
            overdue: Overdue { granules: 0, bytes: None, rule: String::new() },
            census: None,
            sites: None,
            sites_total: None,
        }
    }
}

/// Pages are sampled, by their addresses: objects larger than a page are all counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Sampling {
    /// One of so many pages is in the sample.
    #[schemars(range(min = 2, max = 65_536))]
    pub one_in: u32,
    /// Estimates for all pages.
    pub estimated: Estimates,
}

/// Estimates for all pages, from a sample of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Estimates {
    /// Pages without a live object any more.
    pub granules_closed: u64,
    /// Objects that are live now; null below level `objects`.
    pub objects_live: Option<u64>,
    /// Their bytes; null also where the profile knows no sizes.
    pub objects_live_bytes: Option<u64>,
    /// The 95 % confidence interval of `objects_live`, low and high end.
    #[serde(default)]
    pub objects_live_interval: Option<[u64; 2]>,
    /// The same of `objects_live_bytes`.
    #[serde(default)]
    pub objects_live_bytes_interval: Option<[u64; 2]>,
}

/// Counts of granules since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Granules {
    /// Opens seen.
    pub opened: u64,
    /// Granules first seen by an alloc or a close.
    pub opened_before: u64,
    /// Closes seen.
    pub closed: u64,
    /// Closes with no live object.
    pub drainable: u64,
    /// Closes with at least one.
    pub pinned: u64,
    /// Closes that could not be decided.
    pub unknown: u64,
    /// Resets.
    pub resets: u64,
    /// Granules opened again without a close in between.
    pub reopened: u64,
    /// Granules that were open when their instance was destroyed.
    pub destroyed: u64,
    /// Granules that were open when a window of a duty cycle ended.
    #[serde(default)]
    pub left_open: u64,
    /// Granules whose close has handed their objects over; they are not in `closed`.
    #[serde(default)]
    pub migrated: u64,
    /// Granules that ended with the granule that they were nested in; they are not in `closed`.
    #[serde(default)]
    pub ended_with_parent: u64,
    /// Granules open now.
    pub open_now: u64,
    /// The most that were open at once.
    pub open_peak: u64,
}

impl Granules {
    /// Closes with a verdict.
    #[must_use]
    pub const fn decided(&self) -> u64 {
        self.drainable.saturating_add(self.pinned)
    }

    /// Their DSR; `None` without any, and for kinds without verdicts.
    #[must_use]
    pub fn dsr(&self, kind: Kind) -> Option<f64> {
        dsr(kind, self.drainable, self.pinned)
    }
}

/// drainable / (drainable + pinned); `None` without a decided close, and for other kinds than `drain`.
#[must_use]
pub fn dsr(kind: Kind, drainable: u64, pinned: u64) -> Option<f64> {
    let decided = drainable.saturating_add(pinned);
    (kind == Kind::Drain && decided > 0).then(|| drainable as f64 / decided as f64)
}

/// Counts of objects since the attach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Objects {
    /// Allocations.
    pub allocated: u64,
    /// Frees, one by one and in bulk, and objects that were replaced without a free.
    pub freed: u64,
    /// Live when a window of a duty cycle ended: their frees were not seen.
    #[serde(default)]
    pub left: u64,
    /// Live when the close of their granule handed them over; they stay live until they are freed.
    #[serde(default)]
    pub migrated: u64,
    /// Live now: those that are neither freed nor left.
    pub live: u64,
    /// Bytes allocated; null where the profile knows no sizes.
    pub allocated_bytes: Option<u64>,
    /// Bytes of those that were left.
    #[serde(default)]
    pub left_bytes: Option<u64>,
    /// Bytes of those that are live.
    pub live_bytes: Option<u64>,
}

/// What pinned closes held at their closes, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pins {
    /// Objects live at these closes.
    pub objects: u64,
    /// Bytes of these granules; null where the profile knows none.
    pub bytes: Option<u64>,
}

/// Granules that are closed, pinned and not yet drained.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Retention {
    /// How many; null below level `objects`.
    pub granules: Option<u64>,
    /// Their bytes; null also where the profile knows none.
    pub bytes: Option<u64>,
    /// Pinned granules whose last pin was freed.
    pub late_drained: Option<u64>,
    /// Granules closed and pinned that had not drained when a window of a duty cycle ended.
    #[serde(default)]
    pub left_granules: Option<u64>,
    /// Their bytes.
    #[serde(default)]
    pub left_bytes: Option<u64>,
    /// Close to late drain.
    pub pin_delay_seconds: Spread,
    /// What was held back over time: seconds on the scale of `window.seconds`, granules, bytes. Of
    /// kind `drain` granules that are retained, of the others granules that are open. Null where it is
    /// not known.
    #[serde(default)]
    pub series: Option<Vec<(f64, u64, Option<u64>)>>,
    /// Growth per second, granules; null where too little was observed.
    #[serde(default)]
    pub slope_granules_per_second: Option<f64>,
    /// Growth per second, bytes; null also where they are not known.
    #[serde(default)]
    pub slope_bytes_per_second: Option<f64>,
    /// The 95 % confidence interval of [`Retention::slope_granules_per_second`].
    #[serde(default)]
    pub slope_interval: Option<[f64; 2]>,
    /// The share of the variance of the granules that the slope explains.
    #[serde(default)]
    pub r_squared: Option<f64>,
    /// What the time series looks like; null where it is not known, or something was lost.
    #[serde(default)]
    pub verdict: Option<Growth>,
    /// Why, in a sentence with numbers.
    #[serde(default)]
    pub verdict_reason: Option<String>,
    /// Growth in a day at the present rate; null where none is foreseen, or bytes are not known.
    #[serde(default)]
    pub forecast_bytes_per_day: Option<f64>,
}

impl Retention {
    /// Whether windows have ended with pinned granules: what is retained now is more than was seen, or less.
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.left_granules.is_some_and(|left| left > 0)
    }
}

/// Open (or last reset) to close.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lifetimes {
    /// Closes whose open was seen.
    pub count: u64,
    /// Their lifetimes.
    pub seconds: Spread,
    /// Mean bytes of a closed granule; null where unknown.
    pub bytes_per_granule: Option<f64>,
    /// The same per place of opening, the busiest first.
    pub places: Vec<Place>,
    /// The distribution, empty buckets left out; counts are per bucket, not cumulative.
    pub histogram: Vec<Bucket>,
}

/// One place at which granules are opened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Place {
    /// Return address of the open call; null where unknown.
    pub place: Option<String>,
    /// What it is called.
    #[serde(flatten)]
    pub frame: Frame,
    /// Closes of granules opened there.
    pub closed: u64,
    /// Half of them lived less, in seconds.
    pub p50: Option<f64>,
    /// 99 % of them lived less, in seconds.
    pub p99: Option<f64>,
    /// Granules opened there that are open now.
    pub open_now: u64,
    /// How many of these are overdue.
    pub overdue: u64,
}

/// A granule that is open.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OpenGranule {
    /// Its id as the target has it.
    #[schemars(regex(pattern = "^0x[0-9a-f]+$"))]
    pub id: String,
    /// How often the id was used before, modulo 2²⁴.
    pub generation: u32,
    /// Since its open or last reset; null where that was before the attach.
    pub age_seconds: Option<f64>,
    /// Objects live in it; null below level `objects`, and where its open was not seen.
    pub live: Option<u64>,
    /// Their bytes; null where the profile knows no sizes.
    pub live_bytes: Option<u64>,
    /// Bytes that it retains; null where unknown.
    pub bytes: Option<u64>,
    /// Its label; null where the profile names none.
    pub label: Option<String>,
    /// Its parent's id.
    pub parent: Option<String>,
    /// Return address of the call that opened it; null where unknown.
    pub place: Option<String>,
    /// What that place is called; null where it has no name.
    pub opened_by: Option<Frame>,
    /// Whether it outlives its peers.
    pub overdue: bool,
}

/// A granule that is closed and retained by its pins.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PinnedGranule {
    /// Its id as the target has it.
    #[schemars(regex(pattern = "^0x[0-9a-f]+$"))]
    pub id: String,
    /// How often the id was used before, modulo 2²⁴.
    pub generation: u32,
    /// Since its close.
    pub closed_for_seconds: Option<f64>,
    /// Pins left.
    pub live: u64,
    /// Their bytes; null where the profile knows no sizes.
    pub live_bytes: Option<u64>,
    /// Bytes that it retains; null where unknown.
    pub bytes: Option<u64>,
    /// Its label; null where the profile names none.
    pub label: Option<String>,
    /// Its parent's id.
    pub parent: Option<String>,
    /// Return address of the call that opened it; null where unknown.
    pub place: Option<String>,
    /// What that place is called; null where it has no name.
    pub opened_by: Option<Frame>,
}

/// Granules that are open much longer than others opened at the same place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Overdue {
    /// How many.
    pub granules: u64,
    /// Their bytes; null where unknown.
    pub bytes: Option<u64>,
    /// The rule, in words.
    pub rule: String,
}
