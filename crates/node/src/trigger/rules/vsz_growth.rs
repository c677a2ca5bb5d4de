//! `vsz_growth`: address space grows faster than what is resident.

use drainprof_report::{
    units,
    values::{Bytes, Time},
};

use crate::trigger::{
    recent::Recent,
    rule::{Condition, Rule, settings},
    signals::Signals,
};

settings! {
    /// Settings of `vsz_growth`.
    VszGrowth { window: true, hold: Time::minutes(5),
        /// It holds if address space grows by more than so many times the growth of resident memory.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        ratio: f64 = 2.0,
        /// It ends below this ratio.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        back: f64 = 1.5,
        /// Over how long growth is taken.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        over: Time = Time::minutes(10),
        /// Growth of address space in that time, below which nothing is said.
        min_bytes: Bytes = Bytes(64 << 20),
    }
    order: back <= ratio
}

/// The part of the growth that must be in each half: one large mapping is no growth.
const IN_EACH_HALF: f64 = 0.25;

impl Rule for VszGrowth {
    type Past = Recent<[u64; 2]>;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let Some(memory) = signals.memory else {
            past.clear();
            return Condition::Unknown;
        };
        let over = self.over.as_seconds();
        past.push(signals.at, [memory.vsz_bytes, memory.rss_bytes], over);
        let Some([first, half, last]) = past.halves(over) else { return Condition::Unknown };
        let grown = |from: u64, to: u64| to as f64 - from as f64;
        let vsz = grown(first[0], last[0]);
        let rss = grown(first[1], last[1]);
        let in_each = grown(first[0], half[0]).min(grown(half[0], last[0]));
        if vsz < self.min_bytes.0 as f64 || in_each < IN_EACH_HALF * vsz {
            return Condition::Clear;
        }
        // Where resident memory shrinks or stays, any growth is beyond every ratio.
        let ratio = vsz / rss.max(1.0);
        Condition::above(ratio, self.ratio, self.back, || {
            format!(
                "address space grew by {} in {}, to {}; resident memory changed by {} in that time",
                signed(vsz),
                self.over,
                units::bytes(memory.vsz_bytes),
                signed(rss)
            )
        })
    }
}

fn signed(bytes: f64) -> String {
    let sign = if bytes < 0.0 { "-" } else { "" };
    #[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
    let whole = bytes.abs() as u64;
    format!("{sign}{}", units::bytes(whole))
}
