//! `vsz_growth`: address space grows faster than what is resident.

use drainprof_report::units;

use crate::trigger::{
    Bytes, Config, Rule, Signals, Time,
    course::Course,
    rule::{Condition, Watch, settings},
};

pub(super) const RULE: Rule = Rule {
    name: "vsz_growth",
    what: "address space grows, over minutes, twice as fast as resident memory",
    advice: "mappings are made and not given back: the window's report shows which call paths made those that stay",
    memory: true,
    shared: false,
    settings: |config| &config.vsz_growth,
    start: || Box::new(Growth::default()),
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

#[derive(Debug, Default)]
struct Growth {
    /// Address space and resident memory.
    course: Course<[u64; 2]>,
}

impl Watch for Growth {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.vsz_growth;
        let Some(memory) = signals.memory else {
            self.course.clear();
            return Condition::Unknown;
        };
        let over = config.over.as_seconds();
        self.course.push(signals.at, [memory.vsz_bytes, memory.rss_bytes], over);
        let Some([first, half, last]) = self.course.halves(over) else { return Condition::Unknown };
        let grown = |from: u64, to: u64| to as f64 - from as f64;
        let vsz = grown(first[0], last[0]);
        let rss = grown(first[1], last[1]);
        let in_each = grown(first[0], half[0]).min(grown(half[0], last[0]));
        if vsz < config.min_bytes.0 as f64 || in_each < IN_EACH_HALF * vsz {
            return Condition::Clear;
        }
        // Where resident memory shrinks or stays, any growth is beyond every ratio.
        let ratio = vsz / rss.max(1.0);
        Condition::above(ratio, config.ratio, config.back, || {
            format!(
                "address space grew by {} in {}, to {}; resident memory changed by {} in that time",
                signed(vsz),
                config.over,
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
