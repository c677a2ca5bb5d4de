//! Where physical memory goes: what the kernel says of a process's memory, its page faults and its mappings, and how
//! they belong to granules.

mod cgroup;
mod course;
pub(crate) mod fit;
mod memory;
mod parse;
mod pressure;
mod read;
mod trend;

pub use course::{COURSE_POINTS, MemoryCourse};
pub use memory::{MemoryReading, Pressure, Waiting};
pub use pressure::PressureError;
pub use read::{MemoryReader, next_look, pressure, read};
pub use trend::{
    MIN_CONFIDENCE, MIN_GROWTH_BYTES, MIN_POINTS, MIN_SECONDS, MemoryTrend, MemoryVerdict,
};
