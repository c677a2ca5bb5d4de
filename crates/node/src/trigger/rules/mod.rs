//! The rules. A new one is a file here, a row in [`RULES`], a field in `Config` and a section in `docs/triggers.md`.

mod anon_faults;
mod anon_high;
mod dsr_drop;
mod dsr_low;
mod faults_high;
mod heap_idle;
mod limit_near;
mod observed_low;
mod pressure_high;
mod retention_slope;
mod rss_high;
mod rss_slope;
mod unmatched_frees;
mod vsz_growth;

pub use self::{
    anon_faults::AnonFaults, anon_high::AnonHigh, dsr_drop::DsrDrop, dsr_low::DsrLow,
    faults_high::FaultsHigh, heap_idle::HeapIdle, limit_near::LimitNear, observed_low::ObservedLow,
    pressure_high::PressureHigh, retention_slope::RetentionSlope, rss_high::RssHigh,
    rss_slope::RssSlope, unmatched_frees::UnmatchedFrees, vsz_growth::VszGrowth,
};
use super::Rule;

/// The rules, those that speak of granules first.
pub const RULES: &[Rule] = &[
    dsr_low::RULE,
    dsr_drop::RULE,
    retention_slope::RULE,
    rss_slope::RULE,
    rss_high::RULE,
    vsz_growth::RULE,
    anon_high::RULE,
    anon_faults::RULE,
    faults_high::RULE,
    heap_idle::RULE,
    limit_near::RULE,
    pressure_high::RULE,
    unmatched_frees::RULE,
    observed_low::RULE,
];

/// What a rule remembers of each profile; those that are gone are forgotten.
#[derive(Debug)]
struct PerProfile<T> {
    known: Vec<(String, T)>,
}

impl<T> Default for PerProfile<T> {
    fn default() -> Self {
        Self { known: Vec::new() }
    }
}

impl<T: Default> PerProfile<T> {
    /// Calls `each` for every profile with what is remembered of it.
    fn each<R>(
        &mut self,
        profiles: &[super::ProfileSignals],
        mut each: impl FnMut(&mut T, &super::ProfileSignals) -> R,
    ) -> Vec<R> {
        let profiles = &profiles[..profiles.len().min(super::signals::MAX_PROFILES)];
        self.known.retain(|(name, _)| profiles.iter().any(|seen| seen.profile == *name));
        let mut results = Vec::with_capacity(profiles.len());
        for profile in profiles {
            let place = self.known.iter().position(|(name, _)| *name == profile.profile);
            let place = place.unwrap_or_else(|| {
                self.known.push((profile.profile.clone(), T::default()));
                self.known.len() - 1
            });
            results.push(each(&mut self.known[place].1, profile));
        }
        results
    }
}
