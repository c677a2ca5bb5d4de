//! `pressure_high`: tasks wait for memory. Of the control group, so it fires in the processes of the group that stalls.

use drainprof_report::{
    units,
    values::{Share, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::{Signals, finite},
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

impl Rule for PressureHigh {
    type Past = ();
    const SHARED: bool = true;

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let Some(pressure) = signals.pressure else { return Condition::Unknown };
        let Some(share) = finite(Some(pressure.some.avg10)) else { return Condition::Unknown };
        Condition::above(share, self.above.0, self.back.0, || {
            format!(
                "tasks of this control group waited for memory {} of the last 10 seconds, {} of the last minute; \
                 the threshold is {}",
                units::percent(share),
                units::percent(pressure.some.avg60),
                self.above
            )
        })
    }
}
