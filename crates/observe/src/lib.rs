//! Observing processes: profiles are matched, probes placed, lifecycle followed, facts collected.
//!
//! [`Observer`] owns the loaded kernel side and everything that is known of the targets. It does no
//! waiting of its own ([`settle()`] is for those who drive it): `cli` and `daemon` drive it with events, ticks and the
//! ends of processes.

pub mod allocations;
mod curves;
pub mod discover;
mod flows;
mod growth;
mod lifecycle;
pub mod names;
mod observer;
mod paths;
mod pins;
mod place;
mod price;
mod release;
mod relieve;
mod retreat;
mod settle;
mod sites;
mod snapshot;
mod windows;

pub use observer::{Ending, ObserveError, Observer, ObserverOptions};
pub use pins::{PathNumbers, Telling};
pub use settle::settle;
pub use snapshot::self_use;
pub use windows::Resting;
