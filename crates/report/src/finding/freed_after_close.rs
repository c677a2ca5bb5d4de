//! `freed_after_close`: the profile says `bulk`, but the program frees members after their granule's close.
//!
//! A close that frees its members leaves nothing to free. So their frees prove another kind: the close only gives
//! them up, the granule lives on until the last has gone, and what was reported as healthy is a pin.

use super::{Case, Found, Rule};
use crate::{Kind, Severity, units};

pub(super) const RULE: Rule = Rule { code: "freed_after_close", check };

/// Fewer may be ids that were given out again, unseen.
const FEW: u64 = 20;
/// The least share of what the closes have freed.
const MIN_SHARE: f64 = 0.01;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let (profile, totals) = (&subject.facts.profile, &subject.facts.totals);
        let (late, in_bulk) = (totals.freed_after_close, totals.freed_in_bulk);
        if profile.kind == Kind::Bulk && late >= FEW && late as f64 >= MIN_SHARE * in_bulk as f64 {
            let message = format!(
                "{late} objects were freed after the close of their granule, {} of those that its close \
                 should have freed: a close frees no members here; in the profile, write kind = \"drain\"",
                units::percent(late as f64 / in_bulk.max(late) as f64)
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

    /// Reported of a bulk profile from the twentieth on, if they are a hundredth of what closes have freed.
    #[test]
    fn needs_some() {
        let mut snapshot = samples::bulk_snapshot();
        assert!(reported(&RULE, &snapshot).is_empty());
        let mut with = |late, in_bulk| {
            let totals = &mut snapshot.targets[0].allocators[0].totals;
            (totals.freed_after_close, totals.freed_in_bulk) = (late, in_bulk);
            reported(&RULE, &snapshot)
        };
        assert!(with(FEW - 1, 100).is_empty() && with(50, 10_000).is_empty());
        let reported = with(400, 1000);
        assert_eq!(
            reported[0].message,
            "400 objects were freed after the close of their granule, 40.0 % of those that its close should have \
             freed: a close frees no members here; in the profile, write kind = \"drain\""
        );
    }
}
