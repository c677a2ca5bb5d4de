//! The ledger: facts per target, allocator and granule. Pure: no I/O, clock, async or lock.

mod facts;

pub use facts::{
    AllocatorFacts, Began, Ended, GranuleFacts, ProbeFacts, SelfUse, Snapshot, TargetFacts,
};
