//! `never_fired`: a probe is in place, but the function was never entered as far as we can tell.

use std::collections::BTreeMap;

use drainprof_process::{elf::readable, printable};

use super::{Case, Found, Rule, finding};
use crate::{
    Finding, Severity,
    facts::{Began, ProbeFacts},
    units,
};

pub(super) const RULE: Rule = Rule { code: "never_fired", check };

/// How many probes one sentence names.
const MAX_NAMED_PROBES: usize = 8;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for (index, target) in case.snapshot.targets.iter().enumerate() {
        // A followed child shares its parent's probes: they are reported once.
        if matches!(target.began, Began::Forked { .. }) {
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

/// What the silence of a whole role is worth and means, and what to do. Silence of other roles means nothing: programs need
/// not reset, move, name or tear down anything.
const ROLES: [(&str, Severity, &str); 5] = [
    (
        "open",
        Severity::Warning,
        "granules count as opened before: none was opened in this time, or the open is inlined; name the slow path \
         that it calls",
    ),
    ("close", Severity::Warning, "no granule ended in this time, or the close is inlined"),
    (
        "alloc",
        Severity::Warning,
        "live counts are too low if it is inlined: name the slow path that it calls, or add #[inline(never)] or a USDT \
         probe",
    ),
    (
        "free",
        Severity::Warning,
        "nothing was freed one by one, or the free is inlined, or the program frees through another function",
    ),
    (
        "realloc",
        Severity::Info,
        "nothing was resized, or this build resizes by another function, and then live bytes are wrong",
    ),
];

/// What the silence of one probe means where others of its role fired.
const PART: &str = "others of these roles fired: the program does not call these, or this build reaches the allocator by \
                    another function, whose objects are not counted";

fn judge(case: &Case<'_>, profile: &str, probes: &[&ProbeFacts]) -> Option<Finding> {
    let means = |probe: &&ProbeFacts| ROLES.iter().any(|(role, ..)| *role == probe.role);
    let mut silent: Vec<_> =
        probes.iter().copied().filter(means).filter(|probe| !is_explained(probe, probes)).collect();
    let some_fired = probes.iter().any(|probe| probe.fired());
    let long_enough = case.report.window.observed() >= case.options.never_fired_after.as_secs_f64();
    if silent.is_empty() || !(some_fired || long_enough) {
        return None;
    }
    // A program need not call every function of its allocator; but if no function of a whole role was
    // ever called, while granules come and go, then the counts are one-sided.
    let is_whole = |role: &str| !probes.iter().any(|probe| probe.role == role && probe.fired());
    silent.sort_by_key(|probe| !is_whole(probe.role));
    let whole: Vec<_> = ROLES
        .iter()
        .filter(|(role, ..)| is_whole(role) && silent.iter().any(|probe| probe.role == *role))
        .collect();
    let (severity, advice) = if some_fired {
        let severity =
            whole.iter().map(|(_, severity, _)| *severity).max().unwrap_or(Severity::Info);
        let mut advice: Vec<_> =
            whole.iter().map(|(role, _, advice)| format!("no {role} at all: {advice}")).collect();
        if silent.iter().any(|probe| !is_whole(probe.role)) {
            advice.push(PART.to_owned());
        }
        (severity, advice.join(". "))
    } else {
        (
            Severity::Warning,
            "none of the profile's functions was called: the program is idle, uses another copy of the allocator, \
             or the functions are inlined"
                .to_owned(),
        )
    };
    let message = format!(
        "{} of {} probes attached, never fired in {}: {}; {advice}",
        silent.len(),
        probes.len(),
        units::duration(case.report.window.observed()),
        names(&silent)
    );
    Some(Finding { profile: Some(profile.to_owned()), ..finding(RULE.code, severity, message) })
}

/// Whether it fired, or another probe for the same role and family of functions did, so that its silence means nothing.
fn is_explained(probe: &ProbeFacts, all: &[&ProbeFacts]) -> bool {
    if !probe.is_silent(all.iter().copied()) {
        return true;
    }
    let is_alike = |other: &&&ProbeFacts| {
        other.fired() && (other.role, &other.object) == (probe.role, &probe.object)
    };
    let mut alike = all.iter().filter(is_alike).peekable();
    alike.peek().is_some() && {
        let name = readable(&probe.symbol);
        alike.any(|other| is_family(&name, &readable(&other.symbol)))
    }
}

/// Whether two functions are forms of one: overloads, instances of a template, or one is the other's name and `_` more.
fn is_family(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|name| name.split(['(', '<', '@']).next().unwrap_or(name));
    let (short, long) = if one.len() < other.len() { (one, other) } else { (other, one) };
    let more = long.strip_prefix(short).filter(|_| !short.is_empty());
    more.is_some_and(|more| more.is_empty() || more.starts_with('_'))
}

/// Roles and names, and once for each run of them the file that they are in.
fn names(silent: &[&ProbeFacts]) -> String {
    let shown = &silent[..silent.len().min(MAX_NAMED_PROBES)];
    let mut names = Vec::new();
    for (index, probe) in shown.iter().enumerate() {
        let name = format!("{} {}", probe.role, printable(readable(&probe.symbol)));
        let is_last = shown.get(index + 1).is_none_or(|next| next.object != probe.object);
        names.push(if is_last { format!("{name} in {}", probe.object) } else { name });
    }
    if silent.len() > MAX_NAMED_PROBES {
        names.push(format!("{} more", silent.len() - MAX_NAMED_PROBES));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::reported, *};
    use crate::{facts::Snapshot, samples};

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
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning));
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
        for role in ["init", "destroy", "label", "reset", "move", "reparent", "migrate"] {
            let idle = ProbeFacts { role, entries: 0, returns: 0, ..open.clone() };
            snapshot.targets[0].probes.push(idle);
        }
        assert!(reported(&RULE, &snapshot).is_empty());
    }

    /// A second alloc function that is not called is only worth a note, but it is named.
    #[test]
    fn spare_function_is_a_note() {
        let found = reported(&RULE, &with("alloc", "calloc_obj", false));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Info));
        assert!(found[0].message.contains("alloc calloc_obj in /usr/bin/svc; others of these"));
    }

    /// A library that moved its realloc: the probe is named, whatever else fired.
    #[test]
    fn silent_realloc_is_named() {
        let found = reported(&RULE, &with("realloc", "mi_heap_realloc", false));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Info));
        let begin = "1 of 5 probes attached, never fired in ";
        assert!(found[0].message.starts_with(begin), "{}", found[0].message);
        let what =
            ": realloc mi_heap_realloc in /usr/bin/svc; no realloc at all: nothing was resized";
        assert!(found[0].message.contains(what), "{}", found[0].message);
        assert!(reported(&RULE, &with("realloc", "mi_heap_realloc", true)).is_empty());
    }

    /// Forms of one function explain one another's silence; functions of other names and other roles do not.
    #[test]
    fn families_explain_silence() {
        for name in ["alloc_it_small", "_Z8alloc_itm"] {
            let found = reported(&RULE, &with("alloc", name, false));
            assert!(found.is_empty(), "{name}: {}", found[0].message);
        }
        for (role, name) in [("alloc", "alloc_items"), ("alloc", "it"), ("free", "alloc_it_small")]
        {
            assert_eq!(reported(&RULE, &with(role, name, false)).len(), 1, "{name}");
        }
        for (one, other, is) in [
            (
                "operator new(unsigned long)",
                "operator new(unsigned long, std::nothrow_t const&)",
                true,
            ),
            ("operator new(unsigned long)", "operator new[](unsigned long)", false),
            ("mi_free", "mi_free_small", true),
            ("realloc", "calloc", false),
            ("(anonymous namespace)::take()", "free", false),
        ] {
            assert_eq!((is_family(one, other), is_family(other, one)), (is, is), "{one}, {other}");
        }
    }

    /// Of many, those of roles that are silent as a whole come first; the file is named once.
    #[test]
    fn whole_roles_come_first() {
        let mut snapshot = with("realloc", "resize", false);
        let probes = &mut snapshot.targets[0].probes;
        let spare = probes.iter().find(|probe| probe.role == "alloc").unwrap().clone();
        let spares = (0..12).map(|number| ProbeFacts {
            symbol: format!("spare{number}"),
            entries: 0,
            returns: 0,
            ..spare.clone()
        });
        probes.splice(0..0, spares);
        let message = reported(&RULE, &snapshot).remove(0).message;
        let names = ": realloc resize, alloc spare0, alloc spare1, alloc spare2, alloc spare3, alloc spare4, \
                     alloc spare5, alloc spare6 in /usr/bin/svc, 5 more; no realloc at all";
        assert!(message.contains(names) && message.ends_with(PART), "{message}");
    }

    /// A snapshot with one probe more.
    fn with(role: &'static str, symbol: &str, fired: bool) -> Snapshot {
        let mut snapshot = samples::drain_snapshot();
        let probe = snapshot.targets[0].probes[0].clone();
        let entries = u64::from(fired);
        let more = ProbeFacts { role, symbol: symbol.to_owned(), entries, returns: 0, ..probe };
        snapshot.targets[0].probes.push(more);
        snapshot
    }
}
