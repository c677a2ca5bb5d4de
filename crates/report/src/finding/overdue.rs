//! `overdue`: granules that outlive their peers; the leak of `bulk` allocators.

use super::{Case, Found, Rule};
use crate::{OVERDUE_RULE, Severity, units};

pub(super) const RULE: Rule = Rule { code: "overdue", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let overdue = &subject.shown.overdue;
        if overdue.granules == 0 {
            continue;
        }
        let held = overdue.bytes.filter(|&bytes| bytes > 0);
        let held = held.map(|bytes| format!(", {}", units::bytes(bytes))).unwrap_or_default();
        let oldest = subject.shown.open_granules.iter().filter(|granule| granule.overdue);
        let oldest = oldest.filter_map(|granule| granule.age_seconds).reduce(f64::max);
        let oldest = oldest
            .map(|age| format!(", the oldest for {}", units::duration(age)))
            .unwrap_or_default();
        let message = format!(
            "{} of {} open granules are overdue{held}{oldest}: {OVERDUE_RULE}",
            overdue.granules, subject.shown.granules.open_now
        );
        found.push(subject.found(RULE.code, Severity::Warning, message));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    /// Reported with number, bytes and age; silent where nothing is overdue.
    #[test]
    fn reports_the_oldest() {
        let found = reported(&RULE, &samples::bulk_snapshot());
        assert_eq!(found.len(), 1);
        let start = "1 of 2 open granules are overdue, 8.0 KiB, the oldest for 9.00 s";
        assert!(found[0].message.starts_with(start), "{}", found[0].message);
        assert!(reported(&RULE, &samples::drain_snapshot()).is_empty());
    }
}
