//! Findings: rules over the facts and the report, each of which explains its case in one sentence.
//!
//! A new rule is one file here and one row in [`RULES`].

mod allocs_without_frees;
mod closes_only;
mod freed_after_close;
mod leak;
mod lost;
mod low_dsr;
mod names_missing;
mod never_fired;
mod no_data;
mod not_measurable;
mod opened_before;
mod overdue;
mod paths_cut;
mod pinned;
mod pins_unnamed;
mod sparse_granules;
mod unmatched_frees_high;
pub(crate) mod who_pins;

use crate::{
    facts::{AllocatorFacts, Snapshot},
    invariants::invariants_within,
    model::{Finding, Report, Severity, allocator::Allocator},
    options::Options,
};

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// The findings' code.
    pub code: &'static str,
    check: fn(&Case<'_>) -> Vec<Found>,
}

/// The rules, in the order of their findings.
pub const RULES: &[Rule] = &[
    lost::RULE,
    not_measurable::RULE,
    never_fired::RULE,
    no_data::RULE,
    closes_only::RULE,
    opened_before::RULE,
    freed_after_close::RULE,
    unmatched_frees_high::RULE,
    allocs_without_frees::RULE,
    low_dsr::RULE,
    pinned::RULE,
    who_pins::RULE,
    pins_unnamed::RULE,
    leak::RULE,
    overdue::RULE,
    sparse_granules::RULE,
    paths_cut::RULE,
    names_missing::RULE,
    INVARIANT,
];

/// Comes last: it checks the finished report.
const INVARIANT: Rule = Rule {
    code: "invariant",
    check: |case| {
        invariants_within(case.report, case.options.slack)
            .into_iter()
            .map(|message| {
                let message = format!("counts do not add up: {message}; please report it");
                Found { target: None, finding: finding("invariant", Severity::Error, message) }
            })
            .collect()
    },
};

/// What a rule judges.
struct Case<'a> {
    snapshot: &'a Snapshot,
    options: &'a Options,
    report: &'a Report,
}

/// A finding and where it belongs.
struct Found {
    /// Index of the target in the report; `None`: the report as a whole.
    target: Option<usize>,
    finding: Finding,
}

/// One allocator of a case.
struct Subject<'a> {
    index: usize,
    facts: &'a AllocatorFacts,
    shown: &'a Allocator,
}

impl<'a> Case<'a> {
    /// All measurable allocators of all targets.
    fn subjects(&self) -> impl Iterator<Item = Subject<'a>> {
        let pairs = self.snapshot.targets.iter().zip(&self.report.targets).enumerate();
        let all = pairs.flat_map(|(index, (target, shown))| {
            target.allocators.iter().zip(&shown.allocators).map(move |(facts, shown)| Subject {
                index,
                facts,
                shown,
            })
        });
        all.filter(|subject| subject.shown.not_measurable.is_none())
    }

    /// `count` per second of the observed time; `None` where the window is empty.
    fn per_second(&self, count: u64) -> Option<f64> {
        let seconds = self.report.window.observed();
        (seconds > 0.0).then(|| count as f64 / seconds)
    }
}

impl Subject<'_> {
    /// A finding about a sample says so.
    fn found(&self, code: &str, severity: Severity, message: String) -> Found {
        let message = match self.shown.sampling {
            Some(sampling) => {
                format!("in a sample of 1 of {} granules: {message}", sampling.one_in)
            }
            None => message,
        };
        let finding = Finding {
            profile: Some(self.shown.profile.clone()),
            instance: self.shown.instance.clone(),
            ..finding(code, severity, message)
        };
        Found { target: Some(self.index), finding }
    }
}

fn finding(code: &str, severity: Severity, message: String) -> Finding {
    Finding { code: code.to_owned(), severity, profile: None, instance: None, message }
}

/// Runs every rule and adds what it finds to the report.
pub(super) fn add_all(report: &mut Report, snapshot: &Snapshot, options: &Options) {
    for rule in RULES {
        let found = (rule.check)(&Case { snapshot, options, report });
        for Found { target, finding } in found {
            let list = match target.and_then(|index| report.targets.get_mut(index)) {
                Some(target) => &mut target.findings,
                None => &mut report.findings,
            };
            list.push(finding);
        }
    }
}

/// For the rules' tests: what one rule says about a snapshot.
#[cfg(test)]
fn reported(rule: &Rule, snapshot: &Snapshot) -> Vec<Finding> {
    let options = Options::default();
    let report = Report::build(snapshot, &options);
    let case = Case { snapshot, options: &options, report: &report };
    (rule.check)(&case).into_iter().map(|found| found.finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes are unique.
    #[test]
    fn codes_are_unique() {
        for (index, rule) in RULES.iter().enumerate() {
            assert!(RULES[..index].iter().all(|earlier| earlier.code != rule.code));
        }
    }
}
