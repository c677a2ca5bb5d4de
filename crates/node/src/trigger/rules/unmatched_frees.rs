//! `unmatched_frees`: the profile misses allocations.
//!
//! After an attach, objects that are older than it are freed for a while, in the healthiest program. What
//! distinguishes a missed allocation function from them is that more goes than is seen to come, all the time: so
//! both halves of the window must have unmatched frees and a surplus of frees.

use drainprof_report::{
    units,
    values::{Share, Time},
};

use crate::trigger::{
    per_profile::PerProfile,
    recent::Recent,
    rule::{Condition, Rule, settings},
    signals::{Objects, Signals},
};

settings! {
    /// Settings of `unmatched_frees`.
    UnmatchedFrees { window: false, hold: Time::minutes(1),
        /// It holds above this share of all frees.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        above: Share = Share(0.01),
        /// It ends below this one.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.005),
        /// Over how long frees are counted.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        over: Time = Time::minutes(5),
        /// Unmatched frees in that time, below which nothing is said.
        #[schemars(extend("x-range" = [1, 1_000_000_000]))]
        min_frees: u64 = 100,
    }
    order: back <= above
}

/// The share of the unmatched frees that must be in each half of the window, and by how much more than
/// allocations frees must be, as a share of the unmatched ones.
const IN_EACH_HALF: f64 = 0.2;

impl Rule for UnmatchedFrees {
    type Past = PerProfile<Recent<Objects>>;
    const MEMORY: bool = false;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let over = self.over.as_seconds();
        let conditions = past.each(&signals.profiles, |recent, profile| {
            let Some(now) = profile.objects else {
                recent.clear();
                return Condition::Unknown;
            };
            if recent.last().is_some_and(|last| between(last, now).is_none()) {
                recent.clear();
            }
            recent.push(signals.at, now, over);
            let Some([first, half, last]) = recent.halves(over) else { return Condition::Unknown };
            let parts = (between(first, last), between(first, half), between(half, last));
            let (Some(all), Some(early), Some(late)) = parts else { return Condition::Unknown };
            if all.unmatched_frees < self.min_frees || all.frees == 0 {
                return Condition::Clear;
            }
            let in_half = IN_EACH_HALF * all.unmatched_frees as f64;
            let sick = |part: Objects| {
                part.unmatched_frees as f64 >= in_half
                    && part.frees as f64 - part.allocs as f64
                        >= IN_EACH_HALF * part.unmatched_frees as f64
            };
            if !sick(early) || !sick(late) {
                return Condition::Clear;
            }
            let share = all.unmatched_frees as f64 / all.frees as f64;
            Condition::above(share, self.above.0, self.back.0, || {
                format!(
                    "{}: {} of {} frees in the last {} ({}) are of objects whose allocation was not seen, \
                     while {} allocations were: the profile misses some",
                    profile.profile,
                    all.unmatched_frees,
                    all.frees,
                    self.over,
                    units::percent(share),
                    all.allocs
                )
            })
        });
        Condition::worst(conditions)
    }
}

/// What was counted from `first` to `last`; `None` if a count fell.
fn between(first: Objects, last: Objects) -> Option<Objects> {
    Some(Objects {
        allocs: last.allocs.checked_sub(first.allocs)?,
        frees: last.frees.checked_sub(first.frees)?,
        unmatched_frees: last.unmatched_frees.checked_sub(first.unmatched_frees)?,
    })
}
