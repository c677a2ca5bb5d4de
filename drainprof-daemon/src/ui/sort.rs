//! The orders in which rows can stand.

use std::cmp::Ordering;

use drainprof_node::AlertState;

use super::rows::Row;

/// Declares the orders, as the columns stand: each with the key that chooses it, and its name above the table.
macro_rules! orders {
    ($($(#[$doc:meta])* $order:ident = $letter:literal $words:literal,)*) => {
        /// What rows are sorted by.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Sort {
            $($(#[$doc])* $order,)*
        }

        impl Sort {
            /// All of them, as the columns stand.
            pub const ALL: &[Self] = &[$(Self::$order),*];

            /// The key that chooses it.
            pub(super) const fn letter(self) -> char {
                match self {
                    $(Self::$order => $letter,)*
                }
            }

            /// Its name, for the line above the table.
            pub(super) const fn words(self) -> &'static str {
                match self {
                    $(Self::$order => $words,)*
                }
            }
        }
    };
}

orders! {
    /// Alerts, then pinned bytes per second, then growth of resident memory: what to examine first. No column has it.
    Urgency = 'u' "urgency",
    /// Process id.
    Pid = 'p' "pid",
    /// The process's name.
    Process = 'n' "process",
    /// The profile, and the instance.
    Allocator = 'a' "allocator",
    /// The DSR, the worst first.
    Dsr = 'd' "DSR",
    /// Closes per second.
    Closes = 'c' "closes per second",
    /// Retained bytes.
    Retained = 'b' "bytes retained",
    /// Foreseen growth of retention.
    Forecast = 'f' "forecast",
    /// Resident memory.
    Rss = 'm' "RSS",
    /// Its growth.
    Slope = 'g' "growth of RSS",
    /// The level.
    Level = 'l' "level",
    /// What the probes cost.
    Cost = 'x' "cost",
}

impl Sort {
    /// Whether the smallest stands first unless reversed: of names all, and of the DSR the worst.
    pub(super) const fn ascends(self) -> bool {
        matches!(self, Self::Pid | Self::Process | Self::Allocator | Self::Dsr)
    }

    /// The neighbour `by` places on, around the ends.
    pub(super) fn neighbour(self, forward: bool) -> Self {
        let count = Self::ALL.len();
        let here = Self::ALL.iter().position(|sort| *sort == self).unwrap_or_default();
        Self::ALL[(here + if forward { 1 } else { count - 1 }) % count]
    }

    /// Which of two rows stands first. What is not known stands last, in either order.
    pub(super) fn order(self, reversed: bool, a: &Row<'_>, b: &Row<'_>) -> Ordering {
        let descends = self.ascends() == reversed;
        let turned = |order: Ordering| if descends { order.reverse() } else { order };
        let order = match self {
            Self::Urgency => turned(urgency(a, b)),
            Self::Pid => turned(a.target.pid.cmp(&b.target.pid)),
            Self::Process => turned(a.target.comm.cmp(&b.target.comm)),
            Self::Allocator => known(a.profile(), b.profile(), |a, b| turned(a.cmp(b))),
            _ => known(self.number(a), self.number(b), |a, b| turned(a.total_cmp(b))),
        };
        order.then_with(|| a.rank().cmp(&b.rank()))
    }

    fn number(self, row: &Row<'_>) -> Option<f64> {
        match self {
            Self::Urgency | Self::Pid | Self::Process | Self::Allocator => None,
            Self::Dsr => row.dsr(),
            Self::Closes => row.rates.map(|rates| rates.closes),
            Self::Retained => row.retained().map(|bytes| bytes as f64),
            Self::Forecast => row.forecast(),
            Self::Rss => row.rss().map(|bytes| bytes as f64),
            Self::Slope => row.target.rss_slope_bytes_per_second,
            Self::Level => row.level().map(|level| f64::from(level as u8)),
            Self::Cost => row.target.level.and(row.target.cost.cpu_ratio),
        }
        .filter(|number| !number.is_nan())
    }
}

/// Which of two rows is less urgent. What is not known counts as nothing.
fn urgency(a: &Row<'_>, b: &Row<'_>) -> Ordering {
    let alert = |row: &Row<'_>| match row.alert() {
        Some(AlertState::Firing) => 2,
        Some(_) => 1,
        None => 0,
    };
    let number = |number: Option<f64>| number.filter(|number| !number.is_nan()).unwrap_or_default();
    let pinned = |row: &Row<'_>| number(row.rates.and_then(|rates| rates.pinned_bytes));
    let growth = |row: &Row<'_>| number(row.target.rss_slope_bytes_per_second);
    alert(a)
        .cmp(&alert(b))
        .then_with(|| pinned(a).total_cmp(&pinned(b)))
        .then_with(|| growth(a).total_cmp(&growth(b)))
}

fn known<T>(a: Option<T>, b: Option<T>, order: impl FnOnce(&T, &T) -> Ordering) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => order(&a, &b),
        (a, b) => b.is_some().cmp(&a.is_some()),
    }
}
