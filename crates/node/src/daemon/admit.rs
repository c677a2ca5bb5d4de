//! Which processes are watched, and how: one rule for the daemon and for `daemon --dry-run`.

use drainprof_observe::ObserveError;
use drainprof_process::{ProcessError, Stuck};
use drainprof_profile::Level;

use crate::config::{Facts, Select, Selector, Why};

/// How many processes are watched.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watched {
    /// All of them.
    pub processes: usize,
    /// Those that a profile matches.
    pub matched: usize,
}

/// How a process is watched, before profiles are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// A profile decides.
    Profiles,
    /// As many processes as may have probes: its memory alone, and no profile is tried.
    MemoryOnly,
}

/// Why a process is not watched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The rules say so.
    #[error("{0}")]
    Rules(Why),
    /// As many processes are watched as may be.
    #[error("select.max_processes is reached")]
    Full,
}

/// Decides by the configuration alone.
pub fn admit(
    select: &Select,
    selector: &Selector,
    facts: &Facts<'_>,
    watched: Watched,
) -> Result<Admission, Refused> {
    selector.selects(facts).map_err(Refused::Rules)?;
    if watched.processes >= select.max_processes as usize {
        return Err(Refused::Full);
    }
    let has_room = watched.matched < select.max_targets as usize;
    Ok(if has_room { Admission::Profiles } else { Admission::MemoryOnly })
}

/// What the profiles say of a process.
#[derive(Debug)]
pub enum Found {
    /// A profile matches, and its probes are in place.
    Attached,
    /// A profile matches, and no probe is placed: why.
    Without(String),
    /// The probes cannot be placed.
    Failed(ObserveError),
    /// No profile was tried: [`Admission::MemoryOnly`].
    Beyond,
    /// No profile matches.
    Unmatched,
    /// It has ended, or is not what it was when it was found.
    Ended,
    /// The kernel does not answer for it now, or for too many others; or its files take long to read.
    Unanswered,
}

impl Found {
    /// What an error says of the attempt to place the probes of a level.
    #[must_use]
    pub fn of_error(error: ObserveError, level: Level) -> Self {
        match error {
            ObserveError::NoMatch { .. } => Self::Unmatched,
            ObserveError::Target(ProcessError::Silent(_))
            | ObserveError::Files(
                Stuck::Silent { .. } | Stuck::Slow { .. } | Stuck::TooMany | Stuck::NoThread,
            ) => Self::Unanswered,
            ObserveError::Target(_) => Self::Ended,
            ObserveError::Level { profile, offers, .. } => Self::Without(format!(
                "profile {profile} does not offer level {}, only {}: probes come in a window",
                level.name(),
                offers.join(", ")
            )),
            error => Self::Failed(error),
        }
    }

    /// Whether a profile matches.
    #[must_use]
    pub const fn is_match(&self) -> bool {
        matches!(self, Self::Attached | Self::Without(_) | Self::Failed(_))
    }

    /// Whether the process is watched: its granules, or its memory alone.
    #[must_use]
    pub const fn is_watched(&self, select: &Select) -> bool {
        match self {
            Self::Attached | Self::Without(_) | Self::Failed(_) => true,
            Self::Beyond | Self::Unmatched => select.unmatched,
            Self::Ended | Self::Unanswered => false,
        }
    }

    /// Why it is watched at this level, or not at all; in one sentence.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Self::Attached => "as configured",
            Self::Without(why) => why,
            Self::Failed(_) => "its probes could not be attached",
            Self::Beyond => "no profile was tried: select.max_targets is reached",
            Self::Unmatched => "no profile matches",
            Self::Ended => "it has ended",
            Self::Unanswered => "it cannot be examined now",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Labels;

    /// Rules come first, then room for processes, then room for probes.
    #[test]
    fn limits() {
        let select = Select { max_targets: 2, max_processes: 4, ..Select::default() };
        let selector = Selector::of_this_process(&select);
        let labels = Labels::default();
        let facts = Facts { exe: "/usr/bin/svc", comm: "svc", labels: &labels };
        let admitted =
            |processes, matched| admit(&select, &selector, &facts, Watched { processes, matched });
        assert_eq!(admitted(3, 1), Ok(Admission::Profiles));
        assert_eq!(admitted(3, 2), Ok(Admission::MemoryOnly));
        assert_eq!(admitted(4, 2), Err(Refused::Full));
        let own = std::env::current_exe().unwrap();
        let facts = Facts { exe: own.to_str().unwrap(), ..facts };
        let refused = admit(&select, &selector, &facts, Watched { processes: 9, matched: 9 });
        assert_eq!(refused, Err(Refused::Rules(Why::Own)));
    }

    /// What no profile matches is watched if the configuration says so; what has ended is not.
    #[test]
    fn memory_alone() {
        let (all, matched) = (Select::default(), Select { unmatched: false, ..Select::default() });
        let without = Found::Without(String::new());
        for (found, by_default, only_matched) in [
            (Found::Attached, true, true),
            (without, true, true),
            (Found::Beyond, true, false),
            (Found::Unmatched, true, false),
            (Found::Ended, false, false),
        ] {
            let watched = [&all, &matched].map(|select| found.is_watched(select));
            assert_eq!(watched, [by_default, only_matched], "{found:?}");
        }
    }
}
