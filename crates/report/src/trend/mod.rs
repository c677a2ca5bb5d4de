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
#[cfg(test)]
mod site_tests;
#[cfg(test)]
mod tests;
mod words;

use drainprof_common::hist::Hist;
use drainprof_profile::Level;

use self::{judge::Judged, older::Older};
use super::{Growth, Kind, LiveOverTime, Retention, build::seconds};
use crate::{
    facts::{AllocatorFacts, SiteFacts, Snapshot, Survivors},
    fit::{self, At, Changes, Line},
    health::Health,
    series::{LiveSeries, Point, TimeSeries},
};

/// Seconds that must have been observed.
pub const MIN_SECONDS: f64 = 5.0;
/// Of as much, the first and the last sample miss a little.
const SLACK: f64 = 0.05;
/// Points of the curve that there must be.
pub const MIN_POINTS: usize = 40;
/// Granules that must have been held back, and by which a curve must have grown.
pub const MIN_GRANULES: f64 = 8.0;
/// The part of the time series, from its begin, by whose end those that do not stay must have gone.
pub const SETTLED: f64 = 0.5;
/// The share of the granule-seconds of those that went that settling is measured by.
pub const SETTLING: f64 = 0.9;
/// Growth below this share of what is held back anyway is none.
pub const MIN_GROWTH: f64 = 0.05;
/// Growth that goes on: the later half's is at least this share of the earlier half's.
pub const STEADY: f64 = 0.5;
/// Growth that ends: the later half's is below this share of the earlier half's.
pub const FLATTENED: f64 = 0.25;
/// A time series that does not grow reaches no new height: at most so many times the old one.
pub const HEIGHT: f64 = 1.1;
/// From this share of granules that went on, there is a bounded part too.
pub const TURNOVER: f64 = 0.05;
/// The last part of a run: what goes there went because the run ended.
pub const SHUTDOWN: f64 = 0.02;
/// What may be left of what was held back, if it was freed at the end.
pub const LEFT: f64 = 0.1;
/// The part of a time series that is cut off where pin delays say nothing of it, because its end made them.
const BEGINNING: f64 = 0.25;
/// A time series that has not settled stands still if, for as long, it stays so near to its mean.
pub const STILL: f64 = 0.125;
/// What was freed at the end had been there for at least this part of the run.
const LONG: f64 = 0.1;
/// Points of a time series that a report carries.
const POINTS: usize = 64;
const DAY: f64 = 86_400.0;

/// Whose granules or objects are judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subject {
    kind: Kind,
    /// Those of one site; else of a whole allocator instance.
    site: bool,
    /// Live objects; else granules.
    objects: bool,
    /// Of pages one of so many was examined, and numbers over time are estimates; 1: all.
    one_in: u32,
}

/// What is judged.
struct Case {
    subject: Subject,
    /// When the time series begins (`CLOCK_MONOTONIC` ns): all times below are since then.
    first_ns: u64,
    /// How many were held back at which time.
    held: Vec<At>,
    /// The same in bytes; empty where they are not known.
    bytes: Vec<At>,
    /// Granules so far that were there before they appeared; empty for objects.
    appeared: Vec<At>,
    /// Those that were held back at some time, and those of them that went.
    came: u64,
    went: u64,
    /// For how long those that went were held back.
    stays: Hist,
    /// What is held back now, by the time at which it came; `None` where that is not known.
    survivors: Option<Survivors>,
    /// Whether process or instance has ended.
    ended: bool,
    destroyed: bool,
}

/// The part of a time series from which slopes are taken, and what they are.
#[derive(Clone, Debug)]
struct Fitted {
    shape: Shape,
    /// Where the part begins and how long it is, seconds.
    from: f64,
    length: f64,
    line: Line,
    interval: [f64; 2],
    bytes: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Growing,
    Flattening,
    Flat,
    Unclear,
}

/// Adds to `retention` what its time series says.
pub(super) fn add(
    retention: &mut Retention,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
) {
    let kind = facts.profile.kind;
    // Without frees nobody knows when a pin goes; without opens, what is open.
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
    case.tell(retention, facts, snapshot);
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
        Case::of_live(facts, ended, sizes).tell_live(&mut known, facts, snapshot);
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
        Case::live_of_site(site, series, facts, (ended, sizes, one_in))
            .tell_live(&mut known, facts, snapshot);
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
    Case::of_site(site, facts, ended)?.tell(&mut scratch, facts, snapshot);
    scratch.verdict.zip(scratch.verdict_reason)
}

impl Case {
    /// Adds what the time series says, but for the time series itself.
    fn tell(&self, retention: &mut Retention, facts: &AllocatorFacts, snapshot: &Snapshot) {
        let complete = Health::from_counts(&snapshot.losses).complete();
        if snapshot.duty.is_some() {
            let (verdict, reason) = match self.came {
                0 => (Growth::None, words::none(self.subject)),
                _ => (Growth::TooEarly, words::windows()),
            };
            if complete {
                (retention.verdict, retention.verdict_reason) = (Some(verdict), Some(reason));
            }
            return;
        }
        let (verdict, reason, fitted) = self.beside_older(self.judge(), facts, snapshot);
        if let Some(fitted) = fitted {
            let [low, high] = fitted.interval;
            let slope = fitted.line.slope;
            retention.slope_granules_per_second = Some(slope);
            retention.slope_bytes_per_second = fitted.bytes;
            // Two estimates of one slope; who reads the interval expects the slope in it.
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
        let details = words::details(self.subject, verdict, retention);
        retention.verdict = Some(verdict);
        retention.verdict_reason = Some(words::join(details, reason));
    }

    /// Growth that may only take the place of objects from before the attach is not judged yet.
    fn beside_older(&self, judged: Judged, facts: &AllocatorFacts, snapshot: &Snapshot) -> Judged {
        let accused = matches!(judged.0, Growth::LinearLeak | Growth::Mixed);
        let Some(slope) = judged.2.as_ref().filter(|_| accused).map(|fitted| fitted.line.slope)
        else {
            return judged;
        };
        match Older::of(facts, snapshot) {
            Some(older) if older.explains(self.subject, slope) => {
                (Growth::TooEarly, words::older(), judged.2)
            }
            _ => judged,
        }
    }

    /// The same of live objects.
    fn tell_live(&self, live: &mut LiveOverTime, facts: &AllocatorFacts, snapshot: &Snapshot) {
        let mut scratch = Retention::default();
        self.tell(&mut scratch, facts, snapshot);
        live.objects_per_second = scratch.slope_granules_per_second;
        live.objects_per_second_interval = scratch.slope_interval;
        live.bytes_per_second = scratch.slope_bytes_per_second;
        live.r_squared = scratch.r_squared;
        live.verdict = scratch.verdict;
        live.verdict_reason = scratch.verdict_reason;
        live.forecast_bytes_per_day = scratch.forecast_bytes_per_day;
    }
}

/// A time series of live objects, not judged.
fn live(series: &LiveSeries, snapshot: &Snapshot, sizes: bool) -> LiveOverTime {
    let point = |(at, point): (f64, crate::series::LivePoint)| {
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
