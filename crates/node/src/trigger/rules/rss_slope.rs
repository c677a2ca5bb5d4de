//! `rss_slope`: resident memory grows, and goes on growing.
//!
//! The rate is the lower end of its confidence interval, so noise and saw-teeth do not count. A start that becomes
//! slower, a step, and a cache that fills are `settling` in the trend, not `growing`; and what has not grown lately has
//! ended. Growth of files that the kernel can drop, and of shared buffers that a process visits one by one, is no growth
//! of its own: half of it must be anonymous.

use drainprof_report::{
    memory::MemoryVerdict,
    units,
    values::{Bytes, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `rss_slope`.
    RssSlope { window: true, hold: Time::minutes(5),
        /// It holds if resident memory grows by more than this per second.
        above: Bytes = Bytes(64 << 10),
        /// It ends if it grows by less than this per second.
        back: Bytes = Bytes(32 << 10),
        /// How far back the slope reaches.
        #[schemars(extend("x-range" = ["1m", "1d"]))]
        over: Time = Time::minutes(30),
    }
    order: back <= above
}

/// The share of the growth that must be anonymous memory.
const ANONYMOUS: f64 = 0.5;
/// The share of the sure growth that there must be in the last quarter of the time.
const LATELY: f64 = 0.5;

impl Rule for RssSlope {
    type Past = ();

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let Some(trend) = &signals.trend else { return Condition::Unknown };
        let (slope, anon, sure) =
            (trend.slope_bytes_per_second, trend.anon_slope_bytes_per_second, trend.sure_slope());
        if ![slope, anon, sure].iter().all(|number| number.is_finite()) {
            return Condition::Unknown;
        }
        let goes_on = trend.newest_slope_bytes_per_second >= LATELY * sure;
        if trend.verdict != MemoryVerdict::Growing || anon < ANONYMOUS * slope || !goes_on {
            return Condition::Clear;
        }
        Condition::above(sure, self.above.0 as f64, self.back.0 as f64, || {
            let [low, high] = trend.slope_interval.map(units::byte_rate);
            let fit = trend.r_squared.map_or_else(String::new, |fit| format!(", R² {fit:.3}"));
            let now = signals.memory.map_or_else(String::new, |memory| {
                format!("; {} are resident now", units::bytes(memory.rss_bytes))
            });
            format!(
                "resident memory grows by {} (95 %: {low} to {high}{fit}) over {}, {} of that anonymous{now}; \
                 the threshold is {}",
                units::byte_rate(slope),
                units::duration(trend.seconds),
                units::byte_rate(anon),
                units::byte_rate(self.above.0 as f64)
            )
        })
    }
}
