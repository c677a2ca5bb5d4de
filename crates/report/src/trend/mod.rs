//! What R(t) means: slope, forecast and verdict, of allocators and of sites.
//!
//! Facts come from `series::HeldSeries` and `series::SiteSeries`; here they are judged. The rules and their thresholds are explained
//! in `docs/retention.md`. Called when a report is built.

#[cfg(test)]
mod generated_tests;
#[cfg(test)]
mod site_tests;
#[cfg(test)]
mod tests;
mod words;

use drainprof_common::hist::{BUCKETS, Hist, lower_bound};
use drainprof_profile::Level;

use super::{Growth, Kind, Retention, build::seconds};
use crate::{
    facts::{AllocatorFacts, SiteFacts, Snapshot},
    fit::{self, At, Changes, Line},
    health::Health,
    series::{HeldBytes, HeldSeries, held_bytes},
};

/// Seconds that must have been observed.
pub const MIN_SECONDS: f64 = 5.0;
/// Points of the curve that there must be.
pub const MIN_POINTS: usize = 40;
/// Granules that must have been held back, and by which a curve must have grown.
pub const MIN_GRANULES: f64 = 8.0;
/// The part of the course, from its begin, by whose end those that do not stay must have gone.
pub const SETTLED: f64 = 0.5;
/// The share of the granule-seconds of those that went that settling is measured by.
pub const SETTLING: f64 = 0.9;
/// Growth below this share of what is held back anyway is none.
pub const MIN_GROWTH: f64 = 0.05;
/// Growth that goes on: the later half's is at least this share of the earlier half's.
pub const STEADY: f64 = 0.5;
/// Growth that ends: the later half's is below this share of the earlier half's.
pub const FLATTENED: f64 = 0.25;
/// A course that does not grow reaches no new height: at most so many times the old one.
pub const HEIGHT: f64 = 1.1;
/// From this share of granules that went on, there is a bounded part too.
pub const TURNOVER: f64 = 0.05;
/// The last part of a run: what goes there went because the run ended.
pub const SHUTDOWN: f64 = 0.02;
/// What may be left of what was held back, if it was freed at the end.
pub const LEFT: f64 = 0.1;
/// The part of a course that is cut off where pin delays say nothing of it, because its end made them.
const BEGINNING: f64 = 0.25;
/// Points of the curve that a report carries.
const TOLD: usize = 64;
const DAY: f64 = 86_400.0;

/// Whose granules are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Subject {
    kind: Kind,
    /// Those of one site; else of a whole allocator instance.
    site: bool,
}

/// What is judged.
struct Case<'a> {
    subject: Subject,
    curve: &'a HeldSeries,
    /// Time since the first point, granules held back.
    granules: Vec<At>,
    /// The same in bytes; empty where they are not known.
    bytes: Vec<At>,
    /// Granules so far that were there before they appeared.
    appeared: Vec<At>,
    /// Granules that were held back at some time, and those of them that went.
    came: u64,
    went: u64,
    /// How long those that went were held back, seconds; see [`settling`].
    settling: f64,
    /// Whether process or instance has ended.
    ended: bool,
    destroyed: bool,
}

/// The part of a course from which slopes are taken, and what they are.
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

/// Adds to `retention` what its course says.
pub(super) fn add(
    retention: &mut Retention,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
) {
    let kind = facts.profile.kind;
    // Without frees nobody knows when a pin goes.
    if kind == Kind::Drain && facts.level == Level::Boundary {
        return;
    }
    let case = Case::of(facts, ended);
    retention.series = Some(told(&case, snapshot));
    case.tell(retention, snapshot);
}

/// The verdict on what a site holds back, and why; `None` where its course is not known, or something was lost.
pub(super) fn of_site(
    site: &SiteFacts,
    facts: &AllocatorFacts,
    snapshot: &Snapshot,
    ended: bool,
) -> Option<(Growth, String)> {
    let mut scratch = Retention::default();
    Case::of_site(site, facts, ended)?.tell(&mut scratch, snapshot);
    scratch.verdict.zip(scratch.verdict_reason)
}

impl Case<'_> {
    /// Adds what the course says, but for the course itself.
    fn tell(&self, retention: &mut Retention, snapshot: &Snapshot) {
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
        let (verdict, reason, fitted) = self.judge();
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
}

impl<'a> Case<'a> {
    fn of(facts: &'a AllocatorFacts, ended: bool) -> Self {
        let kind = facts.profile.kind;
        let totals = &facts.totals;
        let (came, went) = if kind == Kind::Drain {
            (totals.pinned, totals.late_drained)
        } else {
            let elsewhere = totals.migrated + totals.ended_with_parent;
            let went = totals.closed() + elsewhere + totals.reopened + facts.destroyed_open;
            (totals.opened + totals.opened_before, went)
        };
        let stays: &mut dyn Iterator<Item = &Hist> = if kind == Kind::Drain {
            &mut std::iter::once(&facts.pin_delays)
        } else {
            &mut facts.lifetimes.values()
        };
        let settling = settling(stays);
        let curve = &facts.over_time;
        Self {
            came,
            went,
            settling,
            ..Self::on(curve, Subject { kind, site: false }, facts, ended)
        }
    }

    /// `None` where the site's course is not known.
    fn of_site(site: &'a SiteFacts, facts: &'a AllocatorFacts, ended: bool) -> Option<Self> {
        static NOTHING: HeldSeries = HeldSeries::new();
        let kind = facts.profile.kind;
        let own = site.over_time.as_ref();
        // Objects without ids are seen to come, and nobody knows which of them go.
        site.live?;
        let (came, went) = if kind == Kind::Drain {
            (site.granules_pinned, site.granules_pinned.saturating_sub(site.granules_retained))
        } else {
            own.map(|own| (own.came, own.went))?
        };
        // What never pinned anything needs no course to say so.
        let curve = match own {
            Some(own) => &own.held,
            None if came == 0 => &NOTHING,
            None => return None,
        };
        // Of other kinds it is not told when a site's last object leaves a granule: at the latest when that is closed.
        let stays = match kind {
            Kind::Drain => Some(&site.delays),
            Kind::Bulk | Kind::Slab => facts.lifetimes.get(&site.opened_at),
        };
        let settling = settling(stays);
        Some(Self {
            came,
            went,
            settling,
            ..Self::on(curve, Subject { kind, site: true }, facts, ended)
        })
    }

    fn on(curve: &'a HeldSeries, subject: Subject, facts: &AllocatorFacts, ended: bool) -> Self {
        let first = curve.points().next().map_or(0, |point| point.at_ns);
        let points = || curve.points().map(|at| (seconds(at.at_ns - first), at));
        let bytes_known = held_bytes(&facts.profile) != HeldBytes::Unknown;
        Self {
            subject,
            curve,
            granules: points().map(|(time, at)| (time, at.granules as f64)).collect(),
            bytes: points()
                .filter(|_| bytes_known)
                .map(|(time, at)| (time, at.bytes as f64))
                .collect(),
            appeared: points().map(|(time, at)| (time, at.appeared as f64)).collect(),
            came: 0,
            went: 0,
            settling: 0.0,
            ended: ended || facts.destroyed,
            destroyed: facts.destroyed,
        }
    }

    fn length(&self) -> f64 {
        self.granules.last().map_or(0.0, |last| last.0)
    }

    /// The verdict, why, and the course that it was taken from.
    fn judge(&self) -> (Growth, String, Option<Fitted>) {
        let held = self.granules.iter().any(|at| at.1 > 0.0);
        if self.came == 0 && !held {
            return (Growth::None, words::none(self.subject), None);
        }
        let early = |reason| (Growth::TooEarly, reason, None);
        if self.length() < MIN_SECONDS {
            return early(words::short(self.length()));
        }
        if self.granules.len() < MIN_POINTS {
            return early(words::few_points(self.granules.len()));
        }
        if (self.came as f64) < MIN_GRANULES {
            return early(words::few(self.subject, self.came));
        }
        if let Some(found) = self.freed_at_shutdown() {
            return found;
        }
        let settling = self.settling;
        if settling > self.length() * SETTLED {
            return early(words::unsettled(self.subject, settling, self.length()));
        }
        let Some(fitted) = self.fitted(settling, &self.granules) else {
            return early(words::gaps());
        };
        let reason = words::fitted(self.subject, &fitted, self.went);
        let verdict = match fitted.shape {
            Shape::Flat | Shape::Flattening => Growth::Bounded,
            Shape::Unclear => Growth::TooEarly,
            Shape::Growing if self.appearing(&fitted) => {
                return (Growth::TooEarly, words::appearing(), Some(fitted));
            }
            Shape::Growing if self.went as f64 >= TURNOVER * self.came as f64 => Growth::Mixed,
            Shape::Growing => Growth::LinearLeak,
        };
        (verdict, reason, Some(fitted))
    }

    /// Whether growth may be that of granules which were there before, but first appear when used.
    fn appearing(&self, fitted: &Fitted) -> bool {
        if self.subject.kind == Kind::Drain {
            return false;
        }
        let tail = &self.appeared[self.appeared.partition_point(|at| at.0 < fitted.from)..];
        let appeared = tail.last().map_or(0.0, |at| at.1) - tail.first().map_or(0.0, |at| at.1);
        fitted.line.slope * fitted.length < 2.0 * appeared
    }

    /// The verdict where what was held back went with the end of the run.
    fn freed_at_shutdown(&self) -> Option<(Growth, String, Option<Fitted>)> {
        let length = self.length();
        let until = |share: f64| {
            let count = self.granules.partition_point(|at| at.0 <= length * (1.0 - share));
            &self.granules[..count]
        };
        let body = until(SHUTDOWN);
        let (held, left) = (body.last()?.1, self.granules.last()?.1);
        let since_long = until(2.0 * SHUTDOWN).last()?.1 >= held / 2.0;
        if !self.ended || held < MIN_GRANULES || left > held * LEFT || !since_long {
            return None;
        }
        let went_before = self.went as f64 - (held - left);
        let fitted = self.fitted(length * BEGINNING, body);
        let freed = words::freed(self.subject, held, self.destroyed);
        if went_before < TURNOVER * self.came as f64 {
            return Some((Growth::FreedAtShutdown, freed, fitted));
        }
        let fitted = fitted?;
        let verdict = match fitted.shape {
            Shape::Growing => Growth::FreedAtShutdown,
            Shape::Flat | Shape::Flattening => Growth::Bounded,
            Shape::Unclear => Growth::TooEarly,
        };
        Some((verdict, freed, Some(fitted)))
    }

    /// The course from second `from` on; `None` where it has too few points.
    fn fitted(&self, from: f64, points: &[At]) -> Option<Fitted> {
        let tail = &points[points.partition_point(|at| at.0 < from)..];
        let (line, changes) = (fit::line(tail)?, Changes::of(tail)?);
        let (begin, end) = (tail.first()?.0, tail.last()?.0);
        let bytes = self.bytes.get(points.len() - tail.len()..points.len()).unwrap_or_default();
        let mut fitted = Fitted {
            shape: Shape::Unclear,
            from: begin,
            length: end - begin,
            line,
            interval: changes.interval(),
            bytes: fit::line(bytes).map(|line| line.slope),
        };
        fitted.shape = shape(&fitted, tail, changes);
        Some(fitted)
    }
}

/// Grows beyond doubt and by an amount that matters; and then, whether it goes on growing.
fn shape(fitted: &Fitted, tail: &[At], changes: Changes) -> Shape {
    let level = fit::mean(tail).map_or(0.0, |mean| mean.1);
    let growth = fitted.line.slope * fitted.length;
    if fitted.interval[0] > 0.0 && growth >= MIN_GRANULES.max(MIN_GROWTH * level) {
        let [early, late] = changes.halves();
        return match late {
            late if late >= STEADY * early => Shape::Growing,
            late if late < FLATTENED * early => Shape::Flattening,
            _ => Shape::Unclear,
        };
    }
    let middle = fitted.from + fitted.length / 2.0;
    let (early, late) = tail.split_at(tail.partition_point(|at| at.0 < middle));
    let [early, late] =
        [early, late].map(|half| half.iter().fold(0.0, |most: f64, at| most.max(at.1)));
    if late <= (HEIGHT * early).max(early + MIN_GRANULES) { Shape::Flat } else { Shape::Unclear }
}

/// How long those that do not stay are held back, seconds: [`SETTLING`] of all granule-seconds are of
/// granules that went sooner. Until then R(t) grows even if it is bounded, because nothing was held back
/// in our sight when we began to look.
fn settling<'a>(stays: impl IntoIterator<Item = &'a Hist>) -> f64 {
    let mut all = Hist::new();
    stays.into_iter().for_each(|hist| all.merge(hist));
    let weight = |index: usize| {
        let high = if index + 1 < BUCKETS { lower_bound(index + 1) } else { all.max };
        let middle = lower_bound(index).midpoint(high.max(lower_bound(index))).min(all.max);
        (seconds(middle), seconds(middle) * f64::from(all.buckets[index]))
    };
    let whole: f64 = (0..BUCKETS).map(|index| weight(index).1).sum();
    let mut sum = 0.0;
    for (time, share) in (0..BUCKETS).map(weight).filter(|&(_, share)| share > 0.0) {
        sum += share;
        if sum >= SETTLING * whole {
            return time;
        }
    }
    0.0
}

/// The curve as a report carries it: times on the scale of `window.seconds`, thinned evenly, with the
/// first and the last point.
fn told(case: &Case<'_>, snapshot: &Snapshot) -> Vec<(f64, u64, Option<u64>)> {
    let begin = snapshot.now_ns.saturating_sub(snapshot.window.as_nanos() as u64);
    let points: Vec<_> = case.curve.points().collect();
    let step = points.len().div_ceil(TOLD).max(1);
    let last = points.len().saturating_sub(1);
    let picked = points.iter().enumerate().filter(|&(at, _)| at % step == 0 || at == last);
    picked
        .map(|(_, point)| {
            let bytes = (!case.bytes.is_empty()).then_some(point.bytes);
            (seconds(point.at_ns.saturating_sub(begin)), point.granules, bytes)
        })
        .collect()
}
