//! `faults_high`: memory is touched for the first time at a high rate, for long.

use drainprof_report::units;

use crate::trigger::{
    Config, Rule, Signals, Time,
    rule::{Condition, Watch, settings},
    signals::finite,
};

pub(super) const RULE: Rule = Rule {
    name: "faults_high",
    what: "more than 1,000 page faults per second, sustained",
    advice: "memory is given back and taken again, or grows: the window's report shows which call paths fault",
    memory: true,
    shared: false,
    settings: |config| &config.faults_high,
    start: || Box::new(Faults),
};

settings! {
    /// Settings of `faults_high`.
    FaultsHigh { window: true, hold: Time::minutes(1),
        /// It holds above so many page faults per second.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        above: f64 = 1000.0,
        /// It ends below so many.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        back: f64 = 500.0,
    }
    order: back <= above
}

#[derive(Debug)]
struct Faults;

impl Watch for Faults {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.faults_high;
        let Some(faults) = finite(signals.faults_per_second) else { return Condition::Unknown };
        Condition::above(faults, config.above, config.back, || {
            format!(
                "{} page faults; the threshold is {}",
                units::rate(faults),
                units::rate(config.above)
            )
        })
    }
}
