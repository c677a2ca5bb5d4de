//! Whether a profile does what it says on a process that was watched for a while: what `profile check
//! --for` tells.
//!
//! Pure: from a snapshot, the report on it and the plan's findings to a judgement. Called by `cli`, which
//! writes it as text or JSON (`drainprof.check/1`).

use drainprof_common::loss::Loss;
use drainprof_profile::Finding as PlanFinding;
use serde::Serialize;

use super::{Report, Severity};
use crate::{
    facts::{ProbeFacts, Snapshot},
    health::Health,
};

/// Findings of a report that say something against the profile.
const SUSPICIONS: [&str; 4] =
    ["not_measurable", "freed_after_close", "unmatched_frees_high", "allocs_without_frees"];
/// Of calls that are judged at their return, so many may be on their way, or have been left by a jump.
const ON_THE_WAY: u64 = 16;
/// The share of calls without a return from which on it is reported.
const LEFT: f64 = 0.01;

/// What was seen of a profile at work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Coverage {
    /// For how long it was watched.
    pub seconds: f64,
    /// Whether all is as it should be: every probe fired, nothing speaks against the profile.
    pub proven: bool,
    /// The probes, in the plan's order.
    pub probes: Vec<ProbeCoverage>,
    /// What was counted, per allocator instance.
    pub balances: Vec<Balance>,
    /// Frees of objects whose allocation was not seen, also those that belong to no instance.
    pub unmatched_frees: u64,
    /// Their share of all frees of single objects; `None` without one.
    pub unmatched_share: Option<f64>,
    /// What speaks against the profile, and what the plan could not place.
    pub warnings: Vec<Warning>,
}

/// One probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeCoverage {
    /// What a hit means.
    pub role: &'static str,
    /// The symbol, safe to show.
    pub symbol: String,
    /// The object, as the process sees it.
    pub object: String,
    /// Calls that were seen.
    pub hits: u64,
    /// Returns that were seen; `None` for a probe that is judged at its entry.
    pub returns: Option<u64>,
    /// Hits whose `when` did not hold.
    pub rejected: u64,
    /// Hits whose expressions could not be computed.
    pub faults: u64,
    /// Why it never fired, as far as can be reported; `None` if it did.
    pub silent: Option<String>,
}

/// What was counted of one allocator instance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// The instance, in hexadecimal; `None` where the profile names none.
    pub instance: Option<String>,
    /// Granules whose open was seen.
    pub opened: u64,
    /// Granules whose close was seen.
    pub closed: u64,
    /// Closes of granules whose open was not seen.
    pub unmatched_closes: u64,
    /// Objects that were allocated.
    pub allocated: u64,
    /// Objects that were freed, alone or with their granule.
    pub freed: u64,
    /// Frees of objects whose allocation was not seen.
    pub unmatched_frees: u64,
}

/// Something that speaks against the profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// A short, stable name.
    pub code: String,
    /// One sentence.
    pub message: String,
}

impl Coverage {
    /// Judges what was seen of one process. `findings` are those of its plan; `max_unmatched` is the share of
    /// frees of unknown objects that is taken, where the user gives one.
    #[must_use]
    pub fn of(
        snapshot: &Snapshot,
        report: &Report,
        findings: &[PlanFinding],
        max_unmatched: Option<f64>,
    ) -> Self {
        let facts: Vec<&ProbeFacts> =
            snapshot.targets.iter().take(1).flat_map(|target| &target.probes).collect();
        let probes: Vec<_> = facts.iter().map(|probe| cover(probe, &facts, findings)).collect();
        let balances: Vec<_> = snapshot
            .targets
            .iter()
            .flat_map(|target| &target.allocators)
            .map(|allocator| {
                let totals = &allocator.totals;
                Balance {
                    instance: (allocator.instance != 0)
                        .then(|| format!("{:#x}", allocator.instance)),
                    opened: totals.opened,
                    closed: totals.closed(),
                    unmatched_closes: totals.unmatched_closes,
                    allocated: totals.allocated,
                    freed: totals.gone(),
                    unmatched_frees: totals.unmatched_frees,
                }
            })
            .collect();
        let unmatched_frees = snapshot.losses[Loss::UnmatchedFree as usize]
            .max(balances.iter().map(|balance| balance.unmatched_frees).sum());
        let single: u64 = snapshot
            .targets
            .iter()
            .flat_map(|target| &target.allocators)
            .map(|allocator| allocator.totals.freed)
            .sum();
        let frees = single + unmatched_frees;
        let unmatched_share = (frees > 0).then(|| unmatched_frees as f64 / frees as f64);
        let mut warnings = of_plan(findings);
        warnings.extend(of_probes(&facts));
        warnings.extend(of_frees(unmatched_frees, unmatched_share, max_unmatched));
        warnings.extend(of_report(report));
        Self {
            seconds: report.window.observed(),
            proven: warnings.is_empty() && probes.iter().all(|probe| probe.silent.is_none()),
            probes,
            balances,
            unmatched_frees,
            unmatched_share,
            warnings,
        }
    }
}

/// What of the profile has no place in the process.
fn of_plan(findings: &[PlanFinding]) -> Vec<Warning> {
    findings
        .iter()
        .filter(|finding| ["missing_symbol", "no_alternative"].contains(&finding.code.as_str()))
        .map(|finding| Warning { code: finding.code.clone(), message: finding.message.clone() })
        .collect()
}

/// What single probes tell.
fn of_probes(facts: &[&ProbeFacts]) -> Vec<Warning> {
    let mut warnings = Vec::new();
    let mut warn = |code: &str, message: String| {
        warnings.push(Warning { code: code.to_owned(), message });
    };
    for probe in facts {
        let named = format!("{} {}", probe.role, probe.symbol);
        if probe.faults > 0 {
            warn(
                "faults",
                format!(
                    "{named}: {} of {} hits could not be computed; are its offsets those of this build?",
                    probe.faults, probe.entries
                ),
            );
        }
        let judged = if probe.at_return { probe.returns } else { probe.entries };
        if judged > 0 && probe.rejected == judged {
            warn(
                "always_rejected",
                format!(
                    "{named}: `when` held for none of {judged} hits; does it say what it should?"
                ),
            );
        }
        let left = probe.entries.saturating_sub(probe.returns);
        if probe.at_return && left > ON_THE_WAY && left as f64 > probe.entries as f64 * LEFT {
            warn(
                "returns_missing",
                format!(
                    "{named}: {left} of {} calls never returned; are they left by longjmp or an exception?",
                    probe.entries
                ),
            );
        }
    }
    warnings
}

/// What the user does not take.
fn of_frees(unmatched: u64, share: Option<f64>, max_unmatched: Option<f64>) -> Option<Warning> {
    let (share, most) = (share?, max_unmatched?);
    (share > most).then(|| Warning {
        code: "asymmetric".to_owned(),
        message: format!(
            "{unmatched} frees ({} of all) are of objects whose allocation was not seen; {} are taken",
            super::units::percent(share),
            super::units::percent(most)
        ),
    })
}

/// What the report found that speaks against the profile, and what was lost.
fn of_report(report: &Report) -> Vec<Warning> {
    let findings = report.findings.iter().chain(report.targets.iter().flat_map(|t| &t.findings));
    let mut warnings: Vec<Warning> = findings
        .filter(|finding| {
            SUSPICIONS.contains(&finding.code.as_str()) && finding.severity != Severity::Info
        })
        .map(|finding| Warning { code: finding.code.clone(), message: finding.message.clone() })
        .collect();
    let health = Health::from_names(&report.losses);
    if !health.complete() {
        let lost: Vec<_> =
            health.lines.iter().map(|line| format!("{} {}", line.name, line.count)).collect();
        warnings.push(Warning {
            code: "lost".to_owned(),
            message: format!("counted events were lost: {}", lost.join(", ")),
        });
    }
    warnings
}

fn cover(probe: &ProbeFacts, all: &[&ProbeFacts], findings: &[PlanFinding]) -> ProbeCoverage {
    ProbeCoverage {
        role: probe.role,
        symbol: readable(&probe.symbol),
        object: probe.object.clone(),
        hits: probe.entries,
        returns: probe.at_return.then_some(probe.returns),
        rejected: probe.rejected,
        faults: probe.faults,
        silent: probe.is_silent(all.iter().copied()).then(|| why_silent(probe, all, findings)),
    }
}

/// A symbol as its author would write it, fit for a terminal.
fn readable(symbol: &str) -> String {
    drainprof_process::printable(drainprof_process::elf::readable(symbol))
}

/// The likeliest reason for which a probe never fired.
fn why_silent(probe: &ProbeFacts, all: &[&ProbeFacts], findings: &[PlanFinding]) -> String {
    let symbol = drainprof_process::printable(&probe.symbol);
    let copied = findings.iter().find(|finding| {
        ["clones", "clone_only", "renamed", "ifunc"].contains(&finding.code.as_str())
            && finding.message.contains(&symbol)
    });
    if let Some(finding) = copied {
        return format!("calls may go elsewhere: {}", finding.message);
    }
    if !all.iter().any(|other| other.fired()) {
        return "none of the profile's functions was called: generate load or observe longer"
            .to_owned();
    }
    if !all.iter().any(|other| other.object == probe.object && other.fired()) {
        return format!(
            "no function in {} was called, but functions of another object were: the process may use its \
             own copy",
            probe.object
        );
    }
    let same_role = |other: &&&ProbeFacts| other.role == probe.role && other.fired();
    match (probe.role, all.iter().find(same_role)) {
        (_, Some(other)) => format!(
            "another {} function ({}) was called instead; this one may be for what the process did not do",
            probe.role,
            readable(&other.symbol)
        ),
        ("init", None) => {
            "called before the attach: `drainprof run` sees what happens at start".to_owned()
        }
        ("destroy", None) => "called at the end only, or not in this time".to_owned(),
        ("open" | "close" | "reset", None) => {
            "no granule came or went by it in this time: they live longer, or it is inlined into its callers"
                .to_owned()
        }
        _ => "not called in this time, inlined into its callers, or the process uses another function"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, samples};

    fn covered(change: impl FnOnce(&mut Snapshot)) -> Coverage {
        let mut snapshot = samples::drain_snapshot();
        change(&mut snapshot);
        let report = Report::build(&snapshot, &Options::default());
        Coverage::of(&snapshot, &report, &[], None)
    }

    fn codes(coverage: &Coverage) -> Vec<&str> {
        coverage.warnings.iter().map(|warning| warning.code.as_str()).collect()
    }

    fn silence(snapshot: &mut Snapshot, role: &str) {
        for probe in &mut snapshot.targets[0].probes {
            if probe.role == role {
                (probe.entries, probe.returns, probe.rejected) = (0, 0, 0);
            }
        }
    }

    /// All probes fired and nothing is odd: proven; a single silent one is enough that it is not.
    #[test]
    fn proven_or_not() {
        let good = covered(|_| {});
        assert!(good.proven, "{:?}", good.warnings);
        assert!(good.probes.iter().all(|probe| probe.silent.is_none()));
        let silent = covered(|snapshot| silence(snapshot, "close"));
        assert!(!silent.proven);
        let close = silent.probes.iter().find(|probe| probe.role == "close").unwrap();
        assert!(close.silent.as_deref().unwrap().contains("no granule came or went"));
    }

    /// The reason for silence depends on what else was seen: nothing at all, another function of the role, a
    /// copy that the compiler made.
    #[test]
    fn reasons() {
        let nothing = covered(|snapshot| {
            for role in ["open", "close", "alloc", "free"] {
                silence(snapshot, role);
            }
        });
        let reason = |coverage: &Coverage, at: usize| coverage.probes[at].silent.clone().unwrap();
        assert!(reason(&nothing, 0).contains("generate load"));
        let spare = covered(|snapshot| {
            let probes = &mut snapshot.targets[0].probes;
            let alloc = probes.iter().find(|probe| probe.role == "alloc").unwrap().clone();
            probes.push(ProbeFacts { symbol: "calloc".into(), entries: 0, returns: 0, ..alloc });
        });
        assert!(reason(&spare, spare.probes.len() - 1).contains("was called instead"));
        let mut snapshot = samples::drain_snapshot();
        silence(&mut snapshot, "free");
        let symbol = snapshot.targets[0].probes.iter().find(|p| p.role == "free").unwrap();
        let clones = PlanFinding {
            code: "clones".into(),
            message: format!("{}.part.0 exists beside it", symbol.symbol),
        };
        let report = Report::build(&snapshot, &Options::default());
        let coverage = Coverage::of(&snapshot, &report, &[clones], None);
        let free = coverage.probes.iter().find(|probe| probe.role == "free").unwrap();
        assert!(free.silent.as_deref().unwrap().contains(".part.0 exists"));
    }

    /// Hits that could not be computed, that `when` never lets through, or that never return are reported.
    #[test]
    fn odd_probes() {
        let odd = covered(|snapshot| {
            let probes = &mut snapshot.targets[0].probes;
            for probe in probes.iter_mut() {
                (probe.at_return, probe.entries, probe.returns) = (true, 1000, 1000);
            }
            probes[0].faults = 3;
            probes[1].rejected = 1000;
            probes[2].returns = 900;
            probes[3].returns = 995;
        });
        assert_eq!(codes(&odd), ["faults", "always_rejected", "returns_missing"], "{odd:?}");
    }

    /// A share of unmatched frees above what the user takes is a warning, one below is none.
    #[test]
    fn unmatched_frees() {
        let mut snapshot = samples::drain_snapshot();
        let totals = &mut snapshot.targets[0].allocators[0].totals;
        let freed = totals.freed;
        totals.unmatched_frees = freed / 9;
        let report = Report::build(&snapshot, &Options::default());
        let with = |most| Coverage::of(&snapshot, &report, &[], most);
        assert!(codes(&with(Some(0.05))).contains(&"asymmetric"), "{:?}", with(Some(0.05)));
        assert!(!codes(&with(Some(0.2))).contains(&"asymmetric"));
        assert!(!codes(&with(None)).contains(&"asymmetric"));
        let share = with(None).unmatched_share.unwrap();
        assert!((share - 0.1).abs() < 0.01, "{share}");
    }

    /// What has no place in the process, and what was lost, speaks against it too.
    #[test]
    fn plans_and_losses() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.losses[Loss::GranuleMapFull as usize] = 2;
        let report = Report::build(&snapshot, &Options::default());
        let missing = PlanFinding { code: "missing_symbol".into(), message: "no x".into() };
        let coverage = Coverage::of(&snapshot, &report, &[missing], None);
        assert_eq!(codes(&coverage), ["missing_symbol", "lost"]);
        assert!(!coverage.proven);
    }
}
