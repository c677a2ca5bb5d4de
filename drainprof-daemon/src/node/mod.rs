//! What the daemon knows of its machine at one moment, as plain data: whoever shows it (metrics, HTTP, the control
//! socket, the terminal UI) or keeps it (the history) reads a [`NodeState`] and asks by a [`Request`].

mod labels;
mod request;
mod state;

pub use labels::MAX_LABEL_CHARS;
pub use request::{Answer, Asked, Refusal, Request};
pub use state::{
    Alert, AlertState, Counts, Labels, NodeState, NodeTarget, Outcome, PinDelays, SCHEMA,
    WindowRecord, WorstSite,
};
