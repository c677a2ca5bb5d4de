//! `pinned`: closes at which objects were live, what they retain, and at which rate.

use super::{Case, Found, Rule, Subject};
use crate::{Severity, units};

pub(super) const RULE: Rule = Rule { code: "pinned", check };

fn check(case: &Case<'_>) -> Vec<Found> {
    case.subjects().filter_map(|subject| judge(case, &subject)).collect()
}

fn judge(case: &Case<'_>, subject: &Subject<'_>) -> Option<Found> {
    let pinned = subject.shown.granules.pinned;
    let dsr = subject.shown.dsr.filter(|&dsr| dsr < 1.0)?;
    let pins = subject.shown.pins;
    let mut parts = vec![format!(
        "{pinned} of {} decided closes were pinned ({}), by {} objects",
        subject.shown.granules.decided(),
        units::percent(1.0 - dsr),
        pins.objects
    )];
    let retention = &subject.shown.retention;
    if let (Some(granules), Some(drained)) = (retention.granules, retention.late_drained) {
        let held =
            retention.bytes.map(|bytes| format!(" ({})", units::bytes(bytes))).unwrap_or_default();
        let retained = if retention.is_cut() {
            "what is retained now was not seen".to_owned()
        } else {
            format!("{granules} granules{held} are retained now")
        };
        parts.push(format!("; {retained}, {drained} drained late"));
    } else {
        parts.push("; late drains are not tracked at level boundary".to_owned());
    }
    if let Some(rate) = case.per_second(pinned) {
        parts.push(format!("; pinned closes come at {}", units::rate(rate)));
        // Granules of one allocator differ in size, so the mean of the pinned ones stands for them.
        if let Some(bytes) = pins.bytes.filter(|&bytes| bytes > 0 && pinned > 0) {
            let each = units::bytes(bytes / pinned);
            let growth = units::byte_rate(rate * bytes as f64 / pinned as f64);
            parts.push(format!(" × {each} = {growth} unless they drain"));
        }
        let drain_rate = retention.late_drained.and_then(|drained| case.per_second(drained));
        if let Some(drain_rate) = drain_rate.filter(|&rate| rate > 0.0) {
            parts.push(format!(", late drains at {}", units::rate(drain_rate)));
        }
    }
    Some(subject.found(RULE.code, Severity::Warning, parts.concat()))
}

#[cfg(test)]
mod tests {
    use super::{super::reported, *};
    use crate::samples;

    /// Reported with what is retained and the rate at which it grows.
    #[test]
    fn reports_amount_and_rate() {
        let message = reported(&RULE, &samples::drain_snapshot())[0].message.clone();
        assert_eq!(
            message,
            "2474 of 10000 decided closes were pinned (24.7 %), by 2474 objects; 2474 granules \
             (9.7 MiB) are retained now, 0 drained late; pinned closes come at 247/s × 4.0 KiB = \
             989.6 KiB/s unless they drain"
        );
    }

    /// Granules that were pinned when a window ended are not followed: it is not known what is retained.
    #[test]
    fn windows_cut_it_off() {
        let message = reported(&RULE, &samples::duty_snapshot())[0].message.clone();
        assert!(message.contains("; what is retained now was not seen, "), "{message}");
    }

    /// At level `boundary` it does not pretend to know what is retained.
    #[test]
    fn boundary_says_so() {
        let message = reported(&RULE, &samples::boundary_snapshot())[0].message.clone();
        assert!(message.contains("not tracked at level boundary"), "{message}");
        assert!(!message.contains("retained now"), "{message}");
    }

    /// A DSR of 1 and a kind without DSR are silent.
    #[test]
    fn healthy_is_silent() {
        let mut snapshot = samples::drain_snapshot();
        snapshot.targets[0].allocators[0].totals.pinned = 0;
        assert!(reported(&RULE, &snapshot).is_empty());
        assert!(reported(&RULE, &samples::bulk_snapshot()).is_empty());
    }
}
