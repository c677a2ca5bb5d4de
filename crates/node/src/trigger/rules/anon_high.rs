//! `anon_high`: nearly all resident memory is anonymous: heap, not files.

use drainprof_report::{
    units,
    values::{Bytes, Share, Time},
};

use crate::trigger::{
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `anon_high`.
    AnonHigh { window: false, hold: Time::minutes(5),
        /// It holds above this share of resident memory.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        above: Share = Share(0.80),
        /// It ends below this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.75),
        /// Processes with less resident memory are ignored.
        min_rss: Bytes = Bytes(256 << 20),
    }
    order: back <= above
}

impl Rule for AnonHigh {
    type Past = ();

    fn check(&self, (): &mut (), signals: &Signals) -> Condition {
        let Some(memory) = signals.memory else { return Condition::Unknown };
        if memory.rss_bytes < self.min_rss.0.max(1) {
            return Condition::Clear;
        }
        let share = memory.anon_bytes as f64 / memory.rss_bytes as f64;
        Condition::above(share, self.above.0, self.back.0, || {
            format!(
                "{} of {} resident memory is anonymous, {}; the threshold is {}",
                units::bytes(memory.anon_bytes),
                units::bytes(memory.rss_bytes),
                units::percent(share),
                self.above
            )
        })
    }
}
