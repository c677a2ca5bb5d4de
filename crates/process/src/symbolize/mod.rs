//! Symbols: from addresses of processes to functions, files and lines.
//!
//! While a process lives, an address is normalised to a file and an offset in it ([`Space`](crate::Space)), so that
//! processes that have ended and objects that were unloaded can still be named. Names are looked for
//! on a thread (`resolve`) that asks a process of its own (`helper`, `worker`), because the libraries that read DWARF
//! believe the files they read: a hostile one costs that process, never drainprof. Called by `cli`, just before a
//! report is built; nothing here runs on the way of an event.

mod helper;
mod perf_map;
mod resolve;
mod root;
mod scope;
mod wire;
mod worker;

pub use helper::{COMMAND, Helper, HelperError};
pub use perf_map::open as open_perf_map;
pub use resolve::{Done, Job, Within, work};
pub use root::{Root, module, module_offset, open};
pub use wire::{MAX_ADDRESSES, Name};
pub use worker::serve;
