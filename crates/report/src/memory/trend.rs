//! What a process's memory over time means: a slope, how sure it is, and a verdict.
//!
//! Pure: times and values in, numbers and a sentence out. The rules are explained in `docs/memory.md`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    fit::{self, Changes},
    series::{MemorySeries, Values},
};

/// Seconds that a series must span.
pub const MIN_SECONDS: f64 = 20.0;
/// Points that there must be.
pub const MIN_POINTS: usize = 20;
/// Growth that is less than this is none: the kernel itself reports resident memory only to within some dozens of pages
/// per thread or CPU.
pub const MIN_GROWTH_BYTES: u64 = 1 << 20;
/// How sure growth must be for the verdict. Many processes are judged again and again, so this is more than the 95 % of
/// the intervals.
pub const MIN_CONFIDENCE: f64 = 0.99;
/// Growth that continues: the later half's is at least this share of the earlier half's.
const STEADY: f64 = 0.5;

/// What the time series looks like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemoryVerdict {
    /// Too short, too few readings, or a gap in them.
    #[default]
    TooLittle,
    /// It grows without an end in sight.
    Growing,
    /// No growth that stands out from its ups and downs.
    Steady,
    /// It grew or shrank, but less and less: what a start or a cache that fills looks like.
    Settling,
    /// It shrinks without an end in sight.
    Shrinking,
}

/// The trend of a process's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryTrend {
    /// The time that it was taken from.
    pub seconds: f64,
    /// Growth of resident memory per second, bytes: the line of least squares.
    pub slope_bytes_per_second: f64,
    /// The 95 % confidence interval of the growth of resident memory; it holds the slope.
    pub slope_interval: [f64; 2],
    /// The share of the variance of resident memory that the line explains, readings that were joined counting as their
    /// mean; null where nothing varies.
    pub r_squared: Option<f64>,
    /// Growth of the floor per second, bytes: of the lowest resident memory of each ninth of the time. What goes and
    /// comes again is not in it.
    pub floor_slope_bytes_per_second: f64,
    /// Its 95 % confidence interval.
    pub floor_slope_interval: [f64; 2],
    /// Growth in the last quarter of the time, bytes per second, of what shows growth more surely: of all values, or of
    /// the floor. A start that has ended no longer grows, whatever the slope over all of the time.
    pub newest_slope_bytes_per_second: f64,
    /// Growth of anonymous memory per second, bytes, swapped-out memory included.
    pub anon_slope_bytes_per_second: f64,
    /// Its 95 % confidence interval.
    pub anon_slope_interval: [f64; 2],
    /// The verdict on resident memory.
    pub verdict: MemoryVerdict,
    /// How sure it is that resident memory, or its floor, grows (or shrinks) at all, from 0 to 1: 1 − p of a two-sided t
    /// test, the larger of both.
    pub confidence: f64,
    /// When the first limit of its control group, or of one above it, is reached at the present slope, seconds from the
    /// last reading; null without a limit or without growth.
    pub seconds_to_limit: Option<f64>,
}

/// One of two ways to examine resident memory.
#[derive(Clone, Copy)]
struct View {
    changes: Changes,
    mean: f64,
    confidence: f64,
}

impl View {
    fn of(changes: Changes) -> Self {
        let (mean, confidence) = changes.confidence();
        Self { changes, mean, confidence }
    }

    /// What it shows by itself.
    fn judge(self, seconds: f64) -> MemoryVerdict {
        let matters = self.mean.abs() * seconds >= MIN_GROWTH_BYTES as f64;
        if !matters || self.confidence < MIN_CONFIDENCE {
            return MemoryVerdict::Steady;
        }
        let [early, late] = self.changes.halves().map(|half| half * self.mean.signum());
        match late > 0.0 && late >= STEADY * early {
            false => MemoryVerdict::Settling,
            true if self.mean > 0.0 => MemoryVerdict::Growing,
            true => MemoryVerdict::Shrinking,
        }
    }
}

impl MemoryTrend {
    /// Growth per second that is sure: the lower end of an interval that shows it, of all values or of the floor.
    #[must_use]
    pub fn sure_slope(&self) -> f64 {
        self.slope_interval[0].max(self.floor_slope_interval[0])
    }

    /// The trend of a series; `None` where there is too little of it to say anything.
    #[must_use]
    pub fn of(series: &MemorySeries) -> Option<Self> {
        let Values { rss, floor, anon } = &series.values();
        let room = series.newest().and_then(|(_, reading)| reading.cgroup_room_bytes);
        let (first, last) = (rss.first()?.0, rss.last()?.0);
        let seconds = last - first;
        // What is asked for as 20 s is read a moment after it begins and before it ends.
        if seconds.round() < MIN_SECONDS || rss.len() < MIN_POINTS {
            return None;
        }
        let line = fit::line(rss)?;
        let anon_slope = fit::line(anon)?.slope;
        let whole = View::of(Changes::of(rss)?);
        let floor = View::of(Changes::of_floor(floor)?);
        let verdict = judge([whole, floor].map(|view| view.judge(seconds)));
        // Where the ups and downs hide it, the line through all values is not what grows.
        let (slope, surer) = if whole.confidence >= MIN_CONFIDENCE {
            (line.slope, whole)
        } else {
            (floor.mean, floor)
        };
        let seconds_to_limit = room
            .filter(|_| verdict == MemoryVerdict::Growing && slope > 0.0)
            .map(|room| room as f64 / slope);
        Some(Self {
            seconds,
            slope_bytes_per_second: line.slope,
            slope_interval: around(line.slope, whole.changes.wide_interval()),
            r_squared: line.r_squared,
            floor_slope_bytes_per_second: floor.mean,
            floor_slope_interval: floor.changes.wide_interval(),
            newest_slope_bytes_per_second: surer.changes.newest(),
            anon_slope_bytes_per_second: anon_slope,
            anon_slope_interval: around(anon_slope, Changes::of(anon)?.wide_interval()),
            verdict,
            confidence: whole.confidence.max(floor.confidence),
            seconds_to_limit,
        })
    }
}

/// What two views show together: one that is sure is enough, unless the other contradicts it.
fn judge([one, other]: [MemoryVerdict; 2]) -> MemoryVerdict {
    match (one, other) {
        (same, MemoryVerdict::Steady) | (MemoryVerdict::Steady, same) => same,
        (one, other) if one == other => one,
        // One continues and the other does not, or they diverge.
        _ => MemoryVerdict::Settling,
    }
}

/// Two estimates of one slope; who reads the interval expects the slope in it.
fn around(slope: f64, [low, high]: [f64; 2]) -> [f64; 2] {
    [low.min(slope), high.max(slope)]
}

#[cfg(test)]
#[path = "trend_tests.rs"]
mod tests;
