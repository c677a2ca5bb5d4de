//! The rules. A new one is a file here, a row in `rules!`, and a section in `docs/triggers.md`.

mod anon_faults;
mod anon_high;
mod dsr_drop;
mod dsr_low;
mod faults_high;
mod heap_idle;
mod limit_near;
mod observed_low;
mod pressure_high;
mod retention_slope;
mod rss_high;
mod rss_slope;
mod unmatched_frees;
mod vsz_growth;

use std::fmt;

use drainprof_report::values::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    rule::{Condition, Rule, Settings},
    signals::Signals,
};

/// One row of the table of rules.
#[derive(Debug)]
pub struct Row {
    /// Its name: in the configuration, in alerts and metrics.
    pub name: &'static str,
    /// Whether it is about memory, so that a window has to show where memory grows.
    pub memory: bool,
    /// Whether one cause makes it fire in all processes of a control group: then one window is enough for them.
    pub shared: bool,
    pub(super) settings: fn(&Config) -> &dyn Settings,
    pub(super) start: fn() -> Box<dyn Watch>,
}

/// A rule that watches one process.
pub(super) trait Watch: fmt::Debug + Send {
    /// Checks once.
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition;
}

/// What a rule remembers, and where its settings are.
#[derive(Debug)]
struct Watcher<R: Rule> {
    settings: fn(&Config) -> &R,
    past: R::Past,
}

impl<R: Rule + fmt::Debug> Watch for Watcher<R> {
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition {
        (self.settings)(config).check(&mut self.past, signals)
    }
}

/// Declares the rules: a key of the configuration with its meaning, and the settings that judge.
macro_rules! rules {
    ($($(#[$doc:meta])* $name:ident: $settings:ident,)*) => {
        $(pub use self::$name::$settings;)*

        /// The rules, in the order of the table.
        pub const RULES: &[Row] = &[$(Row {
            name: stringify!($name),
            memory: $settings::MEMORY,
            shared: $settings::SHARED,
            settings: |config| &config.$name,
            start: || Box::new(Watcher::<$settings> { settings: |config| &config.$name, past: Default::default() }),
        }),*];

        /// The settings of all rules, and how often one requests a window. The defaults are documented in `docs/triggers.md`.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct Config {
            /// A rule that goes on firing wants another window after this time.
            #[schemars(extend("x-range" = ["1m", "7d"]))]
            pub repeat: Time,
            $($(#[$doc])* pub $name: $settings,)*
        }

        impl Default for Config {
            fn default() -> Self {
                Self { repeat: Time::hours(6), $($name: $settings::default(),)* }
            }
        }
    };
}

// Those about granules first.
rules! {
    /// Closes leave granules behind more often than acceptable.
    dsr_low: DsrLow,
    /// The DSR falls below its own baseline.
    dsr_drop: DsrDrop,
    /// Retained memory grows steadily.
    retention_slope: RetentionSlope,
    /// Resident memory grows steadily.
    rss_slope: RssSlope,
    /// Resident memory rises above its own baseline.
    rss_high: RssHigh,
    /// Address space grows faster than resident memory.
    vsz_growth: VszGrowth,
    /// Nearly all resident memory is anonymous.
    anon_high: AnonHigh,
    /// Page faults bring anonymous memory that stays.
    anon_faults: AnonFaults,
    /// Page faults are frequent.
    faults_high: FaultsHigh,
    /// Freed memory stays resident, and becomes more.
    heap_idle: HeapIdle,
    /// The control group reaches its memory limit within hours.
    limit_near: LimitNear,
    /// Tasks of the control group wait for memory.
    pressure_high: PressureHigh,
    /// Frees have no matching allocation.
    unmatched_frees: UnmatchedFrees,
    /// The process is observed in parts of the time only.
    observed_low: ObservedLow,
}

impl Config {
    /// Everything that is wrong, each with its key below `triggers`.
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let problem = |rule: &'static Row| {
            let problem = (rule.settings)(self).problem()?;
            Some(problem.replacen('`', &format!("`{}.", rule.name), 1))
        };
        RULES.iter().filter_map(problem).collect()
    }
}
