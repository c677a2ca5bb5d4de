//! `pressure_high`: tasks wait for memory. Of the control group, so it fires in the processes of the group that stalls.

use drainprof_report::units;

use crate::trigger::{
    Config, Rule, Share, Signals, Time,
    rule::{Condition, Watch, settings},
    signals::finite,
};

pub(super) const RULE: Rule = Rule {
    name: "pressure_high",
    what: "tasks of this control group wait for memory more than a tenth of the time",
    advice: "the group is short of memory: raise its limit, or find who grows in it (`rss_slope`, `limit_near`) or holds most",
    memory: true,
    shared: true,
    settings: |config| &config.pressure_high,
    start: || Box::new(High),
};

settings! {
    /// Settings of `pressure_high`.
    PressureHigh { window: false, hold: Time::minutes(1),
        /// It holds above this share of time in which some task of the control group waited, over 10 seconds.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        above: Share = Share(0.10),
        /// It ends below this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.05),
    }
    order: back <= above
}

#[derive(Debug)]
struct High;

impl Watch for High {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.pressure_high;
        let Some(pressure) = signals.pressure else { return Condition::Unknown };
        let Some(share) = finite(Some(pressure.some.avg10)) else { return Condition::Unknown };
        Condition::above(share, config.above.0, config.back.0, || {
            format!(
                "tasks of this control group waited for memory {} of the last 10 seconds, {} of the last minute; \
                 the threshold is {}",
                units::percent(share),
                units::percent(pressure.some.avg60),
                config.above
            )
        })
    }
}
