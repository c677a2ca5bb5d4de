//! Thresholds of the verdicts on time series, and what a verdict is about.

use drainprof_common::spec::Kind;

use crate::fit::Line;

/// Seconds that must have been observed.
pub(super) const MIN_SECONDS: f64 = 5.0;
/// Of as much, the first and the last sample miss a little.
pub(super) const SLACK: f64 = 0.05;
/// Points of the curve that there must be.
pub(super) const MIN_POINTS: usize = 40;
/// Granules that must have been held back, and by which a curve must have grown.
pub(super) const MIN_GRANULES: f64 = 8.0;
/// The part of the time series, from its begin, by whose end those that do not stay must have gone.
pub(super) const SETTLED: f64 = 0.5;
/// The share of the granule-seconds of those that went that settling is measured by.
pub(super) const SETTLING: f64 = 0.9;
/// Growth below this share of what is held back anyway is none.
pub(super) const MIN_GROWTH: f64 = 0.05;
/// Growth that continues: the later half's is at least this share of the earlier half's.
pub(super) const STEADY: f64 = 0.5;
/// Growth that ends: the later half's is below this share of the earlier half's.
pub(super) const FLATTENED: f64 = 0.25;
/// A time series that does not grow reaches no new height: at most so many times the old one.
pub(super) const HEIGHT: f64 = 1.1;
/// From this share of granules that went on, there is a bounded part too.
pub(super) const TURNOVER: f64 = 0.05;
/// The last part of a run: what goes there went because the run ended.
pub(super) const SHUTDOWN: f64 = 0.02;
/// What may be left of what was held back, if it was freed at the end.
pub(super) const LEFT: f64 = 0.1;
/// The part of a time series that is cut off where pin delays say nothing of it, because its end made them.
pub(super) const BEGINNING: f64 = 0.25;
/// A time series that has not settled stands still if, for as long, it stays so near to its mean.
pub(super) const STILL: f64 = 0.125;
/// What was freed at the end had been there for at least this part of the run.
pub(super) const LONG: f64 = 0.1;

/// Whose granules or objects are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) kind: Kind,
    /// Those of one site; else of a whole allocator instance.
    pub(super) site: bool,
    /// Live objects; else granules.
    pub(super) objects: bool,
    /// Of pages one of so many was examined, and numbers over time are estimates; 1: all.
    pub(super) one_in: u32,
}

impl Subject {
    pub(super) const GRANULES: Self =
        Self { kind: Kind::Drain, site: false, objects: false, one_in: 1 };
}

/// The part of a time series from which slopes are taken, and what they are.
#[derive(Clone, Debug)]
pub(super) struct Fitted {
    pub(super) shape: Shape,
    /// Where the part begins and how long it is, seconds.
    pub(super) from: f64,
    pub(super) length: f64,
    pub(super) line: Line,
    pub(super) interval: [f64; 2],
    pub(super) bytes: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Growing,
    Flattening,
    Flat,
    Unclear,
}
