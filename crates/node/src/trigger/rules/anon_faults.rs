//! `anon_faults`: nearly every page fault brings anonymous memory that stays.
//!
//! The kernel reports neither. But a fault without huge pages brings one page, so the growth of anonymous memory, in pages,
//! is the number of such faults less what was given back meanwhile: the share is at least that. Where memory grows by
//! more pages than there were faults, huge pages or populated mappings were at work, and the share is not known.

use drainprof_common::growth::PAGE;
use drainprof_report::{
    units,
    values::{Share, Time},
};

use crate::trigger::{
    recent::Recent,
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `anon_faults`.
    AnonFaults { window: false, hold: Time::minutes(5),
        /// It holds above this share of page faults.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        above: Share = Share(0.80),
        /// It ends below this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.60),
        /// Over how long faults are counted.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        over: Time = Time::minutes(5),
        /// Faults in that time, below which nothing is said.
        #[schemars(extend("x-range" = [1, 1_000_000_000]))]
        min_faults: u64 = 5_000,
    }
    order: back <= above
}

impl Rule for AnonFaults {
    type Past = Recent<[u64; 2]>;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let Some(memory) = signals.memory else {
            past.clear();
            return Condition::Unknown;
        };
        let now = [
            memory.minor_faults.saturating_add(memory.major_faults),
            memory.anon_bytes.saturating_add(memory.swap_bytes),
        ];
        // Another program in the same process begins again.
        if past.last().is_some_and(|last| now[0] < last[0]) {
            past.clear();
        }
        let over = self.over.as_seconds();
        past.push(signals.at, now, over);
        let Some(first) = past.first(over * 0.9) else { return Condition::Unknown };
        let faults = now[0] - first[0];
        let grown = now[1].saturating_sub(first[1]);
        if faults < self.min_faults.max(1) {
            return Condition::Clear;
        }
        let share = (grown / PAGE) as f64 / faults as f64;
        if share > 1.0 {
            return Condition::Unknown;
        }
        Condition::above(share, self.above.0, self.back.0, || {
            format!(
                "at least {} of {faults} page faults in the last {} brought anonymous memory that stays, {}; \
                 the threshold is {}",
                units::percent(share),
                self.over,
                units::bytes(grown),
                self.above
            )
        })
    }
}
