//! `allocs_without_frees`: objects come, but none ever goes.

use drainprof_profile::Role;

use super::{Case, Found, Rule};
use crate::{Kind, Severity, units};

pub(super) const RULE: Rule = Rule { code: "allocs_without_frees", check };

/// Allocations before the absence of frees says anything.
const MIN_ALLOCS: u64 = 1_000;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let Some(objects) = subject.shown.objects else { continue };
        let profile = &subject.facts.profile;
        let names_free = profile.probes.iter().any(|probe| probe.role == Role::Free);
        let frees = objects.freed + subject.facts.totals.unmatched_frees;
        // Members of a `bulk` granule are freed by its close; none may have come yet.
        if profile.kind != Kind::Bulk && names_free && frees == 0 && objects.allocated >= MIN_ALLOCS
        {
            let message = format!(
                "{} objects allocated and none freed in {}: is the free function inlined, or does the \
                 program free through another one?",
                objects.allocated,
                units::duration(case.report.window.observed())
            );
            found.push(subject.found(RULE.code, Severity::Warning, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    /// Reported for many allocations without any free, matched or not; a single free ends it.
    #[test]
    fn needs_many_and_none() {
        let mut snapshot = samples::drain_snapshot();
        assert!(reported(&RULE, &snapshot).is_empty());
        snapshot.targets[0].allocators[0].totals.freed = 0;
        assert!(reported(&RULE, &snapshot)[0].message.starts_with("20000 objects allocated"));
        snapshot.targets[0].allocators[0].totals.unmatched_frees = 1;
        assert!(reported(&RULE, &snapshot).is_empty());
        snapshot.targets[0].allocators[0].totals.unmatched_frees = 0;
        snapshot.targets[0].allocators[0].totals.allocated = MIN_ALLOCS - 1;
        assert!(reported(&RULE, &snapshot).is_empty());
    }
}
