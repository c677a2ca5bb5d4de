//! What is to be attached where.

use std::{path::PathBuf, sync::Arc};

use drainprof_common::spec::ProbeSpec;

use super::{
    cost::Costs,
    site::{Choice, Priced},
};
use crate::{
    profile::{Level, Phase, Profile, Role},
    target::printable,
};

/// All probes of one profile on the objects of one process.
#[derive(Clone, Debug)]
pub struct AttachPlan {
    /// The profile.
    pub profile: Arc<Profile>,
    /// The level at which it looks.
    pub level: Level,
    /// The allocator's number in this session ([`ProbeSpec::allocator`]).
    pub allocator: u32,
    /// What hits cost, by which the probes' places were chosen.
    pub costs: Costs,
    /// The probes, in the order in which they are to be attached (and detached in reverse): what begins
    /// a thing comes after all that can happen to it, so that whatever was seen to begin is seen whole.
    /// [`mod@crate::plan::build`] explains it.
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
    /// Why it goes to that instruction of its function, and what a hit costs there.
    pub choice: Choice,
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
    /// Offset in the file of the instruction that is probed.
    pub file_offset: u64,
    /// Offset in the file of the function's first instruction, by which it is known.
    pub entry_offset: u64,
    /// The symbol, or `offset:0x…`.
    pub symbol: String,
    /// Other symbols at the same place (aliases).
    pub aliases: Vec<String>,
}

/// A planned probe as `--dry-run` and `profile check` list it.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct PlanRow {
    /// The object, as the process sees it, safe to show.
    pub object: String,
    /// The symbol, or `offset:0x…`, safe to show.
    pub symbol: String,
    /// Other symbols at the same place.
    pub aliases: Vec<String>,
    /// Offset in the object's file of the instruction that is probed.
    pub file_offset: u64,
    /// The same, from the function's first instruction.
    pub offset: u32,
    /// The instruction, in the syntax of Intel's manuals; `None` where the file could not be read.
    pub instruction: Option<String>,
    /// Its kind.
    pub instruction_kind: Option<&'static str>,
    /// Nanoseconds of a hit there, drainprof's own work not included; for a probe at the return with what
    /// that adds.
    pub cost_ns: Option<f64>,
    /// The kind of the function's first instruction.
    pub entry_kind: Option<&'static str>,
    /// Nanoseconds of a hit there.
    pub entry_cost_ns: Option<f64>,
    /// Whether the costs were measured on this machine.
    pub costs_measured: bool,
    /// Why no later instruction was considered.
    pub stop: String,
    /// Where the arguments are that have moved: `arg1=rbx`.
    pub moved: Vec<String>,
    /// What a hit means.
    pub role: &'static str,
    /// `entry` or `return`.
    pub phase: &'static str,
}

impl AttachPlan {
    /// Nanoseconds of a call through `probe` if it sits on that instruction.
    fn cost(&self, probe: &PlannedProbe, at: Option<&Priced>) -> Option<f64> {
        let returning = if probe.phase == Phase::Return { self.costs.return_ns } else { 0.0 };
        at.map(|at| at.cost_ns + returning)
    }

    /// The probes as a list for people.
    #[must_use]
    pub fn rows(&self) -> Vec<PlanRow> {
        self.probes
            .iter()
            .map(|probe| PlanRow {
                object: probe.site.shown_path.clone(),
                symbol: printable(&probe.site.symbol),
                aliases: probe.site.aliases.iter().map(printable).collect(),
                file_offset: probe.site.file_offset,
                offset: probe.choice.offset,
                instruction: probe.choice.here.as_ref().map(|here| here.instruction.clone()),
                instruction_kind: probe.choice.here.as_ref().map(|here| here.kind.name()),
                cost_ns: self.cost(probe, probe.choice.here.as_ref()),
                entry_kind: probe.choice.entry.as_ref().map(|entry| entry.kind.name()),
                entry_cost_ns: self.cost(probe, probe.choice.entry.as_ref()),
                costs_measured: self.costs.measured,
                stop: probe.choice.stop.to_string(),
                moved: probe.choice.moved_text(),
                role: probe.role.name(),
                phase: match probe.phase {
                    Phase::Entry => "entry",
                    Phase::Return => "return",
                },
            })
            .collect()
    }
}

/// Something that the user should know about a plan.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finding {
    /// A short, stable name; the list is in [`mod@crate::plan::build`].
    pub code: String,
    /// One sentence.
    pub message: String,
}
