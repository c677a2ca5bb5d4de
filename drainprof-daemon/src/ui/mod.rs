//! `drainprof top`: processes × allocators on a terminal, as they are now.
//!
//! [`App`] is the pure part: states and keys go in, pictures and [`Action`]s come out. It reads no clock, does no I/O and
//! asks nothing. What it shows comes from a [`Source`]: a file of recorded states ([`Replay`]), or, in `cli`, a daemon's
//! control socket, its history, whose moments [`past`] turns into states, or an observer of its own, whose reports
//! [`standalone`] does. [`shell`] is the terminal around it.

mod ages;
mod app;
mod detail;
mod draw;
mod keys;
mod numbers;
mod page;
pub mod past;
mod press;
mod replay;
mod rows;
#[cfg(test)]
pub(crate) mod samples;
pub mod shell;
mod sort;
mod source;
pub mod standalone;
#[cfg(test)]
mod tests;

pub use app::{Action, App, Look};
pub use keys::Key;
pub use replay::Replay;
pub use sort::Sort;
pub use source::{Seen, Source, SourceError, Step};
