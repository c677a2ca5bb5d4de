//! `dsr_drop`: the DSR has fallen against what is usual for this process.
//!
//! A fall from .98 to .92 says more than a steady .92: something has changed. What is usual is learned from
//! chunks of closes, and not while it is fallen: else the new state would soon be the usual one. A state
//! that lasts is adopted in the end, because a new release may well have another.

use drainprof_report::{
    units,
    values::{Share, Time},
};

use super::dsr_low::window;
use crate::trigger::{
    per_profile::PerProfile,
    recent::{Baseline, Recent},
    rule::{Condition, Rule, settings},
    signals::{Closes, Signals},
};

settings! {
    /// Settings of `dsr_drop`.
    DsrDrop { window: true, hold: Time::seconds(30),
        /// It holds if the DSR is lower than usual by more than this.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        drop: Share = Share(0.03),
        /// It ends if it is lower by less than this.
        #[schemars(extend("x-range" = ["0%", "100%"]))]
        back: Share = Share(0.015),
        /// How many standard errors the fall must be.
        #[schemars(extend("x-range" = [0.001, 1e9]))]
        sigmas: f64 = 4.0,
        /// Over how long closes are counted.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        over: Time = Time::minutes(2),
        /// Decided closes in that time, without which nothing is said.
        #[schemars(extend("x-range" = [1, 1_000_000_000]))]
        min_closes: u64 = 50,
        /// How far back the baseline reaches.
        #[schemars(extend("x-range" = ["1m", "7d"]))]
        baseline: Time = Time::hours(2),
        /// How long it is learned before anything is said.
        #[schemars(extend("x-range" = ["10s", "1d"]))]
        warm_up: Time = Time::minutes(15),
        /// After so long, the fallen state is the new baseline.
        #[schemars(extend("x-range" = ["1m", "7d"]))]
        adopt: Time = Time::hours(6),
    }
    order: back <= drop
}

/// Chunks without which a variance says nothing.
const CHUNKS_A_WINDOW: f64 = 5.0;

/// What is known of one profile.
#[derive(Debug, Default)]
pub(crate) struct Known {
    recent: Recent<Closes>,
    /// Begin of the chunk that is being counted.
    chunk: Option<(f64, Closes)>,
    baseline: Baseline,
    /// Mean size of the chunks, and the variance that chance alone gives them.
    closes: f64,
    chance: f64,
    chunks: f64,
    /// Since when it is fallen.
    fallen: Option<f64>,
}

impl Rule for DsrDrop {
    type Past = PerProfile<Known>;
    const MEMORY: bool = false;

    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition {
        let conditions = past.each(&signals.profiles, |known, profile| {
            let total = profile.closes.filter(|total| total.decided() > 0);
            if profile.closes.is_none() {
                known.chunk = None;
            }
            let recent = window(&mut known.recent, signals.at, profile.closes, self.over);
            let condition = recent
                .map_or(Condition::Unknown, |recent| known.judge(self, &profile.profile, recent));
            known.freeze(self, &condition, signals.at);
            if let Some(total) = total {
                known.learn(self, signals.at, total);
            }
            condition
        });
        Condition::worst(conditions)
    }
}

impl Known {
    fn judge(&self, config: &DsrDrop, profile: &str, recent: Closes) -> Condition {
        let (Some(dsr), decided) = (recent.dsr(), recent.decided()) else {
            return Condition::Unknown;
        };
        let learned =
            self.chunks >= CHUNKS_A_WINDOW && self.baseline.seconds >= config.warm_up.as_seconds();
        if !learned || decided < config.min_closes {
            return Condition::Unknown;
        }
        // Even a process without one pinned close may have one next.
        let seen = self.closes * self.chunks.min(config.baseline / config.over);
        let usual = (self.baseline.mean * seen + 1.0) / (seen + 2.0);
        // What chunks differ by beyond chance, they differ by now, too.
        let beyond_chance = (self.baseline.variance - self.chance).max(0.0);
        let error = (usual * (1.0 - usual) / decided as f64 + beyond_chance).sqrt();
        let fall = self.baseline.mean - dsr;
        let sigmas = fall / error;
        let message = || {
            format!(
                "{profile}: DSR {} over the last {}, usual are {} ± {:.4}: {sigmas:.1} standard errors lower, \
                 over {decided} decided closes",
                units::dsr(Some(dsr)),
                config.over,
                units::dsr(Some(self.baseline.mean)),
                self.baseline.variance.sqrt(),
            )
        };
        if fall > config.drop.0 && sigmas > config.sigmas {
            Condition::Beyond(message())
        } else if fall > config.back.0 {
            Condition::Between(message())
        } else {
            Condition::Clear
        }
    }

    /// Notes since when it is fallen; what has lasted becomes what is usual.
    fn freeze(&mut self, config: &DsrDrop, condition: &Condition, at: f64) {
        match condition {
            Condition::Unknown => {}
            Condition::Clear => self.fallen = None,
            Condition::Between(_) if self.fallen.is_none() => {}
            Condition::Between(_) | Condition::Beyond(_) => {
                let since = *self.fallen.get_or_insert(at);
                if at - since >= config.adopt.as_seconds() {
                    *self = Self { recent: std::mem::take(&mut self.recent), ..Self::default() };
                }
            }
        }
    }

    /// Adds a chunk to what is usual, once it is long and large enough.
    fn learn(&mut self, config: &DsrDrop, at: f64, total: Closes) {
        let over = config.over.as_seconds();
        let begin = self.chunk.filter(|(_, begin)| {
            begin.drainable <= total.drainable && begin.pinned <= total.pinned
        });
        let Some((since, begin)) = begin.filter(|_| self.fallen.is_none()) else {
            self.chunk = Some((at, total));
            return;
        };
        let chunk = Closes {
            drainable: total.drainable - begin.drainable,
            pinned: total.pinned - begin.pinned,
        };
        let (Some(dsr), decided) = (chunk.dsr(), chunk.decided()) else { return };
        if at - since < over || decided < config.min_closes {
            return;
        }
        self.chunk = Some((at, total));
        let baseline = config.baseline.as_seconds();
        // A chunk that took hours is one value, not hours of them.
        let seconds = (at - since).min(4.0 * over);
        self.baseline.learn(dsr, seconds, baseline);
        self.chunks += 1.0;
        let share = (1.0 - (-seconds / baseline).exp()).max(1.0 / self.chunks);
        let mean = self.baseline.mean;
        self.closes += share * (decided as f64 - self.closes);
        self.chance += share * (mean * (1.0 - mean) / decided as f64 - self.chance);
    }
}
