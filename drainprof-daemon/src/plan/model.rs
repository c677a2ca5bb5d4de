//! What is to be attached where.

use std::{path::PathBuf, sync::Arc};

use drainprof_common::spec::ProbeSpec;

use crate::profile::{Level, Phase, Profile, Role};

/// All probes of one profile on the objects of one process.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The level at which it looks.
    pub level: Level,
    /// The allocator's number in this session ([`ProbeSpec::allocator`]).
    pub allocator: u32,
    /// The probes, in the order in which they are to be attached: frees and closes after allocs and
    /// opens would miss what happens in between, so opens come first.
    pub probes: Vec<PlannedProbe>,
    /// What the user should know about it: clones that cannot be probed, IFUNCs, costs.
    pub findings: Vec<Finding>,
}

/// One probe, at one place.
#[derive(Clone, Debug)]
pub struct PlannedProbe {
    /// What it means.
    pub spec: ProbeSpec,
    /// Its role.
    pub role: Role,
    /// When it is evaluated.
    pub phase: Phase,
    /// Where it goes.
    pub site: Site,
}

/// A place in an ELF object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// A path through which the object can be opened now (through `/proc/PID/map_files` or
    /// `/proc/PID/root`), also where it is deleted or in another mount namespace.
    pub open_path: PathBuf,
    /// The path as the process sees it, for people.
    pub shown_path: String,
    /// Device and inode, which identify the object to the kernel.
    pub inode: (u64, u64),
    /// Offset in the file.
    pub file_offset: u64,
    /// The symbol, or `offset:0x…`.
    pub symbol: String,
    /// Other symbols at the same place (aliases).
    pub aliases: Vec<String>,
}

/// Something that the user should know about a plan.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// A short, stable name: `ifunc`, `clone_only`, `clones`, `alias`, `missing_symbol`, …
    pub code: String,
    /// One sentence.
    pub message: String,
}
