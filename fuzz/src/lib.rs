//! Hostile bytes for everything that drainprof parses: files, memory and texts of processes, profiles, configurations,
//! reports, requests.
//!
//! `targets` has a row per parser. [`run()`] feeds it with its seeds and with what [`Mutator`] makes of them, and watches
//! time and memory. `tests/corpus.rs` does so with a hundred inputs each; `cargo xtask fuzz` for longer.

mod change;
mod cost;
mod mutate;
mod run;
pub mod targets;

pub use cost::{Bound, Cost, cost};
pub use mutate::{Change, Mutator};
pub use run::{Ran, Wanted, feed, run};
