//! The only place that knows aya: loading the kernel side, attaching, reading.
//!
//! `Session` owns the loaded object. Probes do nothing until their process is entered in `TARGETS`
//! ([`Session::arm`]), so a process is observed by all of its probes from one instant on, and is never
//! half attached. When the session is dropped, or its process dies in any way, the kernel removes all.

mod attach;
mod detach;
mod diagnostics;
mod empty;
mod error;
mod event;
mod features;
mod grace;
mod granules;
mod growth;
mod load;
mod locks;
mod memory;
mod multi;
mod names;
mod nested;
mod objects;
mod paths;
mod placing;
mod private_stack;
mod read;
mod removal;
mod session;
mod sizes;
mod specs;
mod syscall;
mod targets;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use attach::OpenFiles;
pub use detach::{Detaching, Leftover};
pub use empty::EmptyProbes;
pub use error::BpfError;
pub use features::self_test;
pub use grace::programs_have_ended;
pub use growth::{Growth, GrowthOffsets};
pub use locks::{Holder, can_check};
pub use paths::{LiveObject, PathRecord, StackSnapshot, Stacks};
pub use placing::{Obstacles, is_detach_put_off, obstacles};
pub use private_stack::PrivateStacks;
pub use read::{GranuleRecord, SeriesRecord};
pub use session::{Arming, Offsets, Session, SessionConfig};
pub use sizes::Sizes;

/// The SHA-256 of what the kernel side is built from, in hexadecimal digits.
pub const SOURCES_SHA256: &str = include_str!("../../ebpf/drainprof.bpf.digest");

/// What is locked, though a thread may have panicked with it: it is whole after each step.
fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
