//! The shape of a comparison: `drainprof.diff/1`. `docs/diff.schema.json` and `docs/reports-offline.md`
//! describe it field by field, and tests keep them together.

use drainprof_profile::Level;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    kind::{self, Kind},
    model::{series::Growth, site::PinClass},
};

/// The schema's name and version.
pub const DIFF_SCHEMA: &str = "drainprof.diff/1";

/// One comparison of two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// The name and version of this schema.
    #[schemars(extend("const" = DIFF_SCHEMA))]
    pub schema: String,
    /// Whether both reports are complete.
    pub complete: bool,
    /// The first report.
    pub before: Side,
    /// The second.
    pub after: Side,
    /// What stands in the way of a fair comparison, in sentences.
    pub notes: Vec<String>,
    /// The allocators, those of both reports first.
    pub allocators: Vec<AllocatorDiff>,
    /// Call paths that memory grows by, of the processes of both reports together; left out where neither report has
    /// growth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub growth: Vec<GrowthDiff>,
}

/// What one call path has done to memory. Bytes; a path that is in one report only has done nothing in the other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GrowthDiff {
    /// By how much it has changed resident memory.
    pub rss_bytes: Change<i64>,
    /// By how much it has moved the heap's end.
    pub heap_bytes: Change<i64>,
    /// What it has mapped that was still mapped.
    pub outstanding_bytes: Change<u64>,
    /// The call path, the innermost function first.
    pub frames: Vec<DiffFrame>,
}

/// One of the two reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Side {
    /// Where it was read from.
    pub file: String,
    /// The version of drainprof that wrote it.
    pub version: String,
    /// The kernel's release.
    pub kernel: String,
    /// Whether it is complete.
    pub complete: bool,
    /// Its window.
    pub window_seconds: f64,
    /// How much of it was observed: what rates refer to.
    pub observed_seconds: f64,
    /// Processes.
    pub processes: u64,
}

/// A value in both reports; null where it is not known, or the thing is not there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change<T> {
    /// In the first report.
    pub before: Option<T>,
    /// In the second.
    pub after: Option<T>,
}

impl<T> Default for Change<T> {
    fn default() -> Self {
        Self { before: None, after: None }
    }
}

/// Which report has it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    /// Both.
    Both,
    /// The second only.
    OnlyAfter,
    /// The first only.
    OnlyBefore,
}

/// One allocator: all its instances in all processes of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AllocatorDiff {
    /// The processes' name; the second report's where they differ.
    pub comm: String,
    /// Their executable; the second report's where they differ.
    pub exe: String,
    /// The profile.
    pub profile: String,
    /// The allocator's kind.
    #[serde(with = "kind")]
    #[schemars(schema_with = "kind::schema")]
    pub kind: Kind,
    /// Which report has it.
    pub presence: Presence,
    /// How deep it was examined; null where instances differ.
    pub level: Change<Level>,
    /// Whether a report has a sample of its granules only; its counts are multiplied then.
    pub sampled: bool,
    /// Processes.
    pub processes: Change<u64>,
    /// Instances.
    pub instances: Change<u64>,
    /// drainable / (drainable + pinned) over all instances.
    pub dsr: Change<f64>,
    /// Opens per second.
    pub opens_per_second: Change<f64>,
    /// Closes per second.
    pub closes_per_second: Change<f64>,
    /// Pinned closes per second; null for other kinds than `drain`.
    pub pinned_per_second: Change<f64>,
    /// Granules open at the end.
    pub open_granules: Change<u64>,
    /// Granules retained at the end.
    pub retained_granules: Change<u64>,
    /// Their bytes.
    pub retained_bytes: Change<u64>,
    /// Objects live at the end.
    pub live_objects: Change<u64>,
    /// Their bytes.
    pub live_bytes: Change<u64>,
    /// Growth of what is held back, granules.
    pub slope_granules_per_second: Change<f64>,
    /// The same in bytes.
    pub slope_bytes_per_second: Change<f64>,
    /// What its time series looks like; null where instances differ.
    pub verdict: Change<Growth>,
    /// Sites that the reports list.
    pub sites_listed: Change<u64>,
    /// Sites that there were.
    pub sites_total: Change<u64>,
    /// The sites, by how much they changed; null unless both reports have some.
    pub sites: Option<Vec<SiteDiff>>,
}

/// What became of a site.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It pins (for kinds without pins: holds) only in the second report.
    New,
    /// More than before, beyond chance.
    Grown,
    /// Less than before, beyond chance.
    Shrunk,
    /// It does so only in the first.
    Gone,
    /// As before, as far as such counts can tell.
    Same,
}

impl Status {
    /// Its name for people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Grown => "grown",
            Self::Shrunk => "shrunk",
            Self::Gone => "gone",
            Self::Same => "same",
        }
    }
}

/// One call path in both reports.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SiteDiff {
    /// What became of it.
    pub status: Status,
    /// False where a report lacks it that does not list all of its sites: it may only rank lower there.
    pub certain: bool,
    /// Pinned closes at which it had a pin.
    pub granules_pinned: Change<u64>,
    /// The same per second.
    pub pinned_per_second: Change<f64>,
    /// Its pins.
    pub objects: Change<u64>,
    /// Their bytes.
    pub bytes: Change<u64>,
    /// Bytes of the granules that it retains at the end.
    pub retained_bytes: Change<u64>,
    /// Its objects that are live at the end.
    pub live: Change<u64>,
    /// Their bytes.
    pub live_bytes: Change<u64>,
    /// Objects that it has allocated per second.
    pub allocated_per_second: Change<f64>,
    /// Bytes that it has allocated.
    pub allocated_bytes: Change<u64>,
    /// Half of its pins were freed sooner after the close, in seconds.
    pub pin_delay_p50_seconds: Change<f64>,
    /// What most of its pins are.
    pub class: Change<PinClass>,
    /// Where its granules were opened.
    pub opened_at: Vec<DiffFrame>,
    /// The call path, the allocating function first, inlined functions as frames of their own.
    pub frames: Vec<DiffFrame>,
}

/// A function in a call path, by what two builds have in common: no address and no line.
#[derive(
    Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub struct DiffFrame {
    /// Its name; null where it has none.
    pub function: Option<String>,
    /// Its source file, without the directory.
    pub file: Option<String>,
    /// The module.
    pub module: Option<String>,
    /// The address in the module; null where the function has a name.
    pub module_offset: Option<String>,
}
