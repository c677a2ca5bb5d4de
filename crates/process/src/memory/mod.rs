//! Memory of processes and control groups, as the kernel reports it: sizes, limits and pressure.

mod cgroup;
mod parse;
mod pressure;
mod read;
mod reading;
mod touched;

pub use pressure::PressureError;
pub use read::{MemoryReader, SharesRead, WithPressure, next_look, pressure, read};
pub use reading::{GroupPressure, MemoryReading, MemoryShares, Pressure, Waiting};
pub use touched::{GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join};

/// Reads a text as every kind that this module reads; whether it is any of them. For fuzzing.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn is_any(text: &str) -> bool {
    let nowhere = std::path::Path::new("/nonexistent");
    let _ = cgroup::Groups::default().look(&cgroup::Mounts::parse(text, nowhere), text);
    let numbers = [parse::faults(text), parse::rollup(text)];
    parse::status(text).is_some()
        || numbers.iter().any(Option::is_some)
        || pressure::parse(text).is_some()
}
