//! `never_fired`: a probe is in place, but the function was never entered as far as we can tell.

use std::collections::BTreeMap;

use drainprof_process::{elf::readable, printable};

use super::{Case, Found, Rule, finding};
use crate::{
    Finding, Weight,
    facts::{Began, ProbeFacts},
    units,
};

pub(super) const RULE: Rule = Rule { code: "never_fired", check };

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

/// What the silence of a whole role means, and what to do. Silence of other roles means nothing: programs need not
/// reset, move, name or tear down anything.
const ADVICE: [(&str, &str); 4] = [
    (
        "open",
        "granules count as opened before: none was opened in this time, or the open is inlined; name the slow path \
         that it calls",
    ),
    ("close", "no granule ended in this time, or the close is inlined"),
    (
        "alloc",
        "live counts are too low if it is inlined: name the slow path that it calls, or add #[inline(never)] or a USDT \
         probe",
    ),
    (
        "free",
        "nothing was freed one by one, or the free is inlined, or the program frees through another function",
    ),
];

fn judge(case: &Case<'_>, profile: &str, probes: &[&ProbeFacts]) -> Option<Finding> {
    let all = || probes.iter().copied();
    let means = |probe: &ProbeFacts| ADVICE.iter().any(|(role, _)| *role == probe.role);
    let silent: Vec<_> =
        probes.iter().filter(|probe| means(probe) && probe.is_silent(all())).collect();
    let some_fired = probes.iter().any(|probe| probe.fired());
    let long_enough = case.report.window.observed() >= case.options.never_fired_after.as_secs_f64();
    if silent.is_empty() || !(some_fired || long_enough) {
        return None;
    }
    // A program need not call every function of its allocator; but if no function of a whole role was
    // ever called, while granules come and go, then the counts are one-sided.
    let role_is_silent = |role: &str| {
        silent.iter().any(|probe| probe.role == role)
            && !probes.iter().any(|probe| probe.role == role && probe.fired())
    };
    let advice: Vec<String> = ADVICE
        .iter()
        .filter(|(role, _)| some_fired && role_is_silent(role))
        .map(|(role, advice)| format!("no {role} at all: {advice}"))
        .collect();
    let (weight, advice) = match (some_fired, advice.is_empty()) {
        (true, true) => {
            (Weight::Info, "other functions of the same roles were called instead".to_owned())
        }
        (true, false) => (Weight::Warning, advice.join(". ")),
        (false, _) => (
            Weight::Warning,
            "none of the profile's functions was called: the program is idle, uses another copy of the allocator, \
             or the functions are inlined"
                .to_owned(),
        ),
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
        "{} of {} probes attached, never fired in {}: {}; {advice}",
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

    use super::{super::reported, *};
    use crate::samples;

    /// A silent probe among others that fired is reported at once; an entirely silent profile only after
    /// some seconds; none if all fired.
    #[test]
    fn silence_is_a_finding() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.window = Duration::from_millis(10);
        assert!(reported(&RULE, &snapshot).is_empty());
        let probes = &mut snapshot.targets[0].probes;
        let close = probes.iter_mut().find(|probe| probe.role == "close").unwrap();
        close.entries = 0;
        let found = reported(&RULE, &snapshot);
        assert_eq!((found.len(), found[0].weight), (1, Weight::Warning));
        assert!(found[0].message.contains("1 of 4 probes attached, never fired"));
        assert!(found[0].message.contains("no close at all: no granule ended in this time"));
        for probe in &mut snapshot.targets[0].probes {
            (probe.entries, probe.returns) = (0, 0);
        }
        assert!(reported(&RULE, &snapshot).is_empty());
        snapshot.window = Duration::from_secs(5);
        assert!(reported(&RULE, &snapshot)[0].message.contains("4 of 4 probes"));
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
        assert!(reported(&RULE, &snapshot).is_empty());
        snapshot.targets[0].probes.push(ProbeFacts { role: "free", ..place });
        assert_eq!(reported(&RULE, &snapshot).len(), 1);
    }

    /// Programs need not name or tear down anything: that such a function was not called is no finding.
    #[test]
    fn silence_that_means_nothing() {
        let mut snapshot = samples::drain_snapshot();
        let open = snapshot.targets[0].probes[0].clone();
        for role in ["init", "destroy", "label", "reset", "realloc", "move", "reparent", "migrate"]
        {
            let idle = ProbeFacts { role, entries: 0, returns: 0, ..open.clone() };
            snapshot.targets[0].probes.push(idle);
        }
        assert!(reported(&RULE, &snapshot).is_empty());
    }

    /// A second alloc function that is not called is only worth a note.
    #[test]
    fn spare_function_is_a_note() {
        let mut snapshot = samples::drain_snapshot();
        let alloc = snapshot.targets[0].probes.iter().find(|probe| probe.role == "alloc").unwrap();
        let spare =
            ProbeFacts { symbol: "calloc_obj".into(), entries: 0, returns: 0, ..alloc.clone() };
        snapshot.targets[0].probes.push(spare);
        let found = reported(&RULE, &snapshot);
        assert_eq!((found.len(), found[0].weight), (1, Weight::Info));
        assert!(found[0].message.contains("calloc_obj"));
    }
}
