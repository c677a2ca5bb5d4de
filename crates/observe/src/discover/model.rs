//! The result, as `-o json` writes it: `drainprof.discover/1`. All text in it is safe to show.

use drainprof_profile::Finding;
use serde::Serialize;

/// The name and version of the JSON document.
pub const SCHEMA: &str = "drainprof.discover/1";

/// All that was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Discovery {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Where the costs are from.
    pub prices: Prices,
    /// How many processes were examined.
    pub looked: Looked,
    /// Processes that a profile fits or nearly fits, equal ones together, the best first.
    pub groups: Vec<ProcessGroup>,
    /// Processes that could not be examined, by reason.
    pub passed_over: Vec<PassedOver>,
}

/// Where costs are from; nothing is measured for this.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Prices {
    /// An earlier measurement on this host.
    Remembered,
    /// Another machine.
    Assumed,
}

/// Numbers of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Looked {
    /// All that were examined.
    pub processes: u64,
    /// Those that at least one profile fits.
    pub with_profile: u64,
    /// Those that only profiles fit that must be asked for by name.
    pub on_request: u64,
    /// Those that no profile fits.
    pub without_profile: u64,
}

/// Processes of one program that are alike.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ProcessGroup {
    /// The program's name.
    pub comm: String,
    /// Its executable, as it sees it.
    pub exe: String,
    /// Its processes, in ascending order.
    pub pids: Vec<u32>,
    /// Their resident memory, added up.
    pub rss_bytes: u64,
    /// They live in another mount namespace (a container): their paths are not ours.
    pub other_mount_namespace: bool,
    /// The profiles that fit, the best first.
    pub fits: Vec<Fit>,
    /// What is missing for profiles that nearly fit.
    pub hints: Vec<Hint>,
    /// The command that attaches to all of them; `None` where no profile fits.
    pub attach: Option<String>,
}

/// A profile that fits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Its name.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    pub kind: &'static str,
    /// One line on what it is.
    pub summary: String,
    /// The objects in which its functions are.
    pub objects: Vec<String>,
    /// It is used only where it is asked for by name.
    pub on_request: bool,
    /// The level at which `attach` measures by default.
    pub default_level: &'static str,
    /// The levels that it offers, the cheapest first.
    pub levels: Vec<LevelOffer>,
    /// What the user should know about it.
    pub findings: Vec<Finding>,
    /// It fits, but cannot be used: why.
    pub unusable: Option<String>,
}

/// What a level costs, in nanoseconds of the target's time that the kernel takes for probing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LevelOffer {
    /// Its name.
    pub level: &'static str,
    /// How many probes it needs.
    pub probes: usize,
    /// For each granule: its open and its close or reset, by the most expensive probe of each.
    pub granule_ns: Option<f64>,
    /// For each object: its alloc and its free, by the most expensive probe of each; `None` where objects cost
    /// nothing.
    pub object_ns: Option<f64>,
}

/// A profile that nearly fits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// The profile.
    pub profile: String,
    /// The object.
    pub object: String,
    /// What is missing.
    pub missing: String,
    /// What to do about it; `None` where nothing is known to help.
    pub mend: Option<String>,
}

/// Processes that could not be examined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PassedOver {
    /// `permission`, `foreign`, `gone`, `kernel_thread`, `unreadable` or `myself`.
    pub reason: &'static str,
    /// How many.
    pub processes: u64,
    /// The first of them.
    pub pids: Vec<u32>,
    /// What was said of the first.
    pub message: String,
}
