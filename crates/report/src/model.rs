//! The report's shape: `drainprof.report/1`. `docs/report.schema.json` is made from it, and
//! a test holds `docs/report.md` to it.
//!
//! Addresses and ids are text (`"0x…"`), because they do not fit a JSON number. What cannot be known is
//! `null`, never 0.

pub(crate) mod allocator;
pub(crate) mod census;
mod constraints;
pub(crate) mod growth;
pub(crate) mod series;
pub(crate) mod site;

use std::collections::BTreeMap;

use drainprof_census::Comparison;
use drainprof_process::{Module, memory::Pressure};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::{allocator::Allocator, growth::MemoryGrowth};
use crate::{memory::Memory, units};

/// The schema's name and version.
pub const SCHEMA: &str = "drainprof.report/1";

/// One report: everything that an exporter needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// The name and version of this schema.
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// Who wrote it.
    pub tool: Tool,
    /// Where it was measured.
    pub host: Host,
    /// False if something that the counts need was lost, or a profile is not measurable.
    pub complete: bool,
    /// All loss counters by name, the zeros included; null for what a sample cannot know.
    #[schemars(schema_with = "constraints::losses")]
    pub losses: BTreeMap<String, Option<u64>>,
    /// The time that was observed.
    pub window: Window,
    /// Pressure on the machine's memory at the end; null without `--growth`, and where the kernel does not tell it.
    #[serde(default)]
    pub pressure: Option<Pressure>,
    /// What drainprof itself used.
    #[serde(rename = "self")]
    pub self_use: SelfUse,
    /// How far the naming of places has come; null where no names were searched for.
    pub symbols: Option<Symbols>,
    /// Findings that concern the report as a whole.
    pub findings: Vec<Finding>,
    /// Whether all processes of the machine were observed (`drainprof growth` without `-p`); left out where not.
    #[serde(default, skip_serializing_if = "is_not")]
    pub system: bool,
    /// The processes.
    pub targets: Vec<Target>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_not(yes: &bool) -> bool {
    !*yes
}

/// The program that wrote the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// `drainprof`.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// The machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// The kernel's release; empty where the caller did not say.
    pub kernel: String,
}

/// The time that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Window {
    /// Since the first probe was in place.
    pub seconds: f64,
    /// The duty cycle; null where it was observed all the time.
    #[serde(default)]
    pub duty: Option<Duty>,
}

impl Window {
    /// How long was observed: what rates refer to.
    #[must_use]
    pub fn observed(&self) -> f64 {
        self.duty.map_or(self.seconds, |duty| duty.observed_seconds)
    }

    /// The same in words, with the time that it is a part of.
    #[must_use]
    pub fn observed_words(&self) -> String {
        let observed = units::duration(self.observed());
        match self.duty {
            Some(duty) => {
                let windows = units::counted(duty.windows, "window", "windows");
                format!("{observed} of {}, in {windows}", units::duration(self.seconds))
            }
            None => observed,
        }
    }
}

/// A duty cycle, and what it came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Duty {
    /// The length of a window that was asked for.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub on_seconds: f64,
    /// From the begin of one window to that of the next.
    #[schemars(extend("exclusiveMinimum" = 0))]
    pub period_seconds: f64,
    /// Windows that have begun.
    pub windows: u64,
    /// Their lengths, added up.
    pub observed_seconds: f64,
}

/// drainprof's own use of the machine (the probes' cost falls on the targets and is not in it).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SelfUse {
    /// User and system time since the attach.
    pub cpu_seconds: f64,
    /// The same as a share of one CPU; null where the window is empty.
    pub cpu_ratio: Option<f64>,
    /// Resident memory now.
    pub rss_bytes: u64,
    /// Most resident memory so far.
    pub peak_rss_bytes: u64,
    /// Memory of the kernel-side maps.
    pub map_bytes: u64,
}

/// How far naming has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Symbols {
    /// Places that were seen, over all targets.
    pub places: u64,
    /// How many of them have a function's name.
    pub named: u64,
    /// How many are still searched for.
    pub pending: u64,
    /// How many were left out, because so many names are not kept.
    pub left_out: u64,
    /// How many were given up: their object's symbols could not be read in bounded time and memory.
    pub given_up: u64,
}

/// How much a finding matters.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "Weight")]
pub enum Severity {
    /// Good to know.
    Info,
    /// Something to examine.
    Warning,
    /// The numbers cannot be relied on as they stand.
    Error,
}

/// Something that the user should know, in one sentence with numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Finding {
    /// A short, stable name.
    pub code: String,
    /// How much it matters.
    #[serde(rename = "weight")]
    pub severity: Severity,
    /// The profile that it is about; null: the process, or the report as a whole.
    pub profile: Option<String>,
    /// The allocator instance that it is about.
    pub instance: Option<String>,
    /// The sentence.
    pub message: String,
}

/// How the observation of a process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "how", rename_all = "snake_case")]
pub enum Began {
    /// Attached while it ran.
    Attached,
    /// Observed since before the first instruction of `main`.
    FromStart,
    /// Forked by another target, and followed since its first instruction.
    Forked {
        /// The parent's number ([`Target::target`]).
        from_target: u32,
    },
    /// Another target called exec.
    Exec {
        /// The number of the image before.
        from_target: u32,
    },
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "how", rename_all = "snake_case")]
#[schemars(extend("not" = { "required": ["code", "signal"] }))]
pub enum Ended {
    /// It exited; code or signal where the status is known.
    Exit {
        /// Its exit code.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        /// The signal that killed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// It called exec; the new image is another target.
    Exec,
}

impl Ended {
    /// An exit, with the status where the process is our child: the code or the signal.
    #[must_use]
    pub fn exit(status: Option<Result<i32, i32>>) -> Self {
        Self::Exit { code: status.and_then(Result::ok), signal: status.and_then(Result::err) }
    }
}

/// One process incarnation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Target {
    /// Its number in this session; an exec makes a new one under the same pid.
    pub target: u32,
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it sees it.
    pub exe: String,
    /// Its container's id; left out where it is in none, and where growth was not examined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
    /// How the observation began.
    pub began: Began,
    /// How it ended; null while it runs.
    pub ended: Option<Ended>,
    /// Resident memory; null once it has ended.
    pub rss_bytes: Option<u64>,
    /// Its memory over time; null without `--growth`, and where it could not be read.
    #[serde(default)]
    pub memory: Option<Memory>,
    /// Findings about this process and its allocators.
    pub findings: Vec<Finding>,
    /// What its probes cost it.
    pub cost: Cost,
    /// The probes in place.
    pub probes: Vec<Probe>,
    /// Its allocators, one per profile and instance.
    pub allocators: Vec<Allocator>,
    /// The files that the frames of its sites lie in. Earlier versions did not tell them.
    #[serde(default)]
    pub modules: Vec<Module>,
    /// How its memory has grown; left out where that was not examined (`--growth`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<MemoryGrowth>,
    /// Its heaps as read from outside; left out where that was not asked for (`--census`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub census: Option<Comparison>,
}

/// What a process's probes cost it: hits times the cost of a hit at each probe's place.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Entries and returns of all its probes.
    pub hits: u64,
    /// CPU time of the process that the kernel took for them; drainprof's own work comes on top.
    pub cpu_seconds: f64,
    /// The same as a share of one CPU over the window; null where the window is empty.
    pub cpu_ratio: Option<f64>,
    /// Whether the costs were measured on this host; else they are other machines'.
    pub measured: bool,
}

/// One probe in place.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// The profile.
    pub profile: String,
    /// What a hit means.
    #[schemars(schema_with = "constraints::role")]
    pub role: String,
    /// The symbol, or `offset:0x…`.
    pub symbol: String,
    /// The file, as the process sees it.
    pub object: String,
    /// Whether it is evaluated at return.
    pub at_return: bool,
    /// Entries in traced processes.
    pub entries: u64,
    /// Returns in traced processes.
    pub returns: u64,
    /// Hits whose `when` did not hold.
    pub rejected: u64,
    /// Hits whose expressions could not be computed.
    pub faults: u64,
    /// CPU time of the process that the kernel took for its hits.
    pub cost_seconds: f64,
}
