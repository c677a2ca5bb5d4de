//! The history of a node: what the daemon saw, in one `SQLite` file.
//!
//! [`Writer`] is the daemon's: one per file, held by a lock. [`History`] reads, at the same time or later, from the same
//! process or another. What is kept of a state is a [`Moment`]; counters stay counters, and differences, rates and DSR
//! are taken when they are read ([`Tally`]). All calls block: the daemon has a thread for them.
//!
//! Knows nothing of how the daemon finds its processes, and formats nothing: `cli` and `export` do.

mod error;
mod file;
mod history;
mod integers;
mod moment;
mod options;
mod put;
mod replay;
mod tally;
mod tidy;
mod writer;

pub use error::StoreError;
pub use history::{
    CountPoint, History, MemoryOfAll, MemoryPoint, ProcessChange, ProcessRow, ProfileChange,
    ProfileSeries, Readings, Series, Who,
};
pub use moment::{Event, HeapPoint, Moment, ProcessMoment, ProfileCounts, ProfileMoment};
pub use options::{DEFAULT_PATH, DENSE, LEAST_BYTES, Options, SPACING};
pub use replay::replay;
pub use tally::Tally;
pub use writer::{Status, Writer};

#[cfg(test)]
mod tests;
