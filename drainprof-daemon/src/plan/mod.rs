//! From profiles and ELF objects to an attach plan: pure.

mod model;

pub use model::{AttachPlan, Finding, PlannedProbe, Site};
