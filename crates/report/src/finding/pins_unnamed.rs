//! `pins_unnamed`: level `stacks`, but whose objects are live at a close is not known.

use drainprof_profile::{Key, Level, Profile, Role};

use super::{Case, Found, Rule, Subject};
use crate::{Kind, Severity};

pub(super) const RULE: Rule = Rule { code: "pins_unnamed", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(&subject)).collect()
}

fn judge(subject: &Subject<'_>) -> Option<Found> {
    let profile = &subject.facts.profile;
    // A bulk close has no pin; its objects need no ids.
    let concerned = subject.facts.level == Level::Stacks && profile.kind != Kind::Bulk;
    // Where live objects are counted, they are known.
    let known = subject.facts.sites.iter().any(|site| site.live.is_some());
    if !concerned || known || names_objects(profile) {
        return None;
    }
    let message = "the profile gives objects no ids, so it is not known whose objects are live at a close: \
                   no call path has pins, only what it allocates. Add object = \"…\" (the object's address \
                   or handle) to its alloc and free probes"
        .to_owned();
    Some(subject.found(RULE.code, Severity::Warning, message))
}

/// Whether a free says which allocation it ends.
fn names_objects(profile: &Profile) -> bool {
    let named = |role: &dyn Fn(Role) -> bool| {
        profile.probes.iter().any(|probe| role(probe.role) && probe.has(Key::Object))
    };
    named(&|role| role == Role::Alloc) && named(&|role| matches!(role, Role::Free | Role::Realloc))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{super::reported, *};
    use crate::samples;

    /// Reported where a free does not name its object, with what to add; not at other levels, not for pools
    /// that are closed with their objects.
    #[test]
    fn objects_without_ids() {
        let mut snapshot = samples::stacks_snapshot();
        assert!(reported(&RULE, &snapshot).is_empty());
        let facts = &mut snapshot.targets[0].allocators[0];
        let mut profile = (*facts.profile).clone();
        for probe in profile.probes.iter_mut().filter(|probe| probe.role == Role::Free) {
            probe.expressions.remove(&Key::Object);
        }
        facts.profile = Arc::new(profile);
        for site in &mut facts.sites {
            site.live = None;
        }
        let found = reported(&RULE, &snapshot);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("Add object ="), "{}", found[0].message);
        snapshot.targets[0].allocators[0].level = Level::Objects;
        assert!(reported(&RULE, &snapshot).is_empty());
        assert!(reported(&RULE, &samples::holders_snapshot()).is_empty());
    }
}
