//! `never_fired`: a probe is in place, but the function was never entered as far as we can tell.

use std::collections::BTreeMap;

use drainprof_process::{elf::readable, printable};

use super::{Case, Found, Rule, finding};
use crate::{
    Finding, Weight,
    facts::{Began, ProbeFacts},
    units,
};

pub(super) const RULE: Rule = Rule {
    code: "never_fired",
    what: "a probe that was attached and had no hit, while others of its profile had or for longer \
           than a few seconds",
    check,
};

/// How many probes one sentence names.
const NAMED: usize = 4;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (index, target) in case.snapshot.targets.iter().enumerate() {
        // A followed child shares its parent's probes; one telling is enough.
        if matches!(target.began, Began::Forked(_)) {
            continue;
        }
        let mut profiles: BTreeMap<&str, Vec<&ProbeFacts>> = BTreeMap::new();
        for probe in &target.probes {
            profiles.entry(&probe.profile).or_default().push(probe);
        }
        for (profile, probes) in profiles {
            if let Some(finding) = judge(case, profile, &probes) {
                found.push(Found { target: Some(index), finding });
            }
        }
    }
    found
}

fn judge(case: &Case<'_>, profile: &str, probes: &[&ProbeFacts]) -> Option<Finding> {
    let all = || probes.iter().copied();
    let silent: Vec<_> = probes.iter().filter(|probe| probe.is_silent(all())).collect();
    let some_fired = silent.len() < probes.len();
    let long_enough = case.report.window.observed() >= case.options.never_fired_after.as_secs_f64();
    if silent.is_empty() || !(some_fired || long_enough) {
        return None;
    }
    // A program need not call every function of its allocator; but if no function of a whole role was
    // ever called, while granules come and go, then the counts are one-sided.
    let role_is_silent = |role: &str| {
        matches!(role, "open" | "close" | "alloc" | "free")
            && !probes.iter().any(|probe| probe.role == role && probe.fired())
    };
    let weight = if silent.iter().any(|probe| role_is_silent(probe.role)) {
        Weight::Warning
    } else {
        Weight::Info
    };
    let mut names: Vec<_> = silent
        .iter()
        .take(NAMED)
        .map(|probe| {
            format!("{} {} in {}", probe.role, printable(readable(&probe.symbol)), probe.object)
        })
        .collect();
    if silent.len() > NAMED {
        names.push(format!("{} more", silent.len() - NAMED));
    }
    let message = format!(
        "{} of {} probes attached, never fired in {}: {}; possible causes: not called; inlined; \
         other binary; compiler clone. If it is always inlined, name the slow path that it calls, or add \
         #[inline(never)] or a USDT probe",
        silent.len(),
        probes.len(),
        units::duration(case.report.window.observed()),
        names.join(", ")
    );
    Some(Finding { profile: Some(profile.to_owned()), ..finding(RULE.code, weight, message) })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::told, *};
    use crate::samples;

    /// A silent probe among others that fired is told at once; an entirely silent profile only after
    /// some seconds; none if all fired.
    #[test]
    fn silence_is_a_finding() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.window = Duration::from_millis(10);
        assert!(told(&RULE, &snapshot).is_empty());
        let probes = &mut snapshot.targets[0].probes;
        let close = probes.iter_mut().find(|probe| probe.role == "close").unwrap();
        close.entries = 0;
        let found = told(&RULE, &snapshot);
        assert_eq!((found.len(), found[0].weight), (1, Weight::Warning));
        assert!(found[0].message.contains("1 of 4 probes attached, never fired"));
        for probe in &mut snapshot.targets[0].probes {
            (probe.entries, probe.returns) = (0, 0);
        }
        assert!(told(&RULE, &snapshot).is_empty());
        snapshot.window = Duration::from_secs(5);
        assert!(told(&RULE, &snapshot)[0].message.contains("4 of 4 probes"));
    }

    /// A USDT probe fired if one of its places did; another one of the same name in another role is another probe.
    #[test]
    fn one_place_of_several() {
        let mut snapshot = samples::drain_snapshot();
        let probes = &mut snapshot.targets[0].probes;
        let alloc = probes.iter_mut().find(|probe| probe.role == "alloc").unwrap();
        alloc.symbol = "usdt:pool:alloc".into();
        let place = ProbeFacts { entries: 0, returns: 0, ..alloc.clone() };
        probes.push(place.clone());
        assert!(told(&RULE, &snapshot).is_empty());
        snapshot.targets[0].probes.push(ProbeFacts { role: "free", ..place });
        assert_eq!(told(&RULE, &snapshot).len(), 1);
    }

    /// A second alloc function that is not called is only worth a note.
    #[test]
    fn spare_function_is_a_note() {
        let mut snapshot = samples::drain_snapshot();
        let alloc = snapshot.targets[0].probes.iter().find(|probe| probe.role == "alloc").unwrap();
        let spare =
            ProbeFacts { symbol: "calloc_obj".into(), entries: 0, returns: 0, ..alloc.clone() };
        snapshot.targets[0].probes.push(spare);
        let found = told(&RULE, &snapshot);
        assert_eq!((found.len(), found[0].weight), (1, Weight::Info));
        assert!(found[0].message.contains("calloc_obj"));
    }
}
