//! From a profile and a process to counting probes: plan, costs, attach, read.
//!
//! `bpf` is the only module that knows aya. Nothing here knows reports or formats text for users.

pub mod bpf;
pub mod calibrate;
pub mod kernel;
pub mod launch;
pub mod plan;
