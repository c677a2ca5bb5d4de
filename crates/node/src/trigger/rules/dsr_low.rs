//! `dsr_low`: closes leave granules behind more often than anybody should accept.

use drainprof_report::{
    units,
    values::{Share, Time},
};

use crate::trigger::{
    per_profile::PerProfile,
    recent::Recent,
    rule::{Condition, Rule, settings},
    signals::{Closes, Signals},
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

impl Rule for DsrLow {
    type Past = PerProfile<Recent<Closes>>;
    const MEMORY: bool = false;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let conditions = past.each(&signals.profiles, |recent, profile| {
            let Some(closes) = window(recent, signals.at, profile.closes, self.over) else {
                return Condition::Unknown;
            };
            let (Some(dsr), decided) = (closes.dsr(), closes.decided()) else {
                return Condition::Unknown;
            };
            if decided < self.min_closes {
                return Condition::Unknown;
            }
            // What is watched for less has no five minutes yet.
            let seen = recent.span().min(self.over.as_seconds());
            let message = || {
                format!(
                    "{}: DSR {} over the last {}, {} of {decided} decided closes left a granule behind; \
                     the threshold is {}",
                    profile.profile,
                    units::dsr(Some(dsr)),
                    units::duration(seen),
                    closes.pinned,
                    self.below.0
                )
            };
            if upper_bound(dsr, decided) < self.below.0 {
                Condition::Beyond(message())
            } else if dsr < self.back.0 {
                Condition::Between(message())
            } else {
                Condition::Clear
            }
        });
        Condition::worst(conditions)
    }
}

/// The closes of the last `over`; a count that falls is that of another process, or of probes placed again.
pub(super) fn window(
    recent: &mut Recent<Closes>,
    at: f64,
    closes: Option<Closes>,
    over: Time,
) -> Option<Closes> {
    let Some(closes) = closes else {
        recent.clear();
        return None;
    };
    let fell = |last: Closes| closes.drainable < last.drainable || closes.pinned < last.pinned;
    if recent.last().is_some_and(fell) {
        recent.clear();
    }
    recent.push(at, closes, over.as_seconds());
    let first = recent.first(0.0)?;
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
