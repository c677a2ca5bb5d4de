//! `closes_only`: closes were counted alone, of a kind whose closes tell nothing by themselves.

use drainprof_profile::Level;

use super::{Case, Found, Rule};
use crate::{Kind, Severity};

pub(super) const RULE: Rule = Rule { code: "closes_only", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let kind = subject.facts.profile.kind;
        if subject.facts.level == Level::Close && kind != Kind::Drain {
            let message = format!(
                "level close counts the closes of kind {}, and judges nothing: which granules stay open is not seen; use \
                 --level boundary",
                kind.name()
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

    /// Reported of a pool whose closes were counted alone, and of nothing whose closes are judged.
    #[test]
    fn judges_nothing() {
        let close = |mut snapshot: crate::facts::Snapshot| {
            snapshot.targets[0].allocators[0].level = Level::Close;
            reported(&RULE, &snapshot)
        };
        let of_bulk = close(samples::bulk_snapshot());
        assert!(of_bulk[0].message.contains("of kind bulk, and judges nothing"));
        assert!(close(samples::boundary_snapshot()).is_empty());
        assert!(reported(&RULE, &samples::bulk_snapshot()).is_empty());
    }
}
