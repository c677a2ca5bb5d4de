//! The sentences that go with a verdict.

use super::rules::{Fitted, MIN_GRANULES, MIN_POINTS, MIN_SECONDS, Shape, Subject};
use crate::{
    kind::Kind,
    model::{allocator::Retention, series::Growth},
    units,
};

const DAY: f64 = 86_400.0;

/// What is held back, in the plural.
const fn held(of: Subject) -> &'static str {
    match of {
        Subject { objects: true, .. } => "live objects",
        Subject { kind: Kind::Drain, .. } => "pinned granules",
        Subject { site: false, .. } => "open granules",
        Subject { site: true, .. } => "open granules with its objects",
    }
}

/// What takes a granule out of the curve.
const fn end(of: Subject) -> &'static str {
    match of {
        Subject { objects: true, .. } => "was freed",
        Subject { site: true, .. } => "went",
        Subject { kind: Kind::Drain, .. } => "drained",
        Subject { .. } => "was closed",
    }
}

pub(super) fn none(of: Subject) -> String {
    format!("there were no {}", held(of))
}

pub(super) fn windows() -> String {
    "observed only in windows, which form no time series".to_owned()
}

pub(super) fn short(seconds: f64) -> String {
    format!(
        "observed for {}; at least {} are needed",
        units::duration(seconds),
        units::duration(MIN_SECONDS)
    )
}

pub(super) fn few_points(points: usize) -> String {
    format!("{points} samples over time; at least {MIN_POINTS} are needed")
}

pub(super) fn few(of: Subject, came: u64) -> String {
    format!("there were {came} {}; at least {MIN_GRANULES} are needed", held(of))
}

pub(super) fn gaps() -> String {
    "the time series has gaps".to_owned()
}

pub(super) fn appearing() -> String {
    "granules from before the attach still appear".to_owned()
}

pub(super) fn older() -> String {
    "it grows, but as many objects from before the attach are freed: observe longer than those live"
        .to_owned()
}

pub(super) fn unsettled(of: Subject, settling: f64, length: f64) -> String {
    format!(
        "{} take {} to go; observed for {}: observe at least twice as long",
        held(of),
        units::duration(settling),
        units::duration(length)
    )
}

pub(super) fn ages_unknown() -> String {
    "it grows, and objects come and go: level stacks shows how old the live ones are".to_owned()
}

pub(super) fn kept() -> String {
    "growth came to an end, and hardly any was freed: kept for good, or leaked once".to_owned()
}

pub(super) fn freed(of: Subject, granules: f64, destroyed: bool) -> String {
    let whose = if destroyed { "instance" } else { "process" };
    format!("{granules:.0} {} went at the end of the {whose}", held(of))
}

/// What the time series rests on, and what it cannot tell.
pub(super) fn fitted(of: Subject, fitted: &Fitted, went: u64) -> String {
    let over = units::duration(fitted.length);
    match fitted.shape {
        Shape::Growing if went == 0 => {
            format!("none of them {} in {over}: those that stay longer look the same", end(of))
        }
        Shape::Growing => format!("over {over}; those that stay longer look the same"),
        Shape::Flattening => format!("growth came to an end within {over}"),
        Shape::Flat => format!("no growth over {over}"),
        Shape::Unclear => format!("it is not known after {over} whether growth goes on"),
    }
}

/// The forecast in words, and how sure it is; for growth only.
pub(super) fn details(of: Subject, verdict: Growth, retention: &Retention) -> Option<String> {
    let slope = retention.slope_granules_per_second?;
    let [low, high] = retention.slope_interval?;
    if verdict == Growth::FreedAtShutdown && low <= 0.0 {
        return None;
    }
    let growing = matches!(verdict, Growth::LinearLeak | Growth::Mixed | Growth::FreedAtShutdown);
    if !growing || slope <= 0.0 {
        return None;
    }
    let what = match (of.kind, verdict) {
        _ if of.objects => "objects/s that stay",
        (Kind::Drain, Growth::Mixed) => "pinned closes/s that do not drain",
        (Kind::Drain, _) => "pinned closes/s",
        (Kind::Bulk | Kind::Slab, _) if of.site => "granules/s that stay open with its objects",
        (Kind::Bulk | Kind::Slab, _) => "opens/s without a close",
    };
    let number = |rate: f64| units::rate(rate).trim_end_matches("/s").to_owned();
    let bytes = retention.slope_bytes_per_second.filter(|&bytes| bytes > 0.0);
    if let Some(bytes) = bytes.filter(|_| of.one_in > 1) {
        let day = units::byte_rate(bytes * DAY).replace("/s", "/day");
        return Some(format!("about +{day}, estimated from 1 of {} pages", of.one_in));
    }
    let when =
        if verdict == Growth::FreedAtShutdown { "until then" } else { "at the present rate" };
    let forecast = match bytes {
        Some(bytes) => format!(
            "+{} {when}: {} {what} × {}",
            units::byte_rate(bytes * DAY).replace("/s", "/day"),
            number(slope),
            units::bytes(rounded(bytes / slope))
        ),
        None => {
            format!("+{:.0} granules/day {when}: {} {what}", slope * DAY, number(slope))
        }
    };
    let fit = retention.r_squared.map(|fit| format!(", R² {fit:.3}")).unwrap_or_default();
    Some(format!("{forecast} (95 %: {} to {}{fit})", number(low), units::rate(high)))
}

#[allow(clippy::cast_sign_loss, reason = "not negative; the cast saturates")]
fn rounded(value: f64) -> u64 {
    value.max(0.0).round() as u64
}

pub(super) fn join(details: Option<String>, reason: String) -> String {
    match details {
        Some(details) => format!("{details}; {reason}"),
        None => reason,
    }
}
