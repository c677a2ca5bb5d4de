//! The only place that knows aya: loading the kernel side, attaching, reading.
//!
//! `Session` owns the loaded object. Probes do nothing until their process is entered in `TARGETS`
//! ([`Session::arm`]), so a process is observed by all of its probes from one instant on, and is never
//! half attached. When the session is dropped, or its process dies in any way, the kernel removes all.

mod attach;
mod config;
mod detach;
mod diagnostics;
mod empty;
mod error;
mod event;
mod features;
mod files;
mod grace;
mod granules;
mod growth;
mod link;
mod load;
mod location;
mod locks;
mod memory;
mod multi;
mod mutex;
mod names;
mod nested;
mod objects;
mod obstacles;
mod paths;
mod placing;
mod private_stack;
mod read;
mod removal;
mod session;
mod sizes;
mod slots;
mod specs;
mod syscall;
mod targets;

pub use config::{Arming, GrowthOffsets, Offsets, SessionConfig};
pub use detach::Detaching;
pub use empty::EmptyProbes;
pub use error::BpfError;
pub use features::self_test;
pub use files::OpenFiles;
pub use grace::programs_have_ended;
pub use growth::Growth;
pub use link::Leftover;
pub use locks::{Holder, can_check};
pub use obstacles::{Obstacles, is_detach_put_off, obstacles};
pub use paths::{LiveObject, PathRecord, StackSnapshot, Stacks};
pub use private_stack::PrivateStacks;
pub use read::{GranuleRecord, SeriesRecord};
pub use session::Session;
pub use sizes::Sizes;

/// The SHA-256 of what the kernel side is built from, in hexadecimal digits.
pub const SOURCES_SHA256: &str = include_str!("../../ebpf/drainprof.bpf.digest");
