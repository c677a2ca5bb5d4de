//! The governor: keeps the cost of probes for a process within its budget, by the level of the probes.
//!
//! Pure: no I/O and no clock. The daemon gives a [`Governor`] per process the cost of its probes, once per cycle,
//! and takes the [`Step`] that it answers. It is an account: the budget comes in, the cost goes out, and
//! what is saved is bounded. Overdrawn, and still too expensive, means one level down; so the mean cost is bounded,
//! and a short burst costs no level. Up again it goes only when the account has recovered, the level is
//! expected to be cheap enough, and the time since it was too expensive has passed, which doubles with each
//! failure: so it cannot oscillate, whatever the load does. Where even the cheapest level is too expensive, it is left out
//! until the account has recovered: so much of the time is observed as the budget has room for.
//! `docs/triggers.md` has the figures.
//!
//! It does not know windows, rules, or the kill switch.

mod config;

pub use config::Config;
use drainprof_observe::Account;
use drainprof_profile::Level;
use drainprof_report::units;

/// What is known of a process at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading<'a> {
    /// When, in seconds on a monotonic clock.
    pub at: f64,
    /// The level since the last reading; `None`: no probe is in the process.
    pub level: Option<Level>,
    /// The level that is wanted: the configured one, or a window's.
    pub wanted: Option<Level>,
    /// The levels that the profile offers.
    pub possible: &'a [Level],
    /// Hits of its probes per second since the last reading.
    pub hits_per_second: f64,
    /// What they cost the process since the last reading: seconds of CPU time per second.
    pub cost_ratio: f64,
}

/// A change of level, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The level now.
    pub from: Option<Level>,
    /// The level that it should be; `None`: none, until the account has recovered.
    pub to: Option<Level>,
    /// Why, in one sentence.
    pub why: String,
}

/// The account of one process.
#[derive(Clone, Debug, Default)]
pub struct Governor {
    /// Seconds of CPU time.
    account: Account,
    last: Option<Last>,
    /// Cost ratio at the present level, smoothed.
    ratio: f64,
    /// Since when at the present level.
    since: f64,
    /// When it last asked to go up.
    raised: Option<f64>,
    known: [Known; Level::ALL.len()],
}

#[derive(Clone, Copy, Debug)]
struct Last {
    at: f64,
    level: Option<Level>,
}

/// What is known of a level.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// What it cost when it was in force last, and when that was.
    cost: Option<(f64, f64)>,
    /// Since when it is held.
    held: Option<f64>,
    /// When it was too expensive.
    fell: Option<f64>,
    /// How often in a row it was too expensive soon.
    failures: u32,
    /// The level below, and what that cost just after the fall: shows how the load has changed since.
    below: Option<(Level, f64)>,
}

/// Costs are smoothed over this time, seconds.
const SMOOTHING_SECONDS: f64 = 30.0;
/// More than this much of the budget cannot be owed, seconds: a single wrong reading must not detach for days.
const MAX_DEBT_SECONDS: f64 = 1800.0;
/// A reading stands for no longer than this, seconds.
const MAX_READING_SECONDS: f64 = 300.0;
/// A level that was held so long was no failure, seconds.
const PROVEN_AFTER_SECONDS: f64 = 1800.0;
/// What was measured is believed for so long, seconds.
const COST_VALID_SECONDS: f64 = 7200.0;
/// Part of the burst that must be saved before going up.
const RECOVERED_SHARE_OF_BURST: f64 = 0.5;

impl Governor {
    /// The account of a process that nothing is known of.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides once what to change. A reading that is not finite, or not later than the last one, is passed over.
    pub fn decide(&mut self, config: &Config, reading: &Reading<'_>) -> Option<Step> {
        let (at, level) = (reading.at, reading.level);
        let ratio = if level.is_some() { reading.cost_ratio } else { 0.0 };
        let sane = at.is_finite() && ratio.is_finite() && ratio >= 0.0;
        if !sane || self.last.is_some_and(|last| at <= last.at) {
            return None;
        }
        let budget = config.budget.0;
        let burst = budget * config.burst.as_seconds();
        let Some(last) = self.last.replace(Last { at, level }) else {
            self.account = Account::holding(burst);
            self.enter(at, level, ratio);
            return None;
        };
        let seconds = (at - last.at).min(MAX_READING_SECONDS);
        self.account.earn((budget - ratio) * seconds, burst, budget * MAX_DEBT_SECONDS);
        if last.level == level {
            self.ratio += (1.0 - (-seconds / SMOOTHING_SECONDS).exp()) * (ratio - self.ratio);
        } else {
            self.enter(at, level, ratio);
        }
        self.learn(at, level);
        if !config.enabled {
            return None;
        }
        match level {
            Some(level) if self.account.balance() < 0.0 && self.ratio > budget => {
                Some(self.down(config, reading, level))
            }
            _ => self.up(config, reading),
        }
    }

    /// Another level than before, for whatever reason.
    fn enter(&mut self, at: f64, level: Option<Level>, ratio: f64) {
        (self.since, self.ratio) = (at, ratio);
        for (known, each) in self.known.iter_mut().zip(Level::ALL) {
            known.held = (level >= Some(each)).then(|| known.held.unwrap_or(at));
        }
    }

    fn learn(&mut self, at: f64, level: Option<Level>) {
        let Some(level) = level else { return };
        self.known[level as usize].cost = Some((self.ratio, at));
        let settled = at - self.since >= SMOOTHING_SECONDS;
        for (known, each) in self.known.iter_mut().zip(Level::ALL) {
            // Later, the load may be another one.
            let just_fell = known.fell.is_some_and(|fell| at - fell < 3.0 * SMOOTHING_SECONDS);
            if each > level && settled && just_fell && known.below.is_none() {
                known.below = Some((level, self.ratio));
            }
        }
    }

    fn down(&mut self, config: &Config, reading: &Reading<'_>, level: Level) -> Step {
        let at = reading.at;
        let budget = config.budget.0;
        let since = self.since;
        let is_cheapest = reading.possible.iter().all(|possible| *possible >= level);
        let known = &mut self.known[level as usize];
        // Asked again because the last step was not done: no second failure.
        if known.fell.is_none_or(|fell| fell < since) {
            let soon = known.held.is_some_and(|held| at - held < PROVEN_AFTER_SECONDS);
            known.failures = match known.fell {
                Some(_) if soon && !is_cheapest => known.failures.saturating_add(1),
                _ => 0,
            };
            known.fell = Some(at);
            known.below = None;
        }
        let wait = wait(config, known.failures);
        let over_budget = |lower: &Level| {
            let cost = self.known[*lower as usize].cost;
            cost.is_some_and(|(cost, then)| cost > budget && at - then < COST_VALID_SECONDS)
        };
        let lower = reading.possible.iter().copied().filter(|lower| *lower < level);
        let to = lower.filter(|lower| !over_budget(lower)).max();
        let pause = config.pause.as_seconds().max(self.missing(config) / budget);
        let (then, next) = match to {
            Some(to) => (
                format!("down to {}", to.name()),
                format!("{} is tried again in {}", level.name(), units::duration(wait)),
            ),
            None => {
                ("paused".to_owned(), format!("it is observed again in {}", units::duration(pause)))
            }
        };
        let why = format!(
            "level {} costs {} of one CPU ({} hits), the budget is {} and used up: {then}; {next} at the earliest",
            level.name(),
            units::percent(self.ratio),
            units::rate(reading.hits_per_second),
            config.budget,
        );
        Step { from: Some(level), to, why }
    }

    fn up(&mut self, config: &Config, reading: &Reading<'_>) -> Option<Step> {
        let (at, from) = (reading.at, reading.level);
        let wanted = reading.wanted?;
        let higher = reading.possible.iter().copied();
        let to = higher.filter(|to| Some(*to) > from && *to <= wanted).min()?;
        let dwell = if from.is_none() { config.pause } else { config.dwell }.as_seconds();
        let rested =
            at - self.since >= dwell && self.raised.is_none_or(|raised| at - raised >= dwell);
        if !rested || !self.recovered(config) {
            return None;
        }
        if from.is_none() {
            self.raised = Some(at);
            let why =
                format!("{} again, until the budget of {} is used up", to.name(), config.budget);
            return Some(Step { from, to: Some(to), why });
        }
        let known = self.known[to as usize];
        let most = config.headroom.0 * config.budget.0;
        if known.fell.is_some_and(|fell| at - fell < wait(config, known.failures)) {
            return None;
        }
        let expected = self.expected(at, from, &known);
        if expected.is_some_and(|expected| expected > most) {
            return None;
        }
        self.raised = Some(at);
        let because = match (expected, known.fell) {
            (Some(expected), _) => {
                format!("it is expected to cost {} of one CPU", units::percent(expected))
            }
            (None, Some(fell)) => {
                format!(
                    "it was too expensive {} ago, and is tried again",
                    units::duration(at - fell)
                )
            }
            (None, None) => "its cost is not known yet".to_owned(),
        };
        let why = format!("up to {}: {because}; the budget is {}", to.name(), config.budget);
        Some(Step { from, to: Some(to), why })
    }

    /// What a level would cost now: what it cost, times how much more the level below costs now than it did then. `None`: not known.
    fn expected(&self, at: f64, from: Option<Level>, known: &Known) -> Option<f64> {
        let ((cost, then), (below, cost_below)) = (known.cost?, known.below?);
        let comparable = Some(below) == from && at - then < COST_VALID_SECONDS && cost_below > 0.0;
        comparable.then(|| cost * self.ratio / cost_below)
    }

    fn missing(&self, config: &Config) -> f64 {
        RECOVERED_SHARE_OF_BURST * config.budget.0 * config.burst.as_seconds()
            - self.account.balance()
    }

    fn recovered(&self, config: &Config) -> bool {
        self.missing(config) <= 0.0
    }
}

/// How long a level is left alone after it was too expensive, seconds.
fn wait(config: &Config, failures: u32) -> f64 {
    let factor = f64::from(2_u32.saturating_pow(failures.min(31)));
    (config.retry.as_seconds() * factor).min(config.retry_longest.as_seconds())
}

#[cfg(test)]
mod tests;
