//! `rss_high`: resident memory is higher than usual.
//!
//! It finds steps, not slow growth: a straight line stays within about one standard deviation of its own
//! trailing mean. Growth is what `retention_slope` and `limit_near` condition for.

use drainprof_report::{
    units,
    values::{Bytes, Share, Time},
};

use crate::trigger::{
    recent::Baseline,
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `rss_high`.
    RssHigh { window: true, hold: Time::minutes(5),
        /// It holds above the baseline plus so many standard deviations.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        sigmas: f64 = 2.0,
        /// It ends below the baseline plus so many.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        back_sigmas: f64 = 1.0,
        /// By less than this share of the baseline it never differs.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        min_share: Share = Share(0.05),
        /// Nor by less than so much.
        min_bytes: Bytes = Bytes(16 << 20),
        /// How far back the baseline reaches.
        #[schemars(extend("x-range" = ["1m", "7d"]))]
        baseline: Time = Time::hours(1),
        /// How long it is learned before anything is said.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        warm_up: Time = Time::minutes(15),
        /// After so long, the higher state is the new baseline.
        #[schemars(extend("x-range" = ["1m", "7d"]))]
        adopt: Time = Time::hours(6),
    }
    order: back_sigmas <= sigmas
}

/// A condition after a longer gap is worth no more than this, seconds.
const GAP_SECONDS: f64 = 60.0;

#[derive(Debug, Default)]
pub(crate) struct Above {
    baseline: Baseline,
    last: Option<f64>,
    /// Since when it is high.
    high: Option<f64>,
}

impl Rule for RssHigh {
    type Past = Above;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let Some(memory) = signals.memory else { return Condition::Unknown };
        let rss = memory.rss_bytes as f64;
        let seconds = past.last.map_or(0.0, |last| (signals.at - last).clamp(0.0, GAP_SECONDS));
        past.last = Some(signals.at);
        let condition = past.judge(self, rss);
        match condition {
            Condition::Beyond(_) => {
                let since = *past.high.get_or_insert(signals.at);
                if signals.at - since >= self.adopt.as_seconds() {
                    *past = Above { last: past.last, ..Above::default() };
                }
            }
            Condition::Between(_) => {}
            Condition::Clear | Condition::Unknown => past.high = None,
        }
        if past.high.is_none() && seconds > 0.0 {
            past.baseline.learn(rss, seconds, self.baseline.as_seconds());
        }
        condition
    }
}

impl Above {
    fn judge(&self, config: &RssHigh, rss: f64) -> Condition {
        if self.baseline.seconds < config.warm_up.as_seconds() {
            return Condition::Unknown;
        }
        let (mean, deviation) = (self.baseline.mean, self.baseline.variance.sqrt());
        let least = (mean * config.min_share.0).max(config.min_bytes.0 as f64);
        let above = (config.sigmas * deviation).max(least);
        let back = (config.back_sigmas * deviation).max(least / 2.0).min(above);
        Condition::above(rss - mean, above, back, || {
            format!(
                "resident memory is {}, usual are {} ± {}: {} more; more than {} more is high",
                whole(rss),
                whole(mean),
                whole(deviation),
                whole(rss - mean),
                whole(above)
            )
        })
    }
}

fn whole(bytes: f64) -> String {
    #[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
    let bytes = bytes.max(0.0) as u64;
    units::bytes(bytes)
}
