//! `names_missing`: places that could have names, and have none because their symbols could not be read.

use super::{Case, Found, Rule, finding};
use crate::Severity;

pub(super) const RULE: Rule = Rule { code: "names_missing", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let Some(facts) = &case.snapshot.symbols else { return Vec::new() };
    let mut reasons = facts.errors.clone();
    // While it is still examined the targets, names come with a later line.
    if facts.pending > 0 && case.options.slack == 0 {
        reasons.push(format!("{} were not found in time", facts.pending));
    }
    if facts.left_out > 0 {
        reasons.push(format!("{} were left out, because so many are not kept", facts.left_out));
    }
    if reasons.is_empty() {
        return Vec::new();
    }
    let message = format!(
        "names are missing, {} of {} places have one: {}. Module and offset can be named later with \
         addr2line; --no-symbols looks for no names",
        facts.named,
        facts.places,
        reasons.join("; ")
    );
    vec![Found { target: None, finding: finding(RULE.code, Severity::Info, message) }]
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::{facts::SymbolFacts, samples};

    /// Names that are missing for a reason are reported with it; places that have no name are not, and neither
    /// are reports without names.
    #[test]
    fn reports_the_reason() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.symbols = None;
        assert!(reported(&RULE, &snapshot).is_empty());
        let facts = SymbolFacts { places: 9, named: 5, ..SymbolFacts::default() };
        snapshot.symbols = Some(facts.clone());
        assert!(reported(&RULE, &snapshot).is_empty());
        let errors = vec!["libx.so is damaged".to_owned()];
        snapshot.symbols = Some(SymbolFacts { pending: 2, given_up: 1, errors, ..facts });
        let found = reported(&RULE, &snapshot);
        assert_eq!(found.len(), 1);
        for part in ["5 of 9", "libx.so is damaged", "2 were not found in time"] {
            assert!(found[0].message.contains(part), "{part}: {}", found[0].message);
        }
    }
}
