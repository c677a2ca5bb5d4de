//! The rules, in the order of `docs/retention.md`: from a case to a verdict and its reason.

use drainprof_common::hist::{BUCKETS, Hist, lower_bound};

use super::{
    case::Case,
    rules::{
        BEGINNING, FLATTENED, Fitted, HEIGHT, LEFT, LONG, MIN_GRANULES, MIN_GROWTH, MIN_POINTS,
        MIN_SECONDS, SETTLED, SETTLING, SHUTDOWN, SLACK, STEADY, STILL, Shape, TURNOVER,
    },
    words,
};
use crate::{
    fit::{self, At, Changes},
    kind::Kind,
    known::seconds,
    model::series::Growth,
};

/// The verdict, why, and the time series that it was taken from.
pub(super) type Judged = (Growth, String, Option<Fitted>);

impl Case {
    fn length(&self) -> f64 {
        self.held.last().map_or(0.0, |last| last.0)
    }

    /// What went was a part of what came that matters.
    fn turns_over(&self) -> bool {
        self.went as f64 >= TURNOVER * self.came as f64
    }

    pub(super) fn judge(&self) -> Judged {
        let held = self.held.iter().any(|at| at.1 > 0.0);
        if self.came == 0 && !held {
            return (Growth::None, words::none(self.subject), None);
        }
        let early = |reason| (Growth::TooEarly, reason, None);
        if self.length() < MIN_SECONDS - SLACK {
            return early(words::short(self.length()));
        }
        if self.held.len() < MIN_POINTS {
            return early(words::few_points(self.held.len()));
        }
        if (self.came as f64) < MIN_GRANULES {
            return early(words::few(self.subject, self.came));
        }
        if let Some(found) = self.freed_at_shutdown() {
            return found;
        }
        let settling = settling(&self.stays);
        if let Some(found) = self.what_stays(settling) {
            return found;
        }
        let limit = if self.survivors.is_some() { SETTLED / 2.0 } else { SETTLED };
        if settling > self.length() * limit {
            return self
                .still()
                .unwrap_or_else(|| early(words::unsettled(self.subject, settling, self.length())));
        }
        let Some(fitted) = self.fitted(settling, &self.held) else {
            return early(words::gaps());
        };
        match fitted.shape {
            Shape::Growing if self.appearing(&fitted) => {
                (Growth::TooEarly, words::appearing(), Some(fitted))
            }
            // How old the live ones are is not known: they may all be young.
            Shape::Growing if self.subject.objects && self.turns_over() => {
                (Growth::TooEarly, words::ages_unknown(), Some(fitted))
            }
            _ => self.verdict_on(fitted),
        }
    }

    /// The verdict on a time series that has settled.
    fn verdict_on(&self, fitted: Fitted) -> Judged {
        let reason = words::fitted(self.subject, &fitted, self.went);
        let verdict = match fitted.shape {
            // What was kept once may be meant to be, or may have leaked once: the series does not distinguish these.
            Shape::Flat | Shape::Flattening if self.subject.objects && !self.turns_over() => {
                return (Growth::TooEarly, words::kept(), Some(fitted));
            }
            Shape::Flat | Shape::Flattening => Growth::Bounded,
            Shape::Unclear => Growth::TooEarly,
            Shape::Growing if self.turns_over() => Growth::Mixed,
            Shape::Growing => Growth::LinearLeak,
        };
        (verdict, reason, Some(fitted))
    }

    /// The verdict by what is still there of all that came, where that is known: what comes and goes is not in it, however
    /// its number swings. What is too young to have gone is left out.
    fn what_stays(&self, settling: f64) -> Option<Judged> {
        let survivors = self.survivors.as_ref()?;
        let oldest = self.length() - 2.0 * settling;
        if oldest < self.length() * (1.0 - SETTLED) {
            return None;
        }
        let first = self.first_ns.saturating_sub(survivors.bin_ns());
        let (mut count, mut bytes) = (0.0, 0.0);
        let (mut counts, mut sizes) = (Vec::new(), Vec::new());
        for bin in survivors.bins().filter(|bin| bin.at_ns >= first) {
            let end = bin.at_ns.saturating_add(survivors.bin_ns());
            let at = seconds(end.saturating_sub(self.first_ns));
            if at > oldest {
                break;
            }
            count += bin.objects as f64;
            bytes += bin.bytes as f64;
            counts.push((at, count));
            sizes.push((at, bytes));
        }
        if counts.is_empty() {
            // Nothing is there.
            counts = self.held.iter().map(|at| (at.0, 0.0)).collect();
            sizes.clone_from(&counts);
        }
        let sizes = if self.bytes.is_empty() { &[][..] } else { &sizes };
        Some(self.verdict_on(fitted(&counts, sizes, self.least())?))
    }

    /// Growth below is none.
    fn least(&self) -> f64 {
        MIN_GRANULES * f64::from(self.subject.one_in)
    }

    /// The verdict on what has not settled, but has stood still for half of the time although much of it went.
    fn still(&self) -> Option<Judged> {
        let from = self.length() * SETTLED;
        let tail = &self.held[self.held.partition_point(|at| at.0 < from)..];
        let level = fit::mean(tail)?.1;
        let room = (STILL * level).max(MIN_GRANULES);
        let fitted = self.fitted(from, &self.held)?;
        let is_still = tail.iter().all(|at| (at.1 - level).abs() <= room) && self.turns_over();
        is_still.then(|| self.verdict_on(Fitted { shape: Shape::Flat, ..fitted }))
    }

    /// Whether growth may be that of granules which were there before, but first appear when used.
    fn appearing(&self, fitted: &Fitted) -> bool {
        if self.subject.kind == Kind::Drain || self.subject.objects {
            return false;
        }
        let tail = &self.appeared[self.appeared.partition_point(|at| at.0 < fitted.from)..];
        let appeared = tail.last().map_or(0.0, |at| at.1) - tail.first().map_or(0.0, |at| at.1);
        fitted.line.slope * fitted.length < 2.0 * appeared
    }

    /// The verdict where what was held back went with the end of the run.
    fn freed_at_shutdown(&self) -> Option<Judged> {
        let length = self.length();
        let until = |share: f64| {
            let count = self.held.partition_point(|at| at.0 <= length * (1.0 - share));
            &self.held[..count]
        };
        let body = until(SHUTDOWN);
        let (held, left) = (body.last()?.1, self.held.last()?.1);
        let since_long = until(2.0 * SHUTDOWN).last()?.1 >= held / 2.0;
        if !self.ended || held < MIN_GRANULES || left > held * LEFT || !since_long {
            return None;
        }
        if self.went_old().is_some_and(|old| old < (held - left) / 2.0) {
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

    /// How many had been there for long when they went; `None` where that is not known.
    fn went_old(&self) -> Option<f64> {
        let old = |index: &usize| seconds(lower_bound(*index)) >= LONG * self.length();
        let count = (0..BUCKETS).filter(old).map(|index| f64::from(self.stays.buckets[index]));
        (self.stays.count >= self.went / 2 && self.went > 0).then(|| count.sum())
    }

    /// The time series from second `from` on; `None` where it has too few points.
    fn fitted(&self, from: f64, points: &[At]) -> Option<Fitted> {
        let tail = &points[points.partition_point(|at| at.0 < from)..];
        let bytes = self.bytes.get(points.len() - tail.len()..points.len()).unwrap_or_default();
        fitted(tail, bytes, self.least())
    }
}

fn fitted(tail: &[At], bytes: &[At], least: f64) -> Option<Fitted> {
    let (line, changes) = (fit::line(tail)?, Changes::of(tail)?);
    let (begin, end) = (tail.first()?.0, tail.last()?.0);
    let mut fitted = Fitted {
        shape: Shape::Unclear,
        from: begin,
        length: end - begin,
        line,
        interval: changes.interval(),
        bytes: fit::line(bytes).map(|line| line.slope),
    };
    fitted.shape = shape(&fitted, tail, changes, least);
    Some(fitted)
}

/// Grows beyond doubt and by an amount that matters; and then, whether it continues.
fn shape(fitted: &Fitted, tail: &[At], changes: Changes, least: f64) -> Shape {
    let level = fit::mean(tail).map_or(0.0, |mean| mean.1);
    let growth = fitted.line.slope * fitted.length;
    if fitted.interval[0] > 0.0 && growth >= least.max(MIN_GROWTH * level) {
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
    if late <= (HEIGHT * early).max(early + least) { Shape::Flat } else { Shape::Unclear }
}

/// How long those that do not stay are held back, seconds: [`SETTLING`] of all granule-seconds are of
/// granules that went sooner. Until then R(t) grows even if it is bounded, because nothing was held back
/// in our sight when we began to look.
fn settling(stays: &Hist) -> f64 {
    let weight = |index: usize| {
        let high = if index + 1 < BUCKETS { lower_bound(index + 1) } else { stays.max };
        let middle = lower_bound(index).midpoint(high.max(lower_bound(index))).min(stays.max);
        (seconds(middle), seconds(middle) * f64::from(stays.buckets[index]))
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
