//! Where physical memory goes: what the kernel says of a process's memory, its page faults and its mappings, and how
//! they belong to granules.

mod allocations;
mod cgroup;
mod course;
mod facts;
pub(crate) mod fit;
mod join;
mod ledger;
mod memory;
mod parse;
mod pressure;
mod read;
mod trend;

pub use allocations::{Allocations, MALLOCS, NoMalloc};
pub use course::{COURSE_POINTS, MemoryCourse};
pub use facts::{FaultTotals, GrowthFacts, PathGrowth};
pub use join::{GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join};
pub use ledger::{Ledger, MapTotals};
pub use memory::{MemoryReading, Pressure, Waiting};
pub use pressure::PressureError;
pub use read::{MemoryReader, next_look, pressure, read};
pub use trend::{
    MIN_CONFIDENCE, MIN_GROWTH_BYTES, MIN_POINTS, MIN_SECONDS, MemoryTrend, MemoryVerdict,
};
