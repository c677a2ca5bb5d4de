//! Where states come from.

use std::os::fd::BorrowedFd;

use drainprof_node::{Answer, NodeState, Refusal, Request};

/// Where states of a node come from, and requests go.
pub trait Source {
    /// What it is, for the title: `daemon`, `stand-alone`.
    fn name(&self) -> &str;

    /// Descriptors that become readable when [`Source::poll`] should be called before its time.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// The latest state, if there is a new one. Is called several times a second, and must not take long.
    fn poll(&mut self) -> Result<Option<NodeState>, SourceError>;

    /// Asks it for something.
    fn ask(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError>;

    /// Goes to another state; `None`: it has but one, the present.
    fn step(&mut self, _step: Step) -> Result<Option<Seen>, SourceError> {
        Ok(None)
    }

    /// Answers to earlier requests that have come since: a window that has ended, and why.
    fn reported(&mut self) -> Option<String> {
        None
    }
}

/// A way through the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// To the state before.
    Back,
    /// To the next.
    Forth,
    /// Ten minutes back, or to the first.
    FarBack,
    /// Ten minutes ahead, or to the last.
    FarForth,
}

/// A state of the past.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// The state.
    pub state: NodeState,
    /// The one before it, for the rates in between.
    pub before: Option<NodeState>,
}

/// Why there is no state or no answer. The screen shows it, and the source is tried again.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct SourceError {
    what: String,
    #[source]
    source: Option<std::io::Error>,
}

impl SourceError {
    /// With what was tried on what, and what to do.
    #[must_use]
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), source: None }
    }

    /// The same, because of another error.
    #[must_use]
    pub fn because(what: impl Into<String>, source: std::io::Error) -> Self {
        Self { what: what.into(), source: Some(source) }
    }

    /// It and its cause in one line.
    #[must_use]
    pub fn in_full(&self) -> String {
        match &self.source {
            Some(source) => format!("{}: {source}", self.what),
            None => self.what.clone(),
        }
    }
}
