//! The section `[triggers]` of the configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    AnonFaults, AnonHigh, DsrDrop, DsrLow, FaultsHigh, HeapIdle, LimitNear, ObservedLow,
    PressureHigh, RULES, RetentionSlope, RssHigh, RssSlope, Rule, Time, UnmatchedFrees, VszGrowth,
};

/// What all rules look for, and how long they wait. The defaults are documented in `docs/triggers.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// A rule that goes on firing wants another window after this time.
    #[schemars(extend("x-range" = ["1m", "7d"]))]
    pub repeat: Time,
    /// Closes leave granules behind more often than acceptable.
    pub dsr_low: DsrLow,
    /// The DSR falls below its own baseline.
    pub dsr_drop: DsrDrop,
    /// Retained memory grows steadily.
    pub retention_slope: RetentionSlope,
    /// Resident memory grows steadily.
    pub rss_slope: RssSlope,
    /// Resident memory rises above its own baseline.
    pub rss_high: RssHigh,
    /// Address space grows faster than resident memory.
    pub vsz_growth: VszGrowth,
    /// Anonymous memory fills the control group.
    pub anon_high: AnonHigh,
    /// Page faults bring anonymous memory that stays.
    pub anon_faults: AnonFaults,
    /// Page faults are frequent.
    pub faults_high: FaultsHigh,
    /// Freed memory stays resident, and becomes more.
    pub heap_idle: HeapIdle,
    /// The control group reaches its memory limit within hours.
    pub limit_near: LimitNear,
    /// Tasks of the control group wait for memory.
    pub pressure_high: PressureHigh,
    /// Frees have no matching allocation.
    pub unmatched_frees: UnmatchedFrees,
    /// The process is observed in parts of the time only.
    pub observed_low: ObservedLow,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            repeat: Time::hours(6),
            dsr_low: DsrLow::default(),
            dsr_drop: DsrDrop::default(),
            retention_slope: RetentionSlope::default(),
            rss_slope: RssSlope::default(),
            rss_high: RssHigh::default(),
            vsz_growth: VszGrowth::default(),
            anon_high: AnonHigh::default(),
            anon_faults: AnonFaults::default(),
            faults_high: FaultsHigh::default(),
            heap_idle: HeapIdle::default(),
            limit_near: LimitNear::default(),
            pressure_high: PressureHigh::default(),
            unmatched_frees: UnmatchedFrees::default(),
            observed_low: ObservedLow::default(),
        }
    }
}

impl Config {
    /// Everything that is wrong, each with its key below `triggers`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let problem = |rule: &'static Rule| {
            let problem = (rule.settings)(self).problem()?;
            Some(problem.replacen('`', &format!("`{}.", rule.name), 1))
        };
        RULES.iter().filter_map(problem).collect()
    }
}
