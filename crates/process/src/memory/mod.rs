//! Memory of processes and control groups, as the kernel reports it: sizes, limits and pressure.

mod cgroup;
mod parse;
mod pressure;
mod read;
mod reading;
mod touched;

pub use pressure::PressureError;
pub use read::{MemoryReader, next_look, pressure, read};
pub use reading::{GroupPressure, MemoryReading, MemoryShares, Pressure, Waiting};
pub use touched::{GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join};
