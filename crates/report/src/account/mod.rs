//! The ledger: facts per target, allocator and granule. Pure: no I/O, clock, async or lock.

mod courses;
mod curve;
mod facts;
mod flows;
mod frame;
mod sites;
mod windows;

pub use courses::{COURSES, Course, Courses, SiteNow};
pub use curve::{CURVE_POINTS, Curve, CurvePoint, FIRST_INTERVAL, HeldBytes, held_bytes};
pub use drainprof_process::{Frame, Inlined, Module, PathEnd};
pub use facts::{
    AllocatorFacts, Began, Duty, DutyFacts, Ended, GranuleFacts, ProbeFacts, SelfUse, Snapshot,
    TargetFacts,
};
pub use flows::{Flow, Flows, History, Moment};
pub use frame::{Frames, SymbolFacts};
pub use sites::{CallPath, HeldSum, Lateness, SiteFacts};
pub use windows::Windows;
