//! The section `[governor]` of the configuration.

use drainprof_report::values::{Share, Time};

use crate::section::section;

section! {
    /// What tracing may cost a process. The defaults are explained in `docs/triggers.md`.
    Config {
        /// Whether the governor works.
        enabled: bool = true,
        /// The average cost that a process may bear, as a share of one CPU.
        #[schemars(extend("x-range" = ["0.01%", "100%"]))]
        budget: Share = Share(0.01),
        /// The unused budget that a process can save up and spend at once, as a time at the full budget.
        #[schemars(extend("x-range" = ["1s", "1h"]))]
        burst: Time = Time::minutes(5),
        /// A level lasts at least this long before the next one up is tried.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        dwell: Time = Time::minutes(1),
        /// Where even the cheapest level is too expensive, nothing is observed for at least this long at a time.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        pause: Time = Time::minutes(5),
        /// A level that was too expensive is tried again after this time; the time doubles with each failure.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        retry: Time = Time::minutes(10),
        /// The longest time between two such attempts.
        #[schemars(extend("x-range" = ["1s", "1d"]))]
        retry_longest: Time = Time::hours(1),
        /// A level is tried again only if it is expected to cost less than this share of the budget.
        #[schemars(extend("x-range" = ["0.01%", "100%"]))]
        headroom: Share = Share(0.7),
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
