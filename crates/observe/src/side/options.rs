//! What a kernel side observes, and how.

use std::path::PathBuf;

use drainprof_probe::plan::{Sites, cost::Costs};
use drainprof_profile::Level;
use drainprof_report::facts::Duty;

/// What is to be observed, and how.
#[derive(Clone, Debug)]
pub struct SideOptions {
    /// Names of the profiles to use; empty: all of the library that match.
    pub profiles: Vec<String>,
    /// How deep to look; `None`: each profile's default.
    pub level: Option<Level>,
    /// Whether children are followed; probes then sit on the files, for all processes that map them.
    pub follow: bool,
    /// More places to search for separate debug files.
    pub debug_dirs: Vec<PathBuf>,
    /// What probes cost on this host.
    pub costs: Costs,
    /// Observe in windows only.
    pub duty: Option<Duty>,
    /// Which instructions of functions may be probed.
    pub sites: Sites,
    /// Points of a curve of what an allocator instance holds that are kept at most.
    pub curve_points: usize,
}
