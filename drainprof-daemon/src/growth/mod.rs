//! Where physical memory goes: what the kernel says of a process's memory, its page faults and its mappings, and how
//! they belong to granules.

mod allocations;
mod memory;

pub use allocations::{Allocations, MALLOCS, NoMalloc};
pub use memory::{MemoryReading, Pressure, Waiting};
