//! `unmatched_frees_high`: frees and allocations do not match each other.

use super::{Case, Found, Rule, Subject, finding};
use crate::{
    account::Began,
    report::{Weight, units},
};
use drainprof_common::loss::Loss;

pub(super) const RULE: Rule = Rule {
    code: "unmatched_frees_high",
    what: "more than 1 % of the frees are of objects whose allocation was not seen",
    check,
};

/// The share of all frees from which on it is told.
const SHARE: f64 = 0.01;

fn check(case: &Case<'_>) -> Vec<Found> {
    if case.snapshot.sample > 1 {
        // Most objects belong to granules that are not in the sample.
        return Vec::new();
    }
    let mut found: Vec<_> = case.subjects().filter_map(|subject| judge(&subject)).collect();
    // A free of an unknown object cannot always be given to an allocator.
    let (mut freed, mut placed) = (0, 0);
    for subject in case.subjects() {
        freed += subject.facts.totals.freed;
        placed += subject.facts.totals.unmatched_frees;
    }
    let nowhere = case.snapshot.losses[Loss::UnmatchedFree as usize].saturating_sub(placed);
    if let Some(share) = high(freed + placed, nowhere) {
        let message = format!(
            "{nowhere} frees ({} of all) are of objects that belong to no allocator seen: the profile \
             misses an alloc function, or the objects are older than the attach",
            units::percent(share)
        );
        found.push(Found { target: None, finding: finding(RULE.code, Weight::Warning, message) });
    }
    found
}

fn judge(subject: &Subject<'_>) -> Option<Found> {
    let totals = &subject.facts.totals;
    let share = high(totals.freed, totals.unmatched_frees)?;
    let remark = match subject.target.began {
        Began::Attached => "objects older than the attach, or the profile misses an alloc function",
        Began::FromStart | Began::Forked(_) | Began::Exec(_) => {
            "the profile misses an alloc function, or the target frees twice"
        }
    };
    let message = format!(
        "{} of {} frees ({}) are of objects whose allocation was not seen: {remark}; {} allocations \
         were seen",
        totals.unmatched_frees,
        totals.freed + totals.unmatched_frees,
        units::percent(share),
        totals.allocated,
    );
    Some(subject.found(RULE.code, Weight::Warning, message))
}

/// The share of the unmatched in all frees, where it is high.
fn high(matched: u64, unmatched: u64) -> Option<f64> {
    let share = unmatched as f64 / (matched + unmatched) as f64;
    (unmatched > 0 && share > SHARE).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::super::told;
    use super::*;
    use crate::report::samples;

    /// Up to 1 % is silent, more is told with both numbers; what belongs to no allocator is told apart.
    #[test]
    fn asymmetry_is_told() {
        let mut snapshot = samples::drain_snapshot();
        let totals = &mut snapshot.targets[0].allocators[0].totals;
        (totals.freed, totals.allocated, totals.unmatched_frees) = (99, 2573, 1);
        snapshot.losses[Loss::UnmatchedFree as usize] = 1;
        assert!(told(&RULE, &snapshot).is_empty());
        snapshot.targets[0].allocators[0].totals.unmatched_frees = 2;
        snapshot.losses[Loss::UnmatchedFree as usize] = 2;
        let found = told(&RULE, &snapshot);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.starts_with("2 of 101 frees (1.98 %)"), "{}", found[0].message);
        snapshot.losses[Loss::UnmatchedFree as usize] = 200;
        let found = told(&RULE, &snapshot);
        assert!(found[1].message.starts_with("198 frees"), "{}", found[1].message);
        assert_eq!(found[1].profile, None);
    }
}
