//! Symbols: from addresses of processes to functions, files and lines.
//!
//! While a process lives, an address is normalised to a file and an offset in it ([`Space`](crate::Space)), so that
//! processes that have ended and objects that were unloaded can still be named. Names are searched for
//! on a thread (`resolve`) that asks a process of its own (`helper`, `worker`). There blazesym reads the files of an
//! object (`object`), which it believes: a hostile one costs that process, never drainprof, and reaches nothing from
//! there (`sandbox`). Called by `cli`, just before a report is built; nothing here runs on the way of an event.

mod correct;
mod helper;
mod lent;
mod object;
mod parts;
mod perf_map;
mod resolve;
mod root;
mod sandbox;
#[cfg(test)]
mod tests;
mod wire;
mod worker;

pub use helper::{COMMAND, Confinement, Helper, HelperError};
#[cfg(any(test, feature = "testing"))]
pub(crate) use object::named as named_in;
#[cfg(any(test, feature = "testing"))]
pub(crate) use perf_map::names as names_in_perf_map;
pub use perf_map::open as open_perf_map;
pub use resolve::{Done, Job, Within, work};
pub use root::{Root, module, module_offset, open};
pub use wire::{Answer, MAX_ADDRESSES, Name, Part};
pub use worker::serve;
