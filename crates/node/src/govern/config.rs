//! The section `[governor]` of the configuration.

use serde::{Deserialize, Serialize};

use crate::trigger::{Share, Time};

/// What looking may cost a process. The defaults are explained in `docs/triggers.md`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Whether it steps in at all.
    pub enabled: bool,
    /// The cost that a process may bear in the mean, as a share of one CPU.
    pub budget: Share,
    /// So much of the budget is saved up at most, and can be spent at once.
    pub burst: Time,
    /// A level lasts at least this long before the next one up is tried.
    pub dwell: Time,
    /// A level that was too dear is tried again after this time, and after twice that time with each failure.
    pub retry: Time,
    /// But at least this often.
    pub retry_longest: Time,
    /// A level is tried again only if it is expected to cost less than this share of the budget.
    pub headroom: Share,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            enabled: true,
            budget: Share(0.01),
            burst: Time::minutes(5),
            dwell: Time::minutes(1),
            retry: Time::minutes(10),
            retry_longest: Time::hours(1),
            headroom: Share(0.7),
        }
    }
}

impl Config {
    /// Everything that is wrong, each with its key.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut share = |key: &str, value: Share, most: f64| {
            if !(value.0.is_finite() && value.0 > 0.0 && value.0 <= most) {
                let most = Share(most);
                problems.push(format!(
                    "`{key}` is {value}; it must be more than 0% and at most {most}"
                ));
            }
        };
        share("budget", self.budget, 1.0);
        share("headroom", self.headroom, 1.0);
        let (second, day) = (Time::seconds(1), Time::hours(24));
        let times = [
            ("burst", self.burst, second, Time::hours(1)),
            ("dwell", self.dwell, second, day),
            ("retry", self.retry, second, day),
            ("retry_longest", self.retry_longest, self.retry, day),
        ];
        for (key, value, low, high) in times {
            if value < low || value > high {
                problems.push(format!("`{key}` is {value}; it must be from {low} to {high}"));
            }
        }
        problems
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
