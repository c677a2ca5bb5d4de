//! Where physical memory goes: what the kernel says of a process's memory, its page faults and its mappings, and how
//! they belong to granules.

mod facts;
mod join;
mod ledger;
mod memory;

pub use facts::{FaultTotals, GrowthFacts, PathGrowth};
pub use join::{GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join};
pub use ledger::{Ledger, MapTotals};
pub use memory::{MemoryReading, Pressure, Waiting};
