//! Observing processes: profiles are matched, probes placed, lifecycle followed, facts collected.
//!
//! [`Observer`] owns the loaded kernel side and everything that is known of the targets. [`Observation`] is the loop around
//! one: events, stacks, timers, ends of processes, duty cycles, names. `attach`, `run`, `top` and `profile check` use it;
//! the node daemon drives a pool of observers.

pub mod allocations;
mod cost;
mod curves;
pub mod discover;
pub mod draft;
mod fallback;
mod flows;
mod growth;
mod lifecycle;
pub mod names;
pub mod observation;
mod observer;
mod pages;
mod paths;
mod pins;
mod place;
mod planning;
mod programs;
mod quiesce;
mod reclaim;
mod release;
mod sites;
mod snapshot;
pub mod structures;
pub mod why;
mod windows;

pub use observation::Observation;
pub use observer::{Ending, ObserveError, Observer, ObserverOptions};
use pins::PathNumbers;
pub use quiesce::quiesce;
pub use snapshot::self_use;
pub use windows::Resting;
