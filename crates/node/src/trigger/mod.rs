//! Triggers: rules that watch a process's signals, and when a diagnostic window may be opened.
//!
//! Pure: no I/O and no clock. The daemon gives an [`Engine`] per process its [`Signals`] once per cycle and gets
//! the states of all rules; what wants a window asks [`Windows`]. Each rule is a file in `rules/` with a row in
//! [`RULES`]. Rules compare changes over a time, never totals, so a past problem neither masks new ones nor alerts for
//! ever. `docs/triggers.md` has what each searches for, and why.

mod engine;
mod per_profile;
mod recent;
mod rule;
mod rules;
mod signals;
mod window;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use engine::{Engine, RuleState, State, Want};
pub use rules::*;
pub use signals::{Closes, Objects, ProfileSignals, Signals, Slope};
pub use window::{By, Grant, Refused, Windows};
