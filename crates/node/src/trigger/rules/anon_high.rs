//! `anon_high`: nearly all resident memory is anonymous: heap, not files.

use drainprof_report::units;

use crate::trigger::{
    Bytes, Config, Rule, Share, Signals, Time,
    rule::{Condition, Watch, settings},
};

pub(super) const RULE: Rule = Rule {
    name: "anon_high",
    what: "anonymous memory is most of what is resident: the kernel cannot drop it under pressure",
    advice: "normal for a cache or a database; together with `rss_high` or `retention_slope`, the heap is where to look",
    memory: true,
    shared: false,
    settings: |config| &config.anon_high,
    start: || Box::new(Anon),
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
        /// Processes with less resident memory are not looked at.
        min_rss: Bytes = Bytes(256 << 20),
    }
    order: back <= above
}

#[derive(Debug)]
struct Anon;

impl Watch for Anon {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.anon_high;
        let Some(memory) = signals.memory else { return Condition::Unknown };
        if memory.rss_bytes < config.min_rss.0.max(1) {
            return Condition::Clear;
        }
        let share = memory.anon_bytes as f64 / memory.rss_bytes as f64;
        Condition::above(share, config.above.0, config.back.0, || {
            format!(
                "{} of {} resident memory is anonymous, {}; the threshold is {}",
                units::bytes(memory.anon_bytes),
                units::bytes(memory.rss_bytes),
                units::percent(share),
                config.above
            )
        })
    }
}
