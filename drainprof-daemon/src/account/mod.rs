//! The ledger: facts per target, allocator and granule. Pure: no I/O, clock, async or lock.

mod facts;
mod flows;
mod windows;

pub use facts::{
    AllocatorFacts, Began, Duty, DutyFacts, Ended, GranuleFacts, ProbeFacts, SelfUse, Snapshot,
    TargetFacts,
};
pub use flows::{Flow, Flows, History, Moment};
pub use windows::Windows;
