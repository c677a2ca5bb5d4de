//! Where physical memory goes: what the kernel says of a process's memory, its page faults and its mappings, and how
//! they belong to granules.

mod course;
mod facts;
pub(crate) mod fit;
mod ledger;
mod trend;

pub use course::{COURSE_POINTS, MemoryCourse};
pub use drainprof_process::memory::{
    GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join,
};
pub use facts::{FaultTotals, GrowthFacts, PathGrowth};
pub use ledger::{Ledger, MapTotals};
pub use trend::{
    MIN_CONFIDENCE, MIN_GROWTH_BYTES, MIN_POINTS, MIN_SECONDS, MemoryTrend, MemoryVerdict,
};
