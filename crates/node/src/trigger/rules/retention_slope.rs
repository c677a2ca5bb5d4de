//! `retention_slope`: what granules hold back grows, and goes on growing.

use drainprof_report::{
    units,
    values::{Bytes, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::{MAX_PROFILES, Signals},
};

settings! {
    /// Settings of `retention_slope`.
    RetentionSlope { window: true, hold: Time::minutes(5),
        /// It holds if retained memory grows by more than this per second.
        above: Bytes = Bytes(16 << 10),
        /// It ends if it grows by less than this per second.
        back: Bytes = Bytes(8 << 10),
    }
    order: back <= above
}

impl Rule for RetentionSlope {
    type Past = ();

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let profiles = signals.profiles.iter().take(MAX_PROFILES);
        Condition::worst(profiles.map(|profile| {
            let Some(slope) = profile.retention_slope else { return Condition::Unknown };
            let [low, high] = slope.interval;
            let all = [slope.bytes_per_second, low, high];
            if !all.iter().all(|number| number.is_finite()) || low > high {
                return Condition::Unknown;
            }
            Condition::above(low, self.above.0 as f64, self.back.0 as f64, || {
                let now = profile.retained_bytes.map_or_else(String::new, |retained| {
                    format!("; {} are retained now", units::bytes(retained))
                });
                format!(
                    "{}: retained memory grows by {} (95 %: {} to {}), {} a day{now}",
                    profile.profile,
                    units::byte_rate(slope.bytes_per_second),
                    units::byte_rate(low),
                    units::byte_rate(high),
                    a_day(slope.bytes_per_second)
                )
            })
        }))
    }
}

fn a_day(bytes_per_second: f64) -> String {
    #[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
    let bytes = (bytes_per_second.max(0.0) * 86_400.0) as u64;
    units::bytes(bytes)
}
