//! `no_data`: there is nothing to judge.

use super::{Case, Found, Rule, finding};
use crate::{Granules, Kind, Severity, units};

pub(super) const RULE: Rule = Rule { code: "no_data", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let window = units::duration(case.report.window.observed());
    let mut found = Vec::new();
    for (index, target) in case.snapshot.targets.iter().enumerate() {
        // Where growth is reported, there need be no allocator.
        if target.allocators.is_empty() && target.growth.is_none() {
            let message = format!(
                "no granule and no object was seen in {window} with {} probes in place: the program \
                 may be idle, or use another allocator",
                target.probes.len()
            );
            let finding = finding(RULE.code, Severity::Warning, message);
            found.push(Found { target: Some(index), finding });
        }
    }
    for subject in case.subjects() {
        let Granules { unknown, open_now, .. } = subject.shown.granules;
        if subject.facts.profile.kind == Kind::Drain && subject.shown.granules.decided() == 0 {
            let message = format!(
                "no close was decided in {window}, so there is no DSR: {unknown} closes of unknown \
                 outcome, {open_now} granules open now"
            );
            found.push(subject.found(RULE.code, Severity::Info, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    /// Only a `drain` allocator without a decided close lacks data; the other kinds never have a DSR.
    #[test]
    fn undecided_is_reported() {
        assert!(reported(&RULE, &samples::drain_snapshot()).is_empty());
        assert!(reported(&RULE, &samples::bulk_snapshot()).is_empty());
        let found = reported(&RULE, &samples::undecided_snapshot());
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("3 closes of unknown outcome"), "{}", found[0].message);
    }

    /// A process in which nothing was seen says so.
    #[test]
    fn silence_is_reported() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.targets[0].allocators.clear();
        assert!(reported(&RULE, &snapshot)[0].message.contains("with 4 probes in place"));
    }
}
