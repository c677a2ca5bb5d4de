//! What this kernel, and our standing on it, allow.
//!
//! Pure checks over a [`HostView`], so that every outcome can be tested on any machine; [`LiveHost`] is
//! the real one. Nothing here loads a BPF program: the self-test that does lives with the loader, which
//! appends its own [`Check`]s. Features are detected by looking for them, never by the version number.
//!
//! Called by `cli::doctor`, and by every command that attaches, before it does.

mod caps;
mod check;
mod checks;
mod format;
mod host;
mod program;
mod render;
mod tracefs;

#[cfg(test)]
mod tests;

pub use caps::{Capability, missing_privileges};
pub use check::{Check, Class, Status, Verdict, verdict};
pub use checks::{
    ADDRESS_SPACE_LOCKS, CHECK_NAMES, Events, MAPPING_BEGINS, MAPPING_ENDS, MemoryLimit,
    NEEDED_TRACEPOINTS, PRIVATE_STACKS, RSS_CHANGES, SELF_TEST, SYMBOL_HELPER, cpus_online,
    growth_tracepoints, memory_limit, run,
};
pub use format::{Field, Format, FormatError};
pub use host::{HostView, LiveHost};
pub use program::ProgramStatistics;
pub use render::{render_json, render_programs, render_text};
pub use tracefs::{Tracefs, TracefsError, ensure_mounted};
