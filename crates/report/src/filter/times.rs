//! Filters by time: which objects of a site are asked for, and how many of them a report knows.
//!
//! A report has no single objects. It has readings over time, what is live by time of allocation, and histograms of
//! lives. So each question is answered at the borders of these, always the wider ones, and the answer carries them. What
//! they cannot answer is refused.

use std::time::Duration;

use drainprof_common::hist;

use crate::{Kind, Report, Selected, Site, units};

/// A time range.
pub type Range = [Duration; 2];

/// Which objects are asked for, by when they lived: since the attach. The default asks for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Live at this time.
    pub alive_at: Option<Duration>,
    /// Allocated in this range.
    pub allocated_between: Option<Range>,
    /// Freed in this range.
    pub freed_between: Option<Range>,
    /// That lived for at least this long.
    pub alive_at_least: Option<Duration>,
    /// That lived for at most this long; with `until_end`, that are at most so old.
    pub alive_at_most: Option<Duration>,
    /// Live at the end.
    pub until_end: bool,
}

/// Why a report does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Untold {
    /// What is freed does not live until the end.
    #[error(
        "objects that live until the end are not freed: leave out --until-end or --freed-between"
    )]
    FreedAndLive,
    /// Two questions that only single objects could answer together.
    #[error(
        "a report has counts over time, no single objects: {0} and {1} go together only with --until-end"
    )]
    Together(&'static str, &'static str),
    /// The time is not covered.
    #[error("{0} {1}: the report covers {2}")]
    Beyond(&'static str, String, String),
    /// Windows of a duty cycle.
    #[error("filters by time need one time range: the windows of --duty are not joined")]
    Duty,
    /// Frees and lives of objects outside of the sample are not known.
    #[error("{0} needs every object, and this is a sample (take --sample 1)")]
    Sampled(&'static str),
    /// There is nothing that they could choose from.
    #[error("filters by time choose among call stacks: the report has none (take --level stacks)")]
    NoStacks,
    /// Growth was not watched.
    #[error("--grown-between is of growth, which the report does not have (take --growth)")]
    NoGrowth,
}

/// What is asked of each site; seconds on the scale of `window.seconds`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Question {
    /// Live at this time.
    AliveAt(f64),
    /// Allocated in this range.
    Allocated([f64; 2]),
    /// Freed in this range.
    Freed([f64; 2]),
    /// Lived for so long; without an upper end also those that are live and as old.
    Lived([f64; 2]),
    /// Live at the end: allocated in this range, and of this age.
    Survived { allocated: [f64; 2], age: [f64; 2] },
}

const EVER: [f64; 2] = [0.0, f64::INFINITY];

impl Times {
    /// Whether anything is asked.
    #[must_use]
    pub fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// What is asked, as on a command line.
    pub(super) fn words(&self) -> Vec<String> {
        let range = |[from, to]: Range| format!("{}s,{}s", from.as_secs_f64(), to.as_secs_f64());
        let time = |time: Duration| format!("{}s", time.as_secs_f64());
        let options = [
            ("--alive-at", self.alive_at.map(time)),
            ("--allocated-between", self.allocated_between.map(range)),
            ("--freed-between", self.freed_between.map(range)),
            ("--alive-at-least", self.alive_at_least.map(time)),
            ("--alive-at-most", self.alive_at_most.map(time)),
            ("--until-end", self.until_end.then(String::new)),
        ];
        let given = options.into_iter().filter_map(|(option, value)| Some((option, value?)));
        given.map(|(option, value)| format!("{option} {value}").trim_end().to_owned()).collect()
    }

    /// Whether the questions go together, before there is a report.
    ///
    /// # Errors
    /// If they do not, or if a sample could not answer them.
    pub fn check(&self, sampled: bool, duty: bool) -> Result<(), Untold> {
        let Some(question) = self.question()? else { return Ok(()) };
        if duty {
            return Err(Untold::Duty);
        }
        match question.needs_all() {
            Some(option) if sampled => Err(Untold::Sampled(option)),
            _ => Ok(()),
        }
    }

    /// Whether a report answers them.
    ///
    /// # Errors
    /// If it does not.
    pub fn check_report(&self, report: &Report) -> Result<(), Untold> {
        self.of(report).map(drop)
    }

    /// What is asked of a report; `None`: nothing.
    pub(super) fn of(&self, report: &Report) -> Result<Option<Question>, Untold> {
        let Some(question) = self.question()? else { return Ok(None) };
        let covered = report.window.seconds;
        let asked = [
            ("--alive-at", self.alive_at),
            ("--allocated-between", self.allocated_between.map(|[from, _]| from)),
            ("--freed-between", self.freed_between.map(|[from, _]| from)),
        ];
        let beyond = asked.into_iter().find_map(|(option, time)| {
            let seconds = time?.as_secs_f64();
            (seconds > covered).then(|| (option, units::duration(seconds)))
        });
        if let Some((option, time)) = beyond {
            return Err(Untold::Beyond(option, time, units::duration(covered)));
        }
        let allocators = || report.targets.iter().flat_map(|target| &target.allocators);
        self.check(
            allocators().any(|allocator| allocator.sampling.is_some()),
            report.window.duty.is_some(),
        )?;
        let has_stacks = allocators().any(|allocator| allocator.sites.is_some());
        has_stacks.then_some(Some(question)).ok_or(Untold::NoStacks)
    }

    fn question(&self) -> Result<Option<Question>, Untold> {
        let seconds = |[from, to]: Range| [from.as_secs_f64(), to.as_secs_f64()];
        let life = (self.alive_at_least.is_some() || self.alive_at_most.is_some()).then(|| {
            let most = self.alive_at_most.map_or(f64::INFINITY, |most| most.as_secs_f64());
            [self.alive_at_least.unwrap_or_default().as_secs_f64(), most]
        });
        if self.until_end {
            if self.freed_between.is_some() {
                return Err(Untold::FreedAndLive);
            }
            let [from, to] = self.allocated_between.map_or(EVER, seconds);
            let to = self.alive_at.map_or(to, |at| to.min(at.as_secs_f64()));
            return Ok(Some(Question::Survived {
                allocated: [from, to],
                age: life.unwrap_or(EVER),
            }));
        }
        let asked = [
            ("--alive-at", self.alive_at.map(|at| Question::AliveAt(at.as_secs_f64()))),
            (
                "--allocated-between",
                self.allocated_between.map(|range| Question::Allocated(seconds(range))),
            ),
            ("--freed-between", self.freed_between.map(|range| Question::Freed(seconds(range)))),
            ("--alive-at-least or --alive-at-most", life.map(Question::Lived)),
        ];
        let mut asked = asked.into_iter().filter_map(|(option, asked)| Some((option, asked?)));
        match (asked.next(), asked.next()) {
            (Some((one, _)), Some((two, _))) => Err(Untold::Together(one, two)),
            (first, _) => Ok(first.map(|(_, question)| question)),
        }
    }
}

impl Question {
    /// The option that a sample of pages cannot answer.
    const fn needs_all(self) -> Option<&'static str> {
        match self {
            Self::AliveAt(_) | Self::Survived { .. } => None,
            Self::Allocated(_) => Some("--allocated-between"),
            Self::Freed(_) => Some("--freed-between"),
            Self::Lived(_) => Some("--alive-at-least or --alive-at-most"),
        }
    }

    /// The site's objects that are asked for; `None` where they are not known.
    pub(super) fn of(self, site: &Site, kind: Kind) -> Option<Selected> {
        match self {
            Self::AliveAt(at) => {
                let (before, after) = (Reading::before(site, at)?, Reading::after(site, at)?);
                let near = if at - before.at <= after.at - at { before } else { after };
                Some(Selected {
                    objects: near.live,
                    bytes: near.bytes,
                    from_seconds: near.at,
                    to_seconds: Some(near.at),
                })
            }
            Self::Allocated(range) => {
                between(site, range, |from, to| to.allocated.saturating_sub(from.allocated))
            }
            Self::Freed(range) => {
                between(site, range, |from, to| to.freed().saturating_sub(from.freed()))
            }
            Self::Lived([least, most]) => lived(site, kind, [least, most]),
            Self::Survived { allocated: [from, to], age: [least, most] } => {
                let end = end(site)?;
                survived(site, [from.max(end - most), to.min(end - least)])
            }
        }
    }
}

/// One reading of a site's objects.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: f64,
    live: u64,
    bytes: Option<u64>,
    allocated: u64,
}

impl Reading {
    const fn of(&(at, live, bytes, allocated): &(f64, u64, Option<u64>, u64)) -> Self {
        Self { at, live, bytes, allocated }
    }

    /// The last one up to this time; before its first allocation a site had nothing.
    fn before(site: &Site, at: f64) -> Option<Self> {
        let series = &site.live_over_time.as_ref()?.series;
        let nothing =
            Self { at: at.min(site.first_seen_seconds), live: 0, bytes: Some(0), allocated: 0 };
        Some(series.iter().rev().find(|point| point.0 <= at).map_or(nothing, Self::of))
    }

    /// The first one from this time on, else the last.
    fn after(site: &Site, at: f64) -> Option<Self> {
        let series = &site.live_over_time.as_ref()?.series;
        series.iter().find(|point| point.0 >= at).or(series.last()).map(Self::of)
    }

    const fn freed(&self) -> u64 {
        self.allocated.saturating_sub(self.live)
    }
}

/// When a site was read last: its process may have ended before the report.
fn end(site: &Site) -> Option<f64> {
    site.live_over_time.as_ref()?.series.last().map(|point| point.0)
}

fn between(
    site: &Site,
    [from, to]: [f64; 2],
    count: impl Fn(Reading, Reading) -> u64,
) -> Option<Selected> {
    let (from, to) = (Reading::before(site, from)?, Reading::after(site, to)?);
    Some(Selected {
        objects: count(from, to),
        bytes: None,
        from_seconds: from.at,
        to_seconds: Some(to.at),
    })
}

/// What is live, by the time of allocation.
fn survived(site: &Site, [from, to]: [f64; 2]) -> Option<Selected> {
    if site.survivors.is_empty() && site.live? > 0 {
        return None;
    }
    let mut selected =
        Selected { objects: 0, bytes: Some(0), from_seconds: from, to_seconds: Some(to) };
    let parts = site.survivors.iter();
    // Both ends count: an object may be as old as its part of the time.
    for part in parts.filter(|part| part.to_seconds >= from && part.from_seconds <= to) {
        selected.objects = selected.objects.saturating_add(part.objects);
        selected.bytes = selected.bytes.zip(part.bytes).map(|(sum, own)| sum.saturating_add(own));
        selected.from_seconds = selected.from_seconds.min(part.from_seconds);
        selected.to_seconds = selected.to_seconds.map(|to| to.max(part.to_seconds));
    }
    Some(selected)
}

/// Freed objects that lived for so long; those that are live and as old, where there is no upper end.
fn lived(site: &Site, kind: Kind, [least, most]: [f64; 2]) -> Option<Selected> {
    // Of kind `drain` only pins are followed to their frees, of `bulk` most objects go with their granule; earlier
    // versions kept no histogram.
    if kind != Kind::Slab || (site.life_histogram.is_empty() && site.life_seconds.is_some()) {
        return None;
    }
    let (first, end_bucket) = (bucket(least), bucket(most));
    let lives = site.life_histogram.iter();
    let lives = lives.filter(|part| (first..=end_bucket).contains(&bucket(part.le_seconds)));
    let mut objects = lives.fold(0u64, |sum, part| sum.saturating_add(part.count));
    if most.is_infinite() && site.live? > 0 {
        let old = survived(site, [f64::NEG_INFINITY, end(site)? - least])?;
        objects = objects.saturating_add(old.objects);
    }
    let longest =
        (end_bucket + 1 < hist::BUCKETS).then(|| seconds(hist::lower_bound(end_bucket + 1) - 1));
    Some(Selected {
        objects,
        bytes: None,
        from_seconds: seconds(hist::lower_bound(first)),
        to_seconds: longest,
    })
}

fn bucket(seconds: f64) -> usize {
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "it saturates")]
    hist::bucket((seconds * 1e9).round() as u64)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
mod tests;
