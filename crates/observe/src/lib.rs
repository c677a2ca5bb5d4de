//! Observing processes: profiles are matched, probes placed, lifecycle followed, facts collected.
//!
//! [`Side`] owns a loaded kernel side and everything that is known of its targets. [`Observation`] is the loop around
//! one: events, stacks, timers, ends of processes, duty cycles, names. `attach`, `run`, `top` and `profile check` use it;
//! the node daemon drives a pool of kernel sides.

mod account;
pub mod allocations;
pub mod discover;
pub mod draft;
mod error;
pub mod names;
pub mod observation;
mod quiesce;
mod side;
pub mod structures;
pub mod why;

pub use account::Account;
pub use error::ObserveError;
pub use observation::Observation;
pub use quiesce::quiesce;
pub use side::{Ending, Side, clock::self_use, options::SideOptions};
