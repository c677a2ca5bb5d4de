//! The node daemon: finds processes, observes them cheaply, looks deeper when it matters.
//!
//! In running order: `arrivals` tells who has come, gone or changed; `attend` decides who is watched; `pool` has them
//! observed by as few kernel sides as possible; `look` reads everything once per interval, judges it by the rules
//! (`trigger`) and the price (`govern`), and publishes the state; `sums` keeps the counts of those that have gone;
//! `windows` runs diagnostic windows, each in a process of its own; `orders` answers those who ask; `keeper` writes the
//! history on a thread of its own. `service` is the loop, which `beat` wakes.

mod arrivals;
mod attend;
mod beat;
mod keeper;
mod look;
mod orders;
mod pool;
mod service;
mod sums;
mod tracked;
mod windows;

pub use service::{Reread, Service, ServiceError, Setup};
