//! What drainprof's kernel side and its user space agree on.
//!
//! Everything that both sides share is declared here once: probe specs and the byte code of their
//! expressions, map keys and values, ring-buffer events, and the list of losses. The decisions that the
//! kernel programs take (the interpreter, the granule's state word and its transitions, histogram buckets) are plain
//! functions here too, so that they are tested on the host.
//!
//! The crate is `no_std`, has no padding in any shared type (checked by `bytemuck`'s derive), and reads
//! no clock, map or memory of its own.
#![no_std]
#![forbid(unsafe_code)]
#![allow(
    clippy::inline_always,
    reason = "in a BPF program a call is expensive: the verifier follows it again on every path"
)]

#[cfg(test)]
extern crate std;

pub mod event;
pub mod granule;
pub mod growth;
pub mod hist;
pub mod interp;
pub mod loss;
pub mod maps;
pub mod mode;
pub mod paths;
pub mod sample;
pub mod spec;
pub mod state;
pub mod table;
pub mod transition;
pub mod unwind;
