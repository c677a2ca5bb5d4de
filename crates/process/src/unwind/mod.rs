//! Call paths: from a frame to its caller's, by the tables that compilers leave for exceptions.
//!
//! The kernel side unwinds stacks itself, by rules that it is taught ([`drainprof_common::unwind`]). Here is where
//! these come from: [`Unwinder`] reads unwind tables (`cfi`), says the rule of a code address, and walks a
//! snapshot of a stack that the kernel side could not unwind yet, collecting the rules of all frames on the way.
//! It keeps no path and knows no eBPF; names of addresses are the business of `symbolize`. Called by `watch`.
//!
//! `meet` reads `/proc` (0.3 ms), and tables are read when a path first comes through their object (libc: 0.3 ms). A path
//! of 20 frames takes 7 µs then, in a release build.

mod cfi;
mod expression;
mod objects;
mod space;
mod translate;
mod walk;

pub use walk::{Snapshot, Unwinder, UnwinderOptions, Walk};

#[cfg(test)]
mod tests;
