//! The ledger: facts per target, allocator and granule. Pure: no I/O, clock, async or lock.

mod events;
mod flows;
mod frame;
mod growth;
mod mappings;
mod sites;
mod snapshot;
mod survivors;
mod windows;

pub use drainprof_process::{
    Frame, Inlined, Module, PathEnd,
    memory::{GranuleRange, GranuleState, Touched, TouchedKey, TouchedMemory, join},
};
pub use events::{EventFacts, Names, PathPins};
pub use flows::{Flow, Flows, History, Moment};
pub use frame::{Frames, SymbolFacts};
pub use growth::{FaultTotals, GrowthFacts, PathGrowth};
pub use mappings::{MapTotals, MappingLedger};
pub use sites::{CallPath, HeldSum, Lateness, LiveObject, SiteFacts};
pub use snapshot::{AllocatorFacts, Duty, GranuleFacts, ProbeFacts, Snapshot, TargetFacts};
pub use survivors::Survivors;
pub use windows::Windows;

pub use crate::model::{Began, Ended, SelfUse};
