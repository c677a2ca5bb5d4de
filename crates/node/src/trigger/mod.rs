//! Triggers: rules that watch a process's signals, and when a diagnostic window may be opened.
//!
//! Pure: no I/O and no clock. The daemon gives an [`Engine`] per process its [`Signals`] once per look and
//! gets the states of all rules; what wants a window asks [`Windows`]. Each rule is a file in `rules/` with a
//! row in [`RULES`]. Rules work on differences over windows of time, never on totals since the beginning, so
//! that an old sin neither hides a new one nor is told for ever. What each looks for, and why, is in
//! `docs/triggers.md`.

mod config;
mod course;
mod engine;
mod rule;
mod rules;
mod signals;
mod window;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use config::Config;
pub use drainprof_report::values::{Bytes, Share, Time};
pub use engine::{Engine, RuleState, State, Want};
pub use rule::Rule;
pub use rules::{
    AnonFaults, AnonHigh, DsrDrop, DsrLow, FaultsHigh, HeapIdle, LimitNear, ObservedLow,
    PressureHigh, RULES, RetentionSlope, RssHigh, RssSlope, UnmatchedFrees, VszGrowth,
};
pub use signals::{Closes, Objects, ProfileSignals, Signals, Slope};
pub use window::{By, Grant, Refused, WindowGrowth, Windows};
