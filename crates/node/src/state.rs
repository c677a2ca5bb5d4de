//! The state of a node: `drainprof.node/1`.

use std::collections::BTreeMap;

use drainprof_census::Summary;
use drainprof_process::memory::{MemoryReading, MemoryShares, Pressure};
use drainprof_profile::Level;
use drainprof_report::{Allocator, Cost, Finding, SelfUse, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The schema's name and version.
pub const SCHEMA: &str = "drainprof.node/1";

/// Everything that the daemon shows of one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeState {
    /// [`SCHEMA`].
    #[schemars(extend("const" = SCHEMA))]
    pub schema: String,
    /// The program that wrote it.
    #[schemars(with = "serde_json::Value", extend("$ref" = "report.schema.json#/$defs/Tool"))]
    pub tool: Tool,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// For how long the daemon has run.
    pub uptime_seconds: f64,
    /// Whether all processes were checked once.
    pub ready: bool,
    /// Whether the kill switch is on: nothing is attached, and nothing will be.
    pub killed: bool,
    /// What does not work now although it is configured, a sentence each: the history, a changed configuration. Counts do
    /// not depend on it.
    #[serde(default)]
    pub degraded: Vec<String>,
    /// False if something that the counts need was lost.
    pub complete: bool,
    /// Why it is not complete, a sentence each; empty if it is.
    #[serde(default)]
    pub incomplete: Vec<String>,
    /// All loss counters by name, the zeros included.
    pub losses: BTreeMap<String, u64>,
    /// What the daemon itself uses.
    #[serde(rename = "self")]
    #[schemars(with = "serde_json::Value", extend("$ref" = "report.schema.json#/$defs/SelfUse"))]
    pub self_use: SelfUse,
    /// Pressure on the machine's memory; null where the kernel does not report it.
    pub pressure: Option<Pressure>,
    /// The processes that the configuration selects, in order of their pids: those that a profile matches, attached or
    /// not, and all others, whose memory alone is watched.
    pub targets: Vec<NodeTarget>,
    /// Processes that had begun to run before their probes were in place, of those that began after the daemon: what they
    /// did before is not counted.
    #[serde(default)]
    pub processes_late: u64,
    /// How often a process was given up because the kernel did not answer for it; `degraded` names those of now.
    #[serde(default)]
    pub processes_given_up: u64,
    /// How often a probe was put off because a process was in the way; `degraded` names those of the last minute.
    #[serde(default)]
    pub probes_put_off: u64,
    /// The label sets that are counted apart, and the one for all others, whose `exe` is `other`.
    #[serde(default)]
    pub label_sets: Vec<LabelSet>,
    /// Counts by label set and profile, of running and ended processes together. They never fall while their label set
    /// has the same `since_unix_ms`.
    pub counts: Vec<Counts>,
    /// Diagnostic windows that run or ended last, oldest first.
    pub windows: Vec<WindowRecord>,
    /// What came of the profiles for the store of profiles; null where none is configured.
    #[serde(default)]
    pub pushed: Option<Pushed>,
}

/// Profiles of diagnostic windows, by what came of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Pushed {
    /// Arrived.
    pub sent: u64,
    /// Refused by the store.
    pub refused: u64,
    /// Given up after some attempts: the store did not answer, or failed.
    pub unreachable: u64,
    /// Left out, because too many waited.
    pub dropped: u64,
}

/// Where a process belongs; null where it is in no such thing.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Labels {
    /// The file name of its executable.
    pub exe: String,
    /// Its control group's path.
    pub cgroup: Option<String>,
    /// The container's id, 12 characters or more.
    pub container: Option<String>,
    /// The systemd unit.
    pub unit: Option<String>,
    /// The Kubernetes pod: its uid, or its name where that is known.
    pub pod: Option<String>,
    /// The Kubernetes namespace, where it is known.
    pub namespace: Option<String>,
}

/// A label set whose counts are kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LabelSet {
    /// The labels that metrics show, by `metrics.labels`.
    pub labels: Labels,
    /// When its counts started at zero, in milliseconds since 1970. A set that was evicted and returns starts again.
    pub since_unix_ms: u64,
    /// Page faults without I/O of its processes since each is watched.
    pub minor_faults: u64,
    /// Page faults with I/O of its processes since each is watched.
    pub major_faults: u64,
}

/// One process that is watched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NodeTarget {
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name.
    pub comm: String,
    /// Its executable, as it sees it.
    pub exe: String,
    /// Where it belongs.
    pub labels: Labels,
    /// Whether a profile matches it. Without one, or beyond `select.max_targets`, its memory alone is watched.
    #[serde(default = "yes")]
    pub matched: bool,
    /// How deep it is traced now; null: no probe is in it.
    pub level: Option<Level>,
    /// The share of the last ten minutes in which probes were in it, where the governor decides; else null.
    #[serde(default)]
    pub observed_ratio: Option<f64>,
    /// Why at that level, in one sentence.
    pub reason: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Its memory; null where it could not be read.
    pub memory: Option<MemoryReading>,
    /// Growth of its resident memory per second over the last minutes; null where too little was seen.
    pub rss_slope_bytes_per_second: Option<f64>,
    /// Its 95 % confidence interval; null with it.
    #[serde(default)]
    pub rss_slope_interval: Option<[f64; 2]>,
    /// The share of the variance of resident memory that the slope explains; null also where nothing varies.
    #[serde(default)]
    pub rss_r_squared: Option<f64>,
    /// When its control group will be full at that growth, seconds from now; null without a limit or growth.
    pub seconds_to_limit: Option<f64>,
    /// Page faults per second between the last two readings; null before.
    pub faults_per_second: Option<f64>,
    /// What of its memory it shares, as of its turn; null before, and where that cannot be read.
    #[serde(default)]
    pub shares: Option<Shares>,
    /// Its heaps, as of the last census; null before.
    #[serde(default)]
    pub heaps: Option<Heaps>,
    /// Pressure on its control group's memory; null where the kernel does not report it.
    #[serde(default)]
    pub cgroup_pressure: Option<Pressure>,
    /// What its probes cost it since they are in place.
    #[schemars(with = "serde_json::Value", extend("$ref" = "report.schema.json#/$defs/Cost"))]
    pub cost: Cost,
    /// Its allocators since they are observed, as a report has them.
    #[schemars(with = "Vec<serde_json::Value>", extend("items" = { "$ref": "report.schema.json#/$defs/Allocator" }))]
    pub allocators: Vec<Allocator>,
    /// What the user should know of it.
    #[schemars(with = "Vec<serde_json::Value>", extend("items" = { "$ref": "report.schema.json#/$defs/Finding" }))]
    pub findings: Vec<Finding>,
    /// Rules that are about to fire, or have.
    pub alerts: Vec<Alert>,
}

const fn yes() -> bool {
    true
}

/// What `smaps_rollup` gives of a process. It is expensive to read, so processes have their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Shares {
    /// When it was read, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The shares.
    #[serde(flatten)]
    pub memory: MemoryShares,
}

/// The heaps of a process. It is expensive to read them, so processes have their turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Heaps {
    /// When they were read, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What was found; no heap where none is known.
    #[serde(flatten)]
    pub summary: Summary,
    /// Why they could not be read; null where they could.
    pub failure: Option<String>,
}

/// The state of a rule that concerns a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum AlertState {
    /// Its condition holds, but not yet for long enough.
    Pending,
    /// It has fired, and its condition has not gone away.
    Firing,
}

/// One rule that concerns a process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Alert {
    /// The rule's name.
    pub rule: String,
    /// How far it has come.
    pub state: AlertState,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// What it has seen, in one sentence with numbers.
    pub message: String,
}

/// Counts of one profile in all processes with the same labels.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// The label set, as in [`NodeState::label_sets`].
    pub labels: Labels,
    /// The profile.
    pub profile: String,
    /// `drain`, `bulk` or `slab`.
    #[schemars(extend("enum" = ["drain", "bulk", "slab"]))]
    pub kind: String,
    /// Its opens and closes.
    #[serde(flatten)]
    pub granules: drainprof_report::Counts,
    /// Objects allocated, at the levels that trace objects.
    pub allocated: u64,
    /// Objects freed, at the levels that trace objects.
    pub freed: u64,
    /// Hits of its probes.
    pub hits: u64,
    /// CPU time of the processes that the probes took, seconds.
    pub cost_seconds: f64,
    /// Processes that run now.
    pub processes: u64,
    /// What those that run hold now.
    #[serde(flatten)]
    pub held: drainprof_report::Held,
    /// Times from pinned closes to late drains, at the levels that trace objects.
    #[serde(default)]
    pub pin_delays: PinDelays,
    /// The site that pins most, from the last window on one of these processes; null without a window or a pin.
    #[serde(default)]
    pub worst_site: Option<WorstSite>,
}

/// Times from pinned closes to late drains, counted by how long they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PinDelays {
    /// How many were shorter than each [`PinDelays::bound`] and not shorter than the one before; in the last, the rest.
    pub buckets: [u64; PinDelays::BUCKETS],
    /// All of them together. Whole, so that however sums are added up, they come out the same and never fall.
    pub sum_nanoseconds: u64,
}

impl PinDelays {
    /// Buckets, the last without a bound: from a microsecond to more than an hour.
    pub const BUCKETS: usize = 18;

    /// Where a bucket ends, nanoseconds: powers of four, at which buckets of the kernel side end, too. `None`: never.
    #[must_use]
    pub const fn bound(bucket: usize) -> Option<u64> {
        if bucket + 1 < Self::BUCKETS { Some(1 << (10 + 2 * bucket)) } else { None }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }
}

/// The site that pinned most in a diagnostic window.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorstSite {
    /// The site's id, as in the report of the window.
    pub site: String,
    /// The window.
    pub window: u64,
    /// Closes in it that the site has pinned: no other has pinned more.
    pub granules_pinned: u64,
    /// When it ended, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// How a diagnostic window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It has not.
    Running,
    /// After its time.
    Finished,
    /// The process has ended.
    TargetEnded,
    /// Its probes cost the process too much.
    // What histories of 0.2 have.
    #[serde(alias = "too_dear")]
    OverCost,
    /// The daemon stopped, or the kill switch ended it.
    Interrupted,
    /// It could not begin.
    Failed,
}

/// One diagnostic window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Window")]
pub struct WindowRecord {
    /// Its number; never reused while a history is kept.
    pub id: u64,
    /// The process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Its executable.
    pub exe: String,
    /// What requested it: the name of a rule, `user`, or `signal`.
    pub asked_by: String,
    /// Why, in one sentence.
    pub why: String,
    /// When it began, in milliseconds since 1970.
    pub began_unix_ms: u64,
    /// How long it is to last, or has lasted.
    pub seconds: f64,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether it has a report ([`super::Request::WindowReport`]).
    pub has_report: bool,
}
