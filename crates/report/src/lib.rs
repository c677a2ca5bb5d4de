//! From facts to opinions: a [`Report`] names, ranks and judges what a `Snapshot` holds.
//!
//! Pure: no clock, no I/O, no names looked up. `cli` and the daemon build reports, `export` turns them
//! into bytes; nothing left of this module formats text. A stored report can be read back and exported
//! again.

mod build;
mod census;
pub mod coverage;
pub mod diff;
pub mod export;
pub mod facts;
pub mod filter;
pub mod finding;
mod fit;
mod frame;
mod growth;
pub mod health;
mod identity;
mod invariants;
mod lifetimes;
mod measurable;
pub mod memory;
mod model;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "other crates take a few of them"))]
pub mod samples;
mod sampling;
mod schema;
pub mod series;
mod site;
mod sites;
pub mod stored;
pub mod trend;
pub mod units;
pub mod values;
mod verdict;
pub mod why;

use std::time::Duration;

pub use census::{Apart, Census, Fill, Occupancy};
pub use drainprof_common::spec::Kind;
pub use drainprof_process::{Frame, Inlined, Module, PathEnd};
pub use frame::Symbols;
pub use growth::{
    ByKind, Faults, GrowthPath, Heap, Mappings, MemoryGrowth, RssChange, SelectedGrowth,
    TouchedPlace, TouchedReport,
};
pub use invariants::{invariants, invariants_within};
pub use lifetimes::{OVERDUE_FACTOR, OVERDUE_MIN_CLOSES, OVERDUE_RULE};
pub use memory::Memory;
pub use model::{
    Allocator, Began, Bucket, Cost, Duty, Ended, Estimates, Finding, Granules, Growth, Host,
    Lifetimes, LiveOverTime, Objects, OpenGranule, Overdue, PinnedGranule, Pins, Place, Probe,
    Report, Retention, SCHEMA, Sampling, SelfUse, Spread, Target, Tool, Weight, Window, dsr,
};
pub use schema::{census_schema, diff_schema, report_schema, why_schema};
pub use site::{
    Cohort, LiveAllocation, OpenedAt, PinClass, PinClasses, Selected, Site, SiteEstimates,
    SiteFrame,
};
pub use verdict::{Verdict, verdict};

/// How a report is built.
#[derive(Clone, Debug)]
pub struct Options {
    /// The kernel's release, for the report's `host`.
    pub kernel: String,
    /// Whether all processes of the machine are observed.
    pub system: bool,
    /// How many granules each list names at most.
    pub top: usize,
    /// Granules younger than this are not listed (they are counted all the same).
    pub min_age: Duration,
    /// Granules known to hold fewer bytes than this are not listed.
    pub min_bytes: u64,
    /// After this time a probe without a hit is a finding even if no other probe was hit.
    pub never_fired_after: Duration,
    /// How many events may have happened while the counters were read: by so much the conservation
    /// rules may be off without being a finding. 0 once the probes are gone or the targets have ended.
    pub slack: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            kernel: String::new(),
            system: false,
            top: 20,
            min_age: Duration::ZERO,
            min_bytes: 0,
            never_fired_after: Duration::from_secs(5),
            slack: 0,
        }
    }
}

/// Kinds by name, for serde.
mod kind_name {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    use super::Kind;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(kind: &Kind, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kind.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Kind, D::Error> {
        let name = String::deserialize(from)?;
        drainprof_profile::KINDS
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| D::Error::unknown_variant(&name, &["drain", "bulk", "slab"]))
    }
}
