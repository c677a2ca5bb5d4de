//! From profiles and ELF objects to an attach plan: pure.
//!
//! [`mod@matching`] says which objects of a process a profile is about, [`mod@build`] where each of its probes
//! goes. Neither opens a process or attaches anything. The engine and `profile check` call them
//! with a [`drainprof_process::Image`] and hand the plan to `bpf`.

pub mod build;
mod candidates;
mod compile;
pub mod cost;
mod either;
mod error;
mod ifunc;
pub mod matching;
mod model;
mod resolver;
pub mod site;
mod sites;
mod structors;
mod treatment;
mod usdt;
mod usdt_site;
mod versions;

pub use build::{Request, build, plan};
pub use compile::{CompileFn, WantedFn, compile};
pub use drainprof_profile::Finding;
pub use error::PlanError;
pub use ifunc::ifuncs;
pub use matching::{Mismatch, NoMatch, Tried, match_objects};
pub use model::{AttachPlan, Group, Member, PlanRow, PlannedProbe, Site};
pub use resolver::ObjectResolver;
pub use sites::{Chooser, Sites, fall_back, needs};
pub use usdt_site::UsdtSite;

#[cfg(test)]
mod testing;
