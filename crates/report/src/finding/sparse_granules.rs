//! `sparse_granules`: most of what the open granules of a `slab` allocator hold is free space.

use super::{Case, Found, Rule};
use crate::{Severity, units};

pub(super) const RULE: Rule = Rule { code: "sparse_granules", check };

/// Below this it is not worth a word: so much is half free in any process.
const WORTH: u64 = 1 << 20;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let Some(census) = &subject.shown.census else { continue };
        let (Some(granules), Some(bytes)) = (census.compactable_granules, census.compactable_bytes)
        else {
            continue;
        };
        let known = census.granules_open.saturating_sub(census.unknown);
        if bytes < WORTH || granules.saturating_mul(2) < known {
            continue;
        }
        let live = units::bytes(census.live_bytes.unwrap_or_default());
        let message = format!(
            "{known} granules are held by {} objects of {live} in all: {granules} of them ({}, {}) would come \
             free if these lay side by side. No object can move, so they stay until all of their own are freed",
            census.live_objects,
            units::bytes(bytes),
            units::percent(granules as f64 / known.max(1) as f64),
        );
        found.push(subject.found(RULE.code, Severity::Warning, message));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::reported, *};
    use crate::samples;

    /// Reported with numbers where it is worth it; silent below a megabyte, and where granules are full.
    #[test]
    fn reports_what_compaction_would_free() {
        let snapshot = samples::pages_snapshot();
        assert!(reported(&RULE, &snapshot).is_empty());
        let mut large = snapshot;
        let facts = &mut large.targets[0].allocators[0];
        let mut profile = (*facts.profile).clone();
        profile.granule_bytes = Some(2 << 20);
        facts.profile = Arc::new(profile);
        let found = reported(&RULE, &large);
        assert_eq!(found.len(), 1);
        let start = "100 granules are held by 150 objects of 14.6 KiB in all: 99 of them";
        assert!(found[0].message.starts_with(start), "{}", found[0].message);
        for granule in &mut large.targets[0].allocators[0].granules {
            granule.live_bytes = 2 << 20;
        }
        assert!(reported(&RULE, &large).is_empty());
    }
}
