//! `low_dsr`: the drainability satisfaction rate in words.

use super::{Case, Found, Rule};
use crate::{Severity, units};

pub(super) const RULE: Rule = Rule { code: "low_dsr", check };

/// Decided closes before the rate says anything.
const MIN_CLOSES: u64 = 20;

fn check(case: &Case<'_>) -> Vec<Found> {
    let mut found = Vec::new();
    for subject in case.subjects() {
        let Some(dsr) = subject.shown.dsr else { continue };
        let decided = subject.shown.granules.decided();
        let words = match dsr {
            dsr if dsr >= 0.95 => continue,
            dsr if dsr >= 0.8 => "some closes leave a granule behind",
            dsr if dsr >= 0.5 => "closes often leave a granule behind",
            _ => "most closes leave a granule behind",
        };
        if decided >= MIN_CLOSES {
            let message = format!(
                "DSR {} over {decided} decided closes: {words}; long-lived objects are allocated in \
                 short-lived granules",
                units::dsr(Some(dsr))
            );
            found.push(subject.found(RULE.code, Severity::Warning, message));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    fn with(drainable: u64, pinned: u64) -> Vec<crate::Finding> {
        let mut snapshot = samples::drain_snapshot();
        let totals = &mut snapshot.targets[0].allocators[0].totals;
        (totals.drainable, totals.pinned) = (drainable, pinned);
        reported(&RULE, &snapshot)
    }

    /// The bands begin below 0.95, 0.8 and 0.5, and a handful of closes is not judged.
    #[test]
    fn bands() {
        assert!(with(95, 5).is_empty());
        assert!(with(94, 6)[0].message.contains("some closes"));
        assert!(with(79, 21)[0].message.contains("often"));
        assert!(with(49, 51)[0].message.contains("most closes"));
        assert!(with(0, 19).is_empty());
    }
}
