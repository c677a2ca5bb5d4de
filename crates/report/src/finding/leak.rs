//! `leak`: what is retained grows without an end in sight, and what that comes to in a day.

use std::fmt::Write as _;

use super::{Case, Found, Rule, Subject, who_pins};
use crate::{Growth, Kind, Severity, Site};

/// Call paths that are named.
const MAX_NAMED_SITES: usize = 3;

pub(super) const RULE: Rule = Rule { code: "leak", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(&subject)).collect()
}

fn judge(subject: &Subject<'_>) -> Option<Found> {
    of_live(subject).or_else(|| of_granules(subject))
}

/// What is live grows, of the whole allocator or of call paths: of kind `slab`. Pages follow from that.
fn of_live(subject: &Subject<'_>) -> Option<Found> {
    let is_growing =
        |growth: Option<Growth>| matches!(growth, Some(Growth::LinearLeak | Growth::Mixed));
    let whole = subject.shown.live_over_time.as_ref();
    let whole = whole.filter(|live| is_growing(live.verdict));
    let is_slab = subject.shown.kind == Kind::Slab;
    let sites = subject.shown.sites.iter().flatten();
    let mut sites: Vec<(&Site, f64)> = sites
        .filter(|site| is_slab && is_growing(site.verdict))
        .map(|site| {
            let live = site.live_over_time.as_ref();
            (site, live.and_then(|live| live.bytes_per_second).unwrap_or_default())
        })
        .collect();
    sites.sort_by(|one, other| other.1.total_cmp(&one.1));
    let mut message = match (whole.and_then(|live| live.verdict_reason.as_ref()), &sites[..]) {
        (Some(reason), _) => format!("live memory grows steadily: {reason}"),
        (None, []) => return None,
        (None, _) => "live memory of call stacks grows steadily".to_owned(),
    };
    for (site, _) in sites.iter().take(MAX_NAMED_SITES) {
        let reason = site.verdict_reason.as_deref().unwrap_or_default();
        let _ = write!(message, "; {} keeps: {reason}", who_pins::path(site));
    }
    if sites.len() > MAX_NAMED_SITES {
        let _ = write!(message, "; and {} more call stacks", sites.len() - MAX_NAMED_SITES);
    }
    Some(subject.found(RULE.code, Severity::Warning, message))
}

fn of_granules(subject: &Subject<'_>) -> Option<Found> {
    let retention = &subject.shown.retention;
    let held = match subject.shown.kind {
        Kind::Drain => "retention grows",
        Kind::Bulk | Kind::Slab => "the number of open granules grows",
    };
    let reason = retention.verdict_reason.as_ref()?;
    let (severity, how) = match retention.verdict? {
        Growth::LinearLeak => (Severity::Warning, "steadily"),
        Growth::Mixed => (Severity::Warning, "steadily, beside a part that comes and goes"),
        Growth::FreedAtShutdown if retention.slope_interval?[0] > 0.0 => {
            (Severity::Info, "until all is freed at the end")
        }
        _ => return None,
    };
    Some(subject.found(RULE.code, severity, format!("{held} {how}: {reason}")))
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    /// A steady growth is reported with its forecast; a flat time series and one that was not observed are silent.
    #[test]
    fn reports_the_forecast() {
        let found = reported(&RULE, &samples::drain_snapshot());
        assert_eq!(found.len(), 1);
        let start = "retention grows steadily: +81.5 GiB/day at the present rate: 247 pinned closes/s \
                     × 4.0 KiB (95 %: ";
        assert!(found[0].message.starts_with(start), "{}", found[0].message);
        assert_eq!(found[0].severity, Severity::Warning);
        for quiet in [samples::bulk_snapshot(), samples::boundary_snapshot()] {
            assert!(reported(&RULE, &quiet).is_empty());
        }
    }

    /// What was lost is not judged: a free that was not seen would look like a leak.
    #[test]
    fn losses_are_no_leak() {
        assert!(reported(&RULE, &samples::incomplete_snapshot()).is_empty());
    }
}
