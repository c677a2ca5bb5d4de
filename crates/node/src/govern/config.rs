//! The section `[governor]` of the configuration.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trigger::{Share, Time};

/// What tracing may cost a process. The defaults are explained in `docs/triggers.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether the governor works.
    pub enabled: bool,
    /// The average cost that a process may bear, as a share of one CPU.
    #[schemars(extend("x-range" = ["0.01%", "100%"]))]
    pub budget: Share,
    /// The unused budget that a process can save up and spend at once, as a time at the full budget.
    #[schemars(extend("x-range" = ["1s", "1h"]))]
    pub burst: Time,
    /// A level lasts at least this long before the next one up is tried.
    #[schemars(extend("x-range" = ["1s", "1d"]))]
    pub dwell: Time,
    /// Where even the cheapest level is too expensive, nothing is observed for at least this long at a time.
    #[schemars(extend("x-range" = ["1s", "1d"]))]
    pub pause: Time,
    /// A level that was too expensive is tried again after this time; the time doubles with each failure.
    #[schemars(extend("x-range" = ["1s", "1d"]))]
    pub retry: Time,
    /// The longest time between two such attempts.
    #[schemars(extend("x-range" = ["1s", "1d"]))]
    pub retry_longest: Time,
    /// A level is tried again only if it is expected to cost less than this share of the budget.
    #[schemars(extend("x-range" = ["0.01%", "100%"]))]
    pub headroom: Share,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            budget: Share(0.01),
            burst: Time::minutes(5),
            dwell: Time::minutes(1),
            pause: Time::minutes(5),
            retry: Time::minutes(10),
            retry_longest: Time::hours(1),
            headroom: Share(0.7),
        }
    }
}

impl Config {
    /// Everything that is wrong with values together, each with its key.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Self { retry, retry_longest, .. } = self;
        let ordered = retry <= retry_longest;
        let problem = || {
            format!("`retry` is {retry}; it must not be more than `retry_longest`, {retry_longest}")
        };
        (!ordered).then(problem).into_iter().collect()
    }
}
