//! What the daemon knows of its machine at one moment, as plain data: what shows it (metrics, HTTP, the control
//! socket, the terminal UI) or keeps it (the history) reads a [`NodeState`] and asks by a [`Request`].

mod clock;
pub mod config;
pub mod daemon;
pub mod govern;
pub mod history;
mod labels;
mod lock;
mod memory;
#[cfg(test)]
mod receiver;
mod request;
mod section;
pub mod serve;
mod state;
pub mod store;
pub mod trigger;

pub use labels::MAX_LABEL_CHARS;
pub use memory::MemoryWatch;
pub use request::{Answer, Asked, Refusal, Request};
pub use state::{
    Alert, AlertState, Counts, Heaps, LabelSet, Labels, NodeState, NodeTarget, Outcome, PinDelays,
    Pushed, SCHEMA, Shares, WindowRecord, WorstSite,
};
