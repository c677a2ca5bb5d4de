//! The memory of a process in a report: its first and last reading, and what lies in between.

use drainprof_process::memory::MemoryReading;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

mod trend;

use crate::{series::MemorySeries, units};
pub use trend::{
    MIN_CONFIDENCE, MIN_GROWTH_BYTES, MIN_POINTS, MIN_SECONDS, MemoryTrend, MemoryVerdict,
};

/// The memory of a process over the time that it was watched. How it is judged is explained in `docs/memory.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Memory {
    /// How often it was read.
    #[schemars(range(min = 1))]
    pub readings: u64,
    /// The time between the first and the last reading.
    pub seconds: f64,
    /// The first reading.
    pub first: MemoryReading,
    /// The last.
    pub last: MemoryReading,
    /// Growth of resident memory per second, bytes; null where too little was seen, as all that follows up to the verdict.
    pub slope_bytes_per_second: Option<f64>,
    /// Its 95 % confidence interval.
    pub slope_interval: Option<[f64; 2]>,
    /// The share of the variance that the slope explains; null also where nothing varies.
    pub r_squared: Option<f64>,
    /// Growth of the floor per second, bytes: of the lowest resident memory of each ninth of the time.
    pub floor_slope_bytes_per_second: Option<f64>,
    /// Its 95 % confidence interval.
    pub floor_slope_interval: Option<[f64; 2]>,
    /// Growth of anonymous memory per second, bytes, swapped-out memory included.
    pub anon_slope_bytes_per_second: Option<f64>,
    /// Its 95 % confidence interval.
    pub anon_slope_interval: Option<[f64; 2]>,
    /// How sure it is that resident memory or its floor grows, or shrinks, at all, from 0 to 1.
    pub confidence: Option<f64>,
    /// When the first limit of its control groups is reached at the present slope, seconds after the last reading; null
    /// without a limit or growth.
    pub seconds_to_limit: Option<f64>,
    /// What the time series looks like.
    pub verdict: MemoryVerdict,
    /// Why, in a sentence with numbers.
    pub verdict_reason: String,
}

impl Memory {
    /// What a series says; `None` where there is no reading.
    #[must_use]
    pub fn of(series: &MemorySeries) -> Option<Self> {
        let (from, first) = series.first()?;
        let (to, last) = series.newest()?;
        let trend = MemoryTrend::of(series);
        let reported = trend.as_ref();
        let seconds = to - from;
        Some(Self {
            readings: series.readings(),
            seconds,
            first: *first,
            last: *last,
            slope_bytes_per_second: reported.map(|trend| trend.slope_bytes_per_second),
            slope_interval: reported.map(|trend| trend.slope_interval),
            r_squared: reported.and_then(|trend| trend.r_squared),
            floor_slope_bytes_per_second: reported.map(|trend| trend.floor_slope_bytes_per_second),
            floor_slope_interval: reported.map(|trend| trend.floor_slope_interval),
            anon_slope_bytes_per_second: reported.map(|trend| trend.anon_slope_bytes_per_second),
            anon_slope_interval: reported.map(|trend| trend.anon_slope_interval),
            confidence: reported.map(|trend| trend.confidence),
            seconds_to_limit: reported.and_then(|trend| trend.seconds_to_limit),
            verdict: reported.map_or(MemoryVerdict::TooLittle, |trend| trend.verdict),
            verdict_reason: match reported {
                Some(trend) => reason(trend),
                None => format!(
                    "read {} times in {}; at least {MIN_POINTS} times in {} are needed, without a gap",
                    series.readings(),
                    units::duration(seconds),
                    units::duration(MIN_SECONDS)
                ),
            },
        })
    }
}

fn reason(trend: &MemoryTrend) -> String {
    let over = units::duration(trend.seconds);
    let sure = || {
        // What is nearly sure is not rounded up to what is.
        let percent = (trend.confidence * 1_000.0).floor() / 10.0;
        format!("{percent:.1} % sure")
    };
    let slope = units::byte_rate(trend.slope_bytes_per_second);
    let [low, high] = trend.slope_interval.map(units::byte_rate);
    let line = match trend.r_squared {
        Some(r_squared) => format!("{slope} (95 %: {low} to {high}, R² {r_squared:.3})"),
        None => slope,
    };
    let floor = units::byte_rate(trend.floor_slope_bytes_per_second);
    match trend.verdict {
        MemoryVerdict::Growing => format!(
            "{line}, its floor {floor}, over {over}, {}; what takes longer than that to come back looks the same",
            sure()
        ),
        MemoryVerdict::Shrinking => format!("{line}, its floor {floor}, over {over}, {}", sure()),
        MemoryVerdict::Settling => {
            format!("{line} over {over}, but less and less, or not in its floor ({floor})")
        }
        MemoryVerdict::Steady if trend.confidence >= MIN_CONFIDENCE => format!(
            "{line} over {over}, less than the {} by which readings can be off",
            units::bytes(MIN_GROWTH_BYTES)
        ),
        MemoryVerdict::Steady | MemoryVerdict::TooLittle => {
            format!("no growth beyond its ups and downs over {over}: {line}")
        }
    }
}
