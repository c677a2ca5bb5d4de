//! `limit_near`: the control group will be full within hours, and the kernel will kill a process.

use drainprof_report::{units, values::Time};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::{Signals, finite},
};

settings! {
    /// Settings of `limit_near`.
    LimitNear { window: true, hold: Time::minutes(5),
        /// It holds if the limit is nearer than this.
        #[schemars(extend("x-range" = ["10s", "365d"]))]
        within: Time = Time::hours(6),
        /// It ends if it is farther than this.
        back: Time = Time::hours(9),
    }
    order: within <= back
}

impl Rule for LimitNear {
    type Past = ();

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let memory = signals.memory;
        let trend = signals.trend.as_ref();
        let seconds = match (trend.and_then(|trend| trend.seconds_to_limit), memory) {
            (Some(seconds), _) if seconds.is_nan() || seconds < 0.0 => return Condition::Unknown,
            // Infinite is an answer: never.
            (Some(seconds), _) => seconds,
            // With memory known, no time to the limit says that there is no limit, or no growth.
            (None, Some(_)) => return Condition::Clear,
            (None, None) => return Condition::Unknown,
        };
        if seconds > self.back.as_seconds() {
            return Condition::Clear;
        }
        let used =
            memory.and_then(|memory| Some((memory.cgroup_bytes?, memory.cgroup_limit_bytes?)));
        let used = used.map_or_else(String::new, |(bytes, limit)| {
            format!(", {} of {} are used", units::bytes(bytes), units::bytes(limit))
        });
        let slope = finite(trend.map(|trend| trend.slope_bytes_per_second));
        let slope = slope.map_or_else(String::new, |slope| {
            format!(", resident memory grows by {}", units::byte_rate(slope))
        });
        let message = format!(
            "the control group's memory limit is reached in {} at the present growth{used}{slope}",
            units::duration(seconds)
        );
        if seconds < self.within.as_seconds() {
            Condition::Beyond(message)
        } else {
            Condition::Between(message)
        }
    }
}
