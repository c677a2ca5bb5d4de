//! The node daemon: finds processes, observes them cheaply, looks deeper when it matters.
//!
//! In running order: `arrivals` tells who has come, gone or changed; `attend` decides who is watched; `pool` has them
//! observed by as few kernel sides as possible; `look` reads everything once per interval, judges it by the rules
//! (`trigger`) and the price (`govern`), and publishes the state; `counters` adds up what all have counted;
//! `windows` runs diagnostic windows, each in a process of its own; `orders` answers those who ask; `keeper` writes the
//! history on a thread of its own. `service` is the loop, which `beat` wakes.

mod arrivals;
mod attend;
mod beat;
mod counters;
mod keeper;
mod look;
mod orders;
mod pool;
mod service;
mod tracked;
mod windows;

pub(crate) use counters::other;
pub use service::{Reread, Service, ServiceError, Setup};
