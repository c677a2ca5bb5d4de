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
    /// Whether one cause makes it fire in all processes of a control group: then one window is enough for them.
    pub shared: bool,
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
    /// Thresholds that contradict each other: the milder one must come first. Begins with a key in backquotes.
    fn problem(&self) -> Option<String>;
}

/// A rule that watches one process.
pub(super) trait Watch: std::fmt::Debug + Send {
    /// Looks once.
    fn check(&mut self, config: &Config, signals: &Signals) -> Condition;
}

/// What a rule sees.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Condition {
    /// Nothing that could be judged.
    Unknown,
    /// All is well, or is well again.
    Clear,
    /// Too good to begin, not good enough to end: the message.
    Between(String),
    /// Its condition holds: the message.
    Beyond(String),
}

impl Condition {
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
        order: $low:ident <= $high:ident
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            /// Whether the rule is in force.
            pub enabled: bool,
            /// Whether it opens a diagnostic window.
            pub window: bool,
            /// For how long its condition must hold before it fires.
            #[serde(rename = "for")]
            #[schemars(extend("x-range" = ["0s", "1d"]))]
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
            fn problem(&self) -> Option<String> {
                let (low, high) = (stringify!($low), stringify!($high));
                // Not a number is in no order.
                let is_ordered = self.$low <= self.$high;
                (!is_ordered).then(|| {
                    format!("`{low}` is {}; it must not be more than `{high}`, {}", self.$low, self.$high)
                })
            }
        }
    };
}
pub(super) use settings;
