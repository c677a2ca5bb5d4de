//! `dsr_low`: closes leave granules behind more often than anybody should accept.

use drainprof_report::units;

use super::PerProfile;
use crate::trigger::{
    Config, Rule, Share, Signals, Time,
    course::Course,
    rule::{Condition, Watch, settings},
    signals::Closes,
};

pub(super) const RULE: Rule = Rule {
    name: "dsr_low",
    what: "the DSR of the last minutes is below a threshold, and chance does not explain it",
    advice: "open the window's report: its sites name the call paths that allocate long-lived objects in short-lived granules",
    memory: false,
    shared: false,
    settings: |config| &config.dsr_low,
    start: || Box::new(Low::default()),
};

settings! {
    /// Settings of `dsr_low`.
    DsrLow { window: true, hold: Time::seconds(30),
        /// It holds below this DSR.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        below: Share = Share(0.80),
        /// It ends at this DSR.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.85),
        /// Over how long closes are counted.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        over: Time = Time::minutes(5),
        /// Decided closes in that time, without which nothing is said.
        #[schemars(extend("x-range" = [1, 1_000_000_000]))]
        min_closes: u64 = 50,
    }
    order: below <= back
}

/// How many standard errors the rate must be below the threshold.
const SURE: f64 = 3.0;

#[derive(Debug, Default)]
struct Low {
    profiles: PerProfile<Course<Closes>>,
}

impl Watch for Low {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        let config = &config.dsr_low;
        let looks = self.profiles.each(&signals.profiles, |course, profile| {
            let Some(closes) = window(course, signals.at, profile.closes, config.over) else {
                return Condition::Unknown;
            };
            let (Some(dsr), decided) = (closes.dsr(), closes.decided()) else {
                return Condition::Unknown;
            };
            if decided < config.min_closes {
                return Condition::Unknown;
            }
            let message = || {
                format!(
                    "{}: DSR {} over the last {}, {} of {decided} decided closes left a granule behind; \
                     the threshold is {}",
                    profile.profile,
                    units::dsr(Some(dsr)),
                    config.over,
                    closes.pinned,
                    config.below.0
                )
            };
            if upper_bound(dsr, decided) < config.below.0 {
                Condition::Beyond(message())
            } else if dsr < config.back.0 {
                Condition::Between(message())
            } else {
                Condition::Clear
            }
        });
        Condition::worst(looks)
    }
}

/// The closes of the last `over`; a count that falls is that of another process, or of probes placed again.
pub(super) fn window(
    course: &mut Course<Closes>,
    at: f64,
    closes: Option<Closes>,
    over: Time,
) -> Option<Closes> {
    let Some(closes) = closes else {
        course.clear();
        return None;
    };
    let fell = |last: Closes| closes.drainable < last.drainable || closes.pinned < last.pinned;
    if course.last().is_some_and(fell) {
        course.clear();
    }
    course.push(at, closes, over.as_seconds());
    let first = course.first(0.0)?;
    Some(Closes {
        drainable: closes.drainable - first.drainable,
        pinned: closes.pinned - first.pinned,
    })
}

/// The upper end of Wilson's interval.
fn upper_bound(share: f64, of: u64) -> f64 {
    let (n, z2) = (of as f64, SURE * SURE);
    let spread = (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    (share + z2 / (2.0 * n) + SURE * spread) / (1.0 + z2 / n)
}
