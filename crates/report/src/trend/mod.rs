//! What time series mean: slope, forecast and verdict, of allocators and of sites.
//!
//! Facts come from `series`; here they are judged. Kinds `drain` and `bulk`, and the pages of kind `slab`, are judged by the
//! granules that are held back. Sites of kind `slab` share their granules, so they are judged by their own live objects. The
//! rules and their thresholds are explained in `docs/retention.md`. Called when a report is built.

mod case;
#[cfg(test)]
mod generated_tests;
mod judge;
#[cfg(test)]
mod live_tests;
mod older;
mod rules;
#[cfg(test)]
mod site_tests;
#[cfg(test)]
mod tests;
mod words;

use drainprof_profile::Level;

use self::{case::Case, judge::Judged, older::Older};
use crate::{
    facts::{AllocatorFacts, SiteFacts, Snapshot},
    health::Health,
    kind::Kind,
    known::seconds,
    model::{
        allocator::Retention,
        series::{Growth, LiveOverTime},
    },
    series::{LivePoint, LiveSeries, Point, TimeSeries},
};

/// Points of a time series that a report carries.
const POINTS: usize = 64;
const DAY: f64 = 86_400.0;

/// Adds to `retention` what its time series says.
pub(super) fn add(
    retention: &mut Retention,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
) {
    let kind = facts.profile.kind;
    // Without frees it is not known when a pin goes; without opens, what is open.
    let blind = if kind == Kind::Drain { Level::Boundary } else { Level::Close };
    if facts.level <= blind {
        return;
    }
    let case = Case::of(facts, ended);
    let known = !case.bytes.is_empty();
    let points = thinned(&facts.over_time, snapshot);
    retention.series = Some(
        points.map(|(at, point)| (at, point.granules, known.then_some(point.bytes))).collect(),
    );
    fill(&case, retention, facts, snapshot);
}

/// What was live of an allocator over time; `None` where that is not known.
pub(super) fn of_live(
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
    sizes: bool,
) -> Option<LiveOverTime> {
    let series = &facts.live_over_time;
    (!series.is_empty()).then(|| {
        let mut known = live(series, snapshot, sizes);
        fill_live(&Case::of_live(facts, ended, sizes), &mut known, facts, snapshot);
        known
    })
}

/// What was live of a site over time; judged only of kind `slab`, whose sites share their granules.
pub(super) fn live_of_site(
    site: &SiteFacts,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
    sizes: bool,
) -> Option<LiveOverTime> {
    let series = &site.over_time.as_ref()?.live;
    site.live.filter(|_| !series.is_empty())?;
    let mut known = live(series, snapshot, sizes);
    if facts.profile.kind == Kind::Slab {
        let one_in = snapshot.sample.max(1);
        let case = Case::live_of_site(site, series, facts, (ended, sizes, one_in));
        fill_live(&case, &mut known, facts, snapshot);
    }
    Some(known)
}

/// The verdict on what a site holds back, and why; `None` where its time series is not known, or something was lost.
pub(super) fn of_site(
    site: &SiteFacts,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
) -> Option<(Growth, String)> {
    let mut scratch = Retention::default();
    fill(&Case::of_site(site, facts, ended)?, &mut scratch, facts, snapshot);
    scratch.verdict.zip(scratch.verdict_reason)
}

/// Adds what the time series says, but for the time series itcase.
fn fill(case: &Case, retention: &mut Retention, facts: &AllocatorFacts, snapshot: &Snapshot) {
    let complete = Health::from_counts(&snapshot.losses).complete();
    if snapshot.duty.is_some() {
        let (verdict, reason) = match case.came {
            0 => (Growth::None, words::none(case.subject)),
            _ => (Growth::TooEarly, words::windows()),
        };
        if complete {
            (retention.verdict, retention.verdict_reason) = (Some(verdict), Some(reason));
        }
        return;
    }
    let (verdict, reason, fitted) = beside_older(case, case.judge(), facts, snapshot);
    if let Some(fitted) = fitted {
        let [low, high] = fitted.interval;
        let slope = fitted.line.slope;
        retention.slope_granules_per_second = Some(slope);
        retention.slope_bytes_per_second = fitted.bytes;
        // Two estimates of one slope: the interval must contain the slope.
        retention.slope_interval = Some([low.min(slope), high.max(slope)]);
        retention.r_squared = fitted.line.r_squared;
    }
    // A pin whose free was lost looks like one that is never freed, and a full map like a bound.
    if !complete {
        return;
    }
    if matches!(verdict, Growth::LinearLeak | Growth::Mixed) {
        retention.forecast_bytes_per_day =
            retention.slope_bytes_per_second.map(|slope| slope * DAY);
    }
    let details = words::details(case.subject, verdict, retention);
    retention.verdict = Some(verdict);
    retention.verdict_reason = Some(words::join(details, reason));
}

/// Growth that may only take the place of objects from before the attach is not judged yet.
fn beside_older(
    case: &Case,
    judged: Judged,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
) -> Judged {
    let accused = matches!(judged.0, Growth::LinearLeak | Growth::Mixed);
    let Some(slope) = judged.2.as_ref().filter(|_| accused).map(|fitted| fitted.line.slope) else {
        return judged;
    };
    match Older::of(facts, snapshot) {
        Some(older) if older.explains(case.subject, slope) => {
            (Growth::TooEarly, words::older(), judged.2)
        }
        _ => judged,
    }
}

/// The same of live objects.
fn fill_live(case: &Case, live: &mut LiveOverTime, facts: &AllocatorFacts, snapshot: &Snapshot) {
    let mut scratch = Retention::default();
    fill(case, &mut scratch, facts, snapshot);
    live.objects_per_second = scratch.slope_granules_per_second;
    live.objects_per_second_interval = scratch.slope_interval;
    live.bytes_per_second = scratch.slope_bytes_per_second;
    live.r_squared = scratch.r_squared;
    live.verdict = scratch.verdict;
    live.verdict_reason = scratch.verdict_reason;
    live.forecast_bytes_per_day = scratch.forecast_bytes_per_day;
}

/// A time series of live objects, not judged.
fn live(series: &LiveSeries, snapshot: &Snapshot, sizes: bool) -> LiveOverTime {
    let point = |(at, point): (f64, LivePoint)| {
        (at, point.objects, sizes.then_some(point.bytes), point.allocated)
    };
    LiveOverTime {
        series: thinned(series, snapshot).map(point).collect(),
        ..LiveOverTime::default()
    }
}

/// A time series as a report carries it: times on the scale of `window.seconds`, thinned evenly, with the
/// first and the last point.
pub(crate) fn thinned<P: Point + Copy>(
    series: &TimeSeries<P>,
    snapshot: &Snapshot,
) -> impl Iterator<Item = (f64, P)> + use<P> {
    let begin = snapshot.begin_ns();
    let points: Vec<P> = series.points().collect();
    let step = points.len().div_ceil(POINTS).max(1);
    let last = points.len().saturating_sub(1);
    let picked = points.into_iter().enumerate();
    picked
        .filter(move |&(at, _)| at % step == 0 || at == last)
        .map(move |(_, point)| (seconds(point.at_ns().saturating_sub(begin)), point))
}
