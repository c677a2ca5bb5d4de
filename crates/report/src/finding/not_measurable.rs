//! `not_measurable`: of a profile's granules nothing can be said in this process.

use super::{Case, Found, Rule, finding};
use crate::{Finding, Severity};

pub(super) const RULE: Rule = Rule { code: "not_measurable", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for (index, target) in case.report.targets.iter().enumerate() {
        for allocator in &target.allocators {
            let Some(because) = &allocator.not_measurable else { continue };
            let finding = Finding {
                profile: Some(allocator.profile.clone()),
                ..finding(RULE.code, Severity::Error, format!("not measurable, because {because}"))
            };
            // Instances of a profile share its probes, and the reason.
            if !found.iter().any(|other| other.target == Some(index) && other.finding == finding) {
                found.push(Found { target: Some(index), finding });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::{facts::AllocatorFacts, samples};

    /// Once for each profile, and not at all where verdicts stand.
    #[test]
    fn told_once() {
        let mut snapshot = samples::drain_snapshot();
        assert!(reported(&RULE, &snapshot).is_empty());
        let allocators = &mut snapshot.targets[0].allocators;
        allocators[0].not_measurable = Some("objects lie in caches".to_owned());
        let other = AllocatorFacts { instance: 7, ..allocators[0].clone() };
        allocators.push(other);
        let found = reported(&RULE, &snapshot);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].message, "not measurable, because objects lie in caches");
    }
}
