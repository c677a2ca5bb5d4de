//! `leak`: what is retained grows without an end in sight, and what that comes to in a day.

use super::{Case, Found, Rule, Subject};
use crate::{Growth, Kind, Weight};

pub(super) const RULE: Rule = Rule {
    code: "leak",
    what: "retention that grows steadily: the rate, and the forecast for a day",
    check,
};

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(&subject)).collect()
}

fn judge(subject: &Subject<'_>) -> Option<Found> {
    let retention = &subject.shown.retention;
    let held = match subject.shown.kind {
        Kind::Drain => "retention grows",
        Kind::Bulk | Kind::Slab => "the number of open granules grows",
    };
    let reason = retention.verdict_reason.as_ref()?;
    let (weight, how) = match retention.verdict? {
        Growth::LinearLeak => (Weight::Warning, "steadily"),
        Growth::Mixed => (Weight::Warning, "steadily, beside a part that comes and goes"),
        Growth::FreedAtShutdown if retention.slope_interval?[0] > 0.0 => {
            (Weight::Info, "until all is freed at the end")
        }
        _ => return None,
    };
    Some(subject.found(RULE.code, weight, format!("{held} {how}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::{super::told, *};
    use crate::samples;

    /// A steady growth is told with its forecast; a flat course and one that was not observed are silent.
    #[test]
    fn tells_the_forecast() {
        let found = told(&RULE, &samples::drain_snapshot());
        assert_eq!(found.len(), 1);
        let start = "retention grows steadily: +81.5 GiB/day at the present rate: 247 pinned closes/s \
                     × 4.0 KiB (95 %: ";
        assert!(found[0].message.starts_with(start), "{}", found[0].message);
        assert_eq!(found[0].weight, Weight::Warning);
        for quiet in [samples::bulk_snapshot(), samples::boundary_snapshot()] {
            assert!(told(&RULE, &quiet).is_empty());
        }
    }

    /// What was lost is not judged: a free that was not seen would look like a leak.
    #[test]
    fn losses_are_no_leak() {
        assert!(told(&RULE, &samples::incomplete_snapshot()).is_empty());
    }
}
