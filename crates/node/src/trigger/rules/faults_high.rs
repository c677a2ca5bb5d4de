//! `faults_high`: memory is touched for the first time at a high rate, for long.

use drainprof_report::{units, values::Time};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::{Signals, finite},
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

impl Rule for FaultsHigh {
    type Past = ();

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let Some(faults) = finite(signals.faults_per_second) else { return Condition::Unknown };
        Condition::above(faults, self.above, self.back, || {
            format!(
                "{} page faults; the threshold is {}",
                units::rate(faults),
                units::rate(self.above)
            )
        })
    }
}
