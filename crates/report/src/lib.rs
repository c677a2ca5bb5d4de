//! From facts to opinions: a [`Report`] names, ranks and judges what a `Snapshot` holds.
//!
//! Pure: no clock, no I/O, no names searched for. `cli` and the daemon build reports, `export` turns them
//! into bytes; nothing below this crate formats text. A stored report can be read back and exported
//! again.

mod build;
mod census;
mod counts;
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
mod kind;
mod known;
mod lifetimes;
mod measurable;
pub mod memory;
mod model;
mod options;
#[cfg(any(test, feature = "testing"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "other crates take a few of them"))]
pub mod samples;
mod sampling;
mod schema;
pub mod series;
mod sites;
pub mod stored;
pub mod trend;
pub mod units;
pub mod values;
mod verdict;
pub mod why;

pub use counts::{Counts, Held};
pub use drainprof_process::{Frame, Inlined, Module, PathEnd};
pub use invariants::{invariants, invariants_within};
pub use kind::Kind;
pub use lifetimes::{OVERDUE_FACTOR, OVERDUE_MIN_CLOSES, OVERDUE_RULE};
pub use memory::Memory;
pub use model::{
    Began, Cost, Duty, Ended, Finding, Host, Probe, Report, SCHEMA, SelfUse, Severity, Symbols,
    Target, Tool, Window,
    allocator::{
        Allocator, Estimates, Granules, Lifetimes, Objects, OpenGranule, Overdue, PinnedGranule,
        Pins, Place, Retention, Sampling, dsr,
    },
    census::{Apart, Census, Fill, Occupancy},
    growth::{
        ByKind, Faults, GrowthPath, Heap, Mappings, MemoryGrowth, RssChange, SelectedGrowth,
        TouchedPlace, TouchedReport,
    },
    series::{Bucket, Growth, LiveOverTime, Spread},
    site::{
        Cohort, LiveAllocation, OpenedAt, PinClass, PinClasses, Selected, Site, SiteEstimates,
        SiteFrame,
    },
};
pub use options::Options;
pub use schema::{census_schema, diff_schema, report_schema, why_schema};
pub use verdict::{Verdict, verdict};
