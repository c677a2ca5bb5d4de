//! The section `[triggers]` of the configuration.

use serde::{Deserialize, Serialize};

use super::{
    AnonHigh, DsrDrop, DsrLow, FaultsHigh, LimitNear, PressureHigh, RULES, RetentionSlope, RssHigh,
    Time, UnmatchedFrees, VszGrowth, rule::wrong,
};

/// What all rules look for, and how long they wait. The defaults are documented in `docs/triggers.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// A rule that goes on firing wants another window after this time.
    pub repeat: Time,
    /// `[triggers.dsr_low]`
    pub dsr_low: DsrLow,
    /// `[triggers.dsr_drop]`
    pub dsr_drop: DsrDrop,
    /// `[triggers.retention_slope]`
    pub retention_slope: RetentionSlope,
    /// `[triggers.rss_high]`
    pub rss_high: RssHigh,
    /// `[triggers.vsz_growth]`
    pub vsz_growth: VszGrowth,
    /// `[triggers.anon_high]`
    pub anon_high: AnonHigh,
    /// `[triggers.faults_high]`
    pub faults_high: FaultsHigh,
    /// `[triggers.limit_near]`
    pub limit_near: LimitNear,
    /// `[triggers.pressure_high]`
    pub pressure_high: PressureHigh,
    /// `[triggers.unmatched_frees]`
    pub unmatched_frees: UnmatchedFrees,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            repeat: Time::hours(6),
            dsr_low: DsrLow::default(),
            dsr_drop: DsrDrop::default(),
            retention_slope: RetentionSlope::default(),
            rss_high: RssHigh::default(),
            vsz_growth: VszGrowth::default(),
            anon_high: AnonHigh::default(),
            faults_high: FaultsHigh::default(),
            limit_near: LimitNear::default(),
            pressure_high: PressureHigh::default(),
            unmatched_frees: UnmatchedFrees::default(),
        }
    }
}

impl Config {
    /// Everything that is wrong, each with its key below `triggers`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let longest = [Time::seconds(0), Time::hours(24)];
        let repeat = wrong::time("repeat", self.repeat, [Time::minutes(1), Time::hours(7 * 24)]);
        let rules = RULES.iter().flat_map(|rule| {
            let settings = (rule.settings)(self);
            let mut problems = settings.problems();
            let hold = Time::of_seconds(settings.hold());
            problems.extend(wrong::time("for", hold, longest));
            // A problem begins with its key in backquotes.
            problems
                .into_iter()
                .map(|problem| problem.replacen('`', &format!("`{}.", rule.name), 1))
        });
        repeat.into_iter().chain(rules).collect()
    }

    /// Whether all values can be used.
    ///
    /// # Errors
    /// What is wrong, with the keys' names.
    pub fn check(&self) -> Result<(), String> {
        let problems = self.problems();
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }
}
