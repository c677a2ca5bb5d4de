//! `opened_before`: most closes are of granules that are older than the attach, so their verdicts are unknown.
//!
//! Long-lived granules (slabs, pages of a malloc) go on for minutes or days after an attach before the first new one
//! ends. Only a program that is observed from its start has none that are older.

use super::{Case, Found, Rule};
use crate::{Severity, facts::Began};

pub(super) const RULE: Rule = Rule { code: "opened_before", check };

/// Closes before a share of them says anything.
const MIN_CLOSES: u64 = 20;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let target = &case.snapshot.targets[subject.index];
        let totals = &subject.facts.totals;
        let (closed, before) = (totals.closed(), totals.unknown.min(totals.opened_before));
        if target.began == Began::FromStart || closed < MIN_CLOSES || before <= closed / 2 {
            continue;
        }
        let message = format!(
            "{before} of {closed} closes are of granules that were opened before the attach, so they are unknown: \
             observe the program from its start (`drainprof run --profile {} -- COMMAND`), or for longer than its \
             granules live",
            subject.shown.profile
        );
        found.push(subject.found(RULE.code, Severity::Warning, message));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::{Finding, samples};

    /// A slab allocator that closes `closed` granules, of which so many are from before and so many unknown.
    fn with(began: Began, closed: u64, before: u64, unknown: u64) -> Vec<Finding> {
        let mut snapshot = samples::slab_snapshot();
        let target = &mut snapshot.targets[0];
        target.began = began;
        let totals = &mut target.allocators[0].totals;
        (totals.opened_before, totals.unknown) = (before, unknown);
        totals.closed_plain = closed - unknown;
        reported(&RULE, &snapshot)
    }

    /// Most closes, of a process that was attached to while it ran: then the message has the command.
    #[test]
    fn after_a_late_attach() {
        let found = with(Began::Attached, 1_505, 20_000, 1_505);
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
        let message = &found[0].message;
        assert!(message.starts_with("1505 of 1505 closes"), "{message}");
        assert!(message.contains("`drainprof run --profile"), "{message}");
        assert_eq!(with(Began::Forked { from_target: 1 }, 40, 21, 21).len(), 1);
    }

    /// Half of the closes, few closes, closes that are unknown for another reason, and a program seen from its start.
    #[test]
    fn other_cases() {
        assert!(with(Began::Attached, 40, 40, 20).is_empty());
        assert!(with(Began::Attached, 19, 19, 19).is_empty());
        assert!(with(Began::Attached, 40, 3, 40).is_empty());
        assert!(with(Began::Attached, 40, 40, 0).is_empty());
        assert!(with(Began::FromStart, 40, 40, 40).is_empty());
    }
}
