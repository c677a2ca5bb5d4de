//! What a rule is.

use super::{Config, Signals};

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// Its name: in the configuration, in alerts and metrics.
    pub name: &'static str,
    /// What it looks for, in one sentence.
    pub what: &'static str,
    /// What to do when it fires, in one sentence.
    pub advice: &'static str,
    /// Whether it is about memory, so that a window has to show where memory grows.
    pub memory: bool,
    pub(super) settings: fn(&Config) -> &dyn Settings,
    pub(super) start: fn() -> Box<dyn Watch>,
}

/// What all rules' settings have.
pub(super) trait Settings {
    /// Whether it is looked for at all.
    fn enabled(&self) -> bool;
    /// Whether it opens a diagnostic window.
    fn window(&self) -> bool;
    /// For how long its condition must hold, seconds.
    fn hold(&self) -> f64;
    /// What is wrong with the settings, each with its key below the rule's name.
    fn problems(&self) -> Vec<String>;
}

/// A rule that watches one process.
pub(super) trait Watch: std::fmt::Debug + Send {
    /// Looks once.
    fn look(&mut self, config: &Config, signals: &Signals) -> Look;
}

/// What a rule sees.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Look {
    /// Nothing that could be judged.
    Unknown,
    /// All is well, or is well again.
    Clear,
    /// Too good to begin, not good enough to end: the message.
    Between(String),
    /// Its condition holds: the message.
    Beyond(String),
}

impl Look {
    const fn rank(&self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::Clear => 1,
            Self::Between(_) => 2,
            Self::Beyond(_) => 3,
        }
    }

    /// The worst of several: of profiles, for a rule that looks at each.
    pub(super) fn worst(looks: impl IntoIterator<Item = Self>) -> Self {
        looks.into_iter().fold(
            Self::Unknown,
            |worst, look| {
                if look.rank() > worst.rank() { look } else { worst }
            },
        )
    }

    /// `value` against the threshold above which the condition holds and the one below which it ends.
    pub(super) fn above(
        value: f64,
        above: f64,
        back: f64,
        message: impl FnOnce() -> String,
    ) -> Self {
        if value > above {
            Self::Beyond(message())
        } else if value > back {
            Self::Between(message())
        } else {
            Self::Clear
        }
    }
}

/// Declares a rule's settings: the three that all have, and its own, each with its default.
macro_rules! settings {
    (
        $(#[$meta:meta])*
        $name:ident { window: $window:expr, hold: $hold:expr,
            $($(#[$doc:meta])* $field:ident: $type:ty = $default:expr,)*
        }
        problems: $problems:expr
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// Whether the rule is in force.
            pub enabled: bool,
            /// Whether it opens a diagnostic window.
            pub window: bool,
            /// For how long its condition must hold before it fires.
            #[serde(rename = "for")]
            pub hold: $crate::trigger::Time,
            $($(#[$doc])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { enabled: true, window: $window, hold: $hold, $($field: $default,)* }
            }
        }

        impl $crate::trigger::rule::Settings for $name {
            fn enabled(&self) -> bool {
                self.enabled
            }
            fn window(&self) -> bool {
                self.window
            }
            fn hold(&self) -> f64 {
                self.hold.as_seconds()
            }
            fn problems(&self) -> Vec<String> {
                let problems: fn(&Self) -> Vec<Option<String>> = $problems;
                problems(self).into_iter().flatten().collect()
            }
        }
    };
}
pub(super) use settings;

/// Checks of settings, each of which says what is wrong with its key.
pub(super) mod wrong {
    use crate::trigger::{Bytes, Share, Time};

    /// Of a share that must be from 0 to 1.
    pub(in crate::trigger) fn share(key: &str, value: Share) -> Option<String> {
        let inside = (0.0..=1.0).contains(&value.0);
        (!inside).then(|| format!("`{key}` is {value}; it must be from 0% to 100%"))
    }

    /// Of a number that must be positive.
    pub(in crate::trigger) fn positive(key: &str, value: f64) -> Option<String> {
        let positive = value.is_finite() && value > 0.0;
        (!positive).then(|| format!("`{key}` is {value}; it must be more than 0"))
    }

    /// Of a time that must lie between two others.
    pub(in crate::trigger) fn time(
        key: &str,
        value: Time,
        [low, high]: [Time; 2],
    ) -> Option<String> {
        let inside = (low..=high).contains(&value);
        (!inside).then(|| format!("`{key}` is {value}; it must be from {low} to {high}"))
    }

    /// Of a number that must not be beyond another: the threshold to go back must be the milder one.
    pub(in crate::trigger) fn order(low: (&str, f64), high: (&str, f64)) -> Option<String> {
        let ordered = low.1 <= high.1;
        (!ordered).then(|| {
            format!("`{}` is {}; it must not be more than `{}`, {}", low.0, low.1, high.0, high.1)
        })
    }

    /// The same of sizes.
    pub(in crate::trigger) fn order_bytes(
        low: (&str, Bytes),
        high: (&str, Bytes),
    ) -> Option<String> {
        let ordered = low.1 <= high.1;
        (!ordered).then(|| {
            format!("`{}` is {}; it must not be more than `{}`, {}", low.0, low.1, high.0, high.1)
        })
    }
}

/// Times over which a rule can look.
pub(super) const WINDOWS: [super::Time; 2] = [super::Time::seconds(10), super::Time::hours(24)];
