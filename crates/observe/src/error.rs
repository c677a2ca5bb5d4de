//! Why a process cannot be observed.

use drainprof_probe::{
    bpf::BpfError,
    plan::{NoMatch, PlanError},
};
use drainprof_process::{ProcessError, Stuck};
use drainprof_profile::Level;

/// Why a process cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The process.
    #[error(transparent)]
    Target(#[from] ProcessError),
    /// No profile matches.
    #[error("no profile matches process {pid} ({comm}){}", tried(.profiles))]
    NoMatch {
        /// The process.
        pid: u32,
        /// Its name.
        comm: String,
        /// Every profile that was tried, and what it missed in which object.
        profiles: Vec<NoMatch>,
    },
    /// A profile matches but cannot be used.
    #[error("profile {profile} cannot be used on process {pid}: {source}")]
    Plan {
        /// The process.
        pid: u32,
        /// The profile.
        profile: String,
        /// Why.
        #[source]
        source: Box<PlanError>,
    },
    /// The profile cannot examine the level that was asked for.
    #[error(
        "profile {profile} cannot measure at level {}; it offers {}", .level.name(), .offers.join(", ")
    )]
    Level {
        /// The profile.
        profile: String,
        /// The level.
        level: Level,
        /// What it offers.
        offers: Vec<&'static str>,
    },
    /// No profile of that name.
    #[error("no profile is called {name}; there are {}", .known.join(", "))]
    UnknownProfile {
        /// The name.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The profile takes a census, and only a part of the time was to be observed.
    #[error("profile {profile} takes a census, which has to see all of the time: leave out --duty")]
    Census {
        /// The profile.
        profile: String,
    },
    /// It, or its files, cannot be read now.
    #[error(transparent)]
    Files(#[from] Stuck),
    /// The kernel side.
    #[error(transparent)]
    Bpf(#[from] BpfError),
    /// The rings or a process.
    #[error("cannot wait for events of the kernel side")]
    Wait(#[source] std::io::Error),
    /// The thread for names.
    #[error("cannot start the thread that finds names")]
    Symbols(#[source] std::io::Error),
}

/// One profile that was asked for is reported in full; of a whole library, the names.
fn tried(profiles: &[NoMatch]) -> String {
    match profiles {
        [] => String::new(),
        [one] => format!("\n{one}"),
        many => format!(
            "; tried {}. `drainprof profile check NAME -p PID` says what one of them misses",
            many.iter().map(|tried| tried.profile.as_str()).collect::<Vec<_>>().join(", ")
        ),
    }
}
