//! `lost`: something that the counts need was not seen.

use super::{Case, Found, Rule, finding};
use crate::{Severity, health::Health};

pub(super) const RULE: Rule = Rule { code: "lost", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    let health = Health::from_counts(&case.snapshot.losses);
    health
        .incomplete()
        .map(|line| {
            let message = format!(
                "the result is incomplete, {} {}: {} To avoid it: {}",
                line.name, line.count, line.meaning, line.remedy
            );
            Found { target: None, finding: finding(RULE.code, Severity::Error, message) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use drainprof_common::loss::Loss;

    use super::{super::reported, *};
    use crate::samples;

    /// A loss is reported with its number and its remedy; a notice is not a loss.
    #[test]
    fn reports_what_and_remedy() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.losses[Loss::UnmatchedClose as usize] = 5;
        assert!(reported(&RULE, &snapshot).is_empty());
        snapshot.losses[Loss::ObjectMapFull as usize] = 12;
        let found = reported(&RULE, &snapshot);
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("object_map_full 12"), "{}", found[0].message);
        assert!(found[0].message.contains("--max-objects"), "{}", found[0].message);
    }
}
