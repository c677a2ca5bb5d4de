//! What a rule is.

use std::fmt;

use super::signals::Signals;

/// What all rules' settings have.
pub(super) trait Settings {
    /// Whether the rule is in force.
    fn enabled(&self) -> bool;
    /// Whether it opens a diagnostic window.
    fn window(&self) -> bool;
    /// For how long its condition must hold, seconds.
    fn hold(&self) -> f64;
    /// Thresholds that contradict each other: the milder one must come first. Begins with a key in backquotes.
    fn problem(&self) -> Option<String>;
}

/// A rule: its settings, which judge.
pub(super) trait Rule: Settings + 'static {
    /// What it remembers of a process.
    type Past: Default + fmt::Debug + Send;
    /// [`super::rules::Row::memory`].
    const MEMORY: bool = true;
    /// [`super::rules::Row::shared`].
    const SHARED: bool = false;

    /// Checks once.
    fn check(&self, past: &mut Self::Past, signals: &Signals) -> Condition;
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

    /// The worst of several: of profiles, for a rule that judges each.
    pub(super) fn worst(all: impl IntoIterator<Item = Self>) -> Self {
        let worse = |worst: Self, one: Self| if one.rank() > worst.rank() { one } else { worst };
        all.into_iter().fold(Self::Unknown, worse)
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
        $crate::section::section! {
            $(#[$meta])*
            $name {
                /// Whether the rule is in force.
                enabled: bool = true,
                /// Whether it opens a diagnostic window.
                window: bool = $window,
                /// For how long its condition must hold before it fires.
                #[serde(rename = "for")]
                #[schemars(extend("x-range" = ["0s", "1d"]))]
                hold: drainprof_report::values::Time = $hold,
                $($(#[$doc])* $field: $type = $default,)*
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
