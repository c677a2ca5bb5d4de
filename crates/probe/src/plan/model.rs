//! What is to be attached where.

use std::{path::PathBuf, sync::Arc};

use drainprof_common::spec::ProbeSpec;
use drainprof_process::printable;
use drainprof_profile::{Finding, Level, Phase, Profile, Role};

use super::{
    cost::Costs,
    site::{Choice, InstructionCost},
    usdt_site::UsdtSite,
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
    /// Of each group of probes that stand for one another (`one_of`), which one is placed in each object.
    pub groups: Vec<Group>,
    /// Why the profile's granules cannot be measured in this process; no probe is placed then.
    pub not_measurable: Option<String>,
    /// What the user should know about it: clones that cannot be probed, IFUNCs, costs.
    pub findings: Vec<Finding>,
}

/// Probes of a profile that stand for one another, in one object, as `--dry-run` and `profile check` list
/// them.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Group {
    /// The group's name (`one_of`).
    pub group: String,
    /// What a hit of each means.
    pub role: &'static str,
    /// The object, as the process sees it, safe to show.
    pub object: String,
    /// Its probes, in the profile's order.
    pub members: Vec<Member>,
}

/// One of several probes that stand for one another.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Member {
    /// The address as the profile writes it, safe to show.
    pub at: String,
    /// `entry` or `return`.
    pub phase: &'static str,
    /// Nanoseconds of a call if this one is placed alone, what a return adds included; `None` where it cannot
    /// be placed, or its code cannot be read.
    pub cost_ns: Option<f64>,
    /// Whether it is the one that is placed.
    pub used: bool,
    /// Why it cannot be placed, or why some calls may go by it; `None`: it is as good as any.
    pub drawback: Option<String>,
}

/// A phase as lists show it.
pub(super) const fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Entry => "entry",
        Phase::Return => "return",
    }
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
    /// The symbol, `offset:0x…` or `usdt:provider:name`.
    pub symbol: String,
    /// Other symbols at the same place (aliases).
    pub aliases: Vec<String>,
    /// What a USDT probe has here; `None` where it is none.
    pub usdt: Option<UsdtSite>,
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
    /// Nanoseconds of a hit there; `None` where no probe may sit on it.
    pub entry_cost_ns: Option<f64>,
    /// Whether the costs were measured on this machine.
    pub costs_measured: bool,
    /// Why no later instruction was considered.
    pub stop: String,
    /// Where the arguments are that have moved: `arg1=rbx`; of a USDT probe where all are: `arg0=-4@%eax`.
    pub moved: Vec<String>,
    /// What a hit means.
    pub role: &'static str,
    /// `entry` or `return`.
    pub phase: &'static str,
}

impl AttachPlan {
    /// Nanoseconds of a call through `probe` if it sits on that instruction; `None` where it may not.
    fn cost(&self, probe: &PlannedProbe, at: Option<&InstructionCost>) -> Option<f64> {
        let cost = at.map(|at| self.costs.call(probe.phase == Phase::Return, at.cost_ns));
        cost.filter(|cost| cost.is_finite())
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
                moved: match &probe.site.usdt {
                    Some(usdt) => usdt.listed(),
                    None => probe.choice.moved_text(),
                },
                role: probe.role.name(),
                phase: phase_name(probe.phase),
            })
            .collect()
    }
}
