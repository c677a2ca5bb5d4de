//! `observed_low`: the governor leaves a process unobserved most of the time, because it costs too much.

use drainprof_report::units;

use crate::trigger::{
    Config, Rule, Share, Signals, Time,
    rule::{Condition, Watch, settings},
    signals::finite,
};

pub(super) const RULE: Rule = Rule {
    name: "observed_low",
    what: "probes cost so much that the process is observed in parts of the time only",
    advice: "what is counted is of these parts, and its rates stand for all; `drainprof why` shows more within a budget of its own, a higher `governor.budget` observes more",
    memory: false,
    shared: false,
    settings: |config| &config.observed_low,
    start: || Box::new(Low),
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

#[derive(Debug)]
struct Low;

impl Watch for Low {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.observed_low;
        let Some(share) = finite(signals.observed) else { return Condition::Unknown };
        // The thresholds of `above`, turned around.
        Condition::above(-share, -config.below.0, -config.back.0, || {
            format!(
                "it was observed {} of the last ten minutes, since its probes cost more than the governor's budget; \
                 the threshold is {}",
                units::percent(share),
                config.below
            )
        })
    }
}
