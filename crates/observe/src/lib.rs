//! Observing processes: profiles are matched, probes placed, lifecycle followed, facts collected.
//!
//! [`Side`] owns a loaded kernel side and everything that is known of its targets. A [`goal::Goal`] says what is to be
//! observed; an [`engine::Engine`] pursues it with one kernel side: events, stacks, timers, launched commands, ends of
//! processes, signals, budget, duty cycles, names. The node daemon drives a pool of kernel sides.

mod account;
pub mod allocations;
pub mod discover;
pub mod draft;
pub mod engine;
mod error;
pub mod goal;
pub mod names;
mod quiesce;
mod side;
pub mod structures;
pub mod why;

pub use account::Account;
pub use error::ObserveError;
pub use quiesce::quiesce;
pub use side::{Ending, Side, clock::self_use, options::SideOptions};
