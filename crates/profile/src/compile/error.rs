//! Why a probe cannot be compiled.

use crate::{
    keys::Key,
    model::{Probe, Span},
};

/// Why a probe cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot compile the {role} probe at {at}{}: {message}", named(*.key))]
pub struct CompileError {
    /// The probe's role.
    pub role: &'static str,
    /// Where the probe goes.
    pub at: String,
    /// The key whose expression it is; `None` where all of them together are too much.
    pub key: Option<Key>,
    /// What went wrong and what to do.
    pub message: String,
    /// The place in the profile's text, where one name is to blame.
    pub span: Option<Span>,
}

fn named(key: Option<Key>) -> String {
    key.map_or_else(String::new, |key| format!(", `{key}`"))
}

/// An error before it is known whose it is.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) message: String,
    pub(super) span: Option<Span>,
}

impl From<String> for Refusal {
    fn from(message: String) -> Self {
        Self { message, span: None }
    }
}

impl CompileError {
    /// The error of a probe, once it is known which of its keys is to blame.
    pub(super) fn of(probe: &Probe, key: Option<Key>, refusal: Refusal) -> Self {
        Self {
            role: probe.role.name(),
            at: probe.at.to_string(),
            key,
            message: refusal.message,
            span: refusal.span,
        }
    }
}
