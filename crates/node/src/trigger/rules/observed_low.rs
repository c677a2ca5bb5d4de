//! `observed_low`: the governor leaves a process unobserved most of the time, because it costs too much.

use drainprof_report::{
    units,
    values::{Share, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::{Signals, finite},
};

settings! {
    /// Settings of `observed_low`.
    ObservedLow { window: false, hold: Time::minutes(1),
        /// It holds below this share of the last ten minutes.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        below: Share = Share(0.50),
        /// It ends above this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.80),
    }
    order: below <= back
}

impl Rule for ObservedLow {
    type Past = ();
    const MEMORY: bool = false;

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let Some(share) = finite(signals.observed) else { return Condition::Unknown };
        // The thresholds of `above`, turned around.
        Condition::above(-share, -self.below.0, -self.back.0, || {
            format!(
                "it was observed {} of the last ten minutes, since its probes cost more than the governor's budget; \
                 the threshold is {}",
                units::percent(share),
                self.below
            )
        })
    }
}
