//! From facts to cases: what came, what went and for how long it stayed, what is there.

use drainprof_common::hist::Hist;

use super::rules::Subject;
use crate::{
    facts::{AllocatorFacts, SiteFacts, Survivors},
    fit::At,
    kind::Kind,
    known::seconds,
    series::{HeldBytes, HeldSeries, LiveSeries, Point, TimeSeries, held_bytes},
};

/// What is judged.
pub(super) struct Case {
    pub(super) subject: Subject,
    /// When the time series begins (`CLOCK_MONOTONIC` ns): all times below are since then.
    pub(super) first_ns: u64,
    /// How many were held back at which time.
    pub(super) held: Vec<At>,
    /// The same in bytes; empty where they are not known.
    pub(super) bytes: Vec<At>,
    /// Granules so far that were there before they appeared; empty for objects.
    pub(super) appeared: Vec<At>,
    /// Those that were held back at some time, and those of them that went.
    pub(super) came: u64,
    pub(super) went: u64,
    /// For how long those that went were held back.
    pub(super) stays: Hist,
    /// What is held back now, by the time at which it came; `None` where that is not known.
    pub(super) survivors: Option<Survivors>,
    /// Whether process or instance has ended.
    pub(super) ended: bool,
    pub(super) destroyed: bool,
}

impl Case {
    /// The granules of an allocator.
    pub(super) fn of(facts: &AllocatorFacts, ended: bool) -> Self {
        let kind = facts.profile.kind;
        let totals = &facts.totals;
        let (came, went) = if kind == Kind::Drain {
            (totals.pinned, totals.late_drained)
        } else {
            let elsewhere = totals.migrated + totals.ended_with_parent;
            let went = totals.closed() + elsewhere + totals.reopened + facts.destroyed_open;
            (totals.opened + totals.opened_before, went)
        };
        let mut stays = Hist::new();
        if kind == Kind::Drain {
            stays.merge(&facts.pin_delays);
        } else {
            facts.lifetimes.values().for_each(|hist| stays.merge(hist));
        }
        let curve = &facts.over_time;
        Self {
            came,
            went,
            stays,
            survivors: retained_since(facts),
            ..Self::of_granules(curve, Subject { kind, ..Subject::GRANULES }, facts, ended)
        }
    }

    /// The granules of a site; `None` where their time series is not known.
    pub(super) fn of_site(site: &SiteFacts, facts: &AllocatorFacts, ended: bool) -> Option<Self> {
        static NOTHING: HeldSeries = HeldSeries::new();
        let kind = facts.profile.kind;
        let own = site.over_time.as_ref();
        // Objects without ids are seen to come, but not which of them go.
        site.live?;
        let (came, went) = if kind == Kind::Drain {
            (site.granules_pinned, site.granules_pinned.saturating_sub(site.granules_retained))
        } else {
            own.map(|own| (own.came, own.went))?
        };
        // What never pinned anything needs no time series to say so.
        let curve = match own {
            Some(own) => &own.held,
            None if came == 0 => &NOTHING,
            None => return None,
        };
        // Of other kinds it is not known when a site's last object leaves a granule: at the latest when that is closed.
        let stays = match kind {
            Kind::Drain => Some(&site.delays),
            Kind::Bulk | Kind::Slab => facts.lifetimes.get(&site.opened_at),
        };
        let subject = Subject { kind, site: true, ..Subject::GRANULES };
        let is_known = kind == Kind::Drain && site.retained_since.total() == site.granules_retained;
        Some(Self {
            came,
            went,
            stays: stays.copied().unwrap_or_default(),
            survivors: is_known.then(|| site.retained_since.clone()),
            ..Self::of_granules(curve, subject, facts, ended)
        })
    }

    /// The live objects of an allocator.
    pub(super) fn of_live(facts: &AllocatorFacts, ended: bool, sizes: bool) -> Self {
        let (mut stays, mut survivors) = (Hist::new(), Survivors::default());
        for site in &facts.sites {
            stays.merge(&site.lives);
            survivors.join(&site.survivors);
        }
        let totals = &facts.totals;
        let (came, went) = (totals.allocated, totals.gone());
        // Some objects may have no site.
        let is_known = !facts.sites.is_empty() && survivors.total() == came.saturating_sub(went);
        Self {
            came,
            went,
            stays,
            survivors: is_known.then_some(survivors),
            ..Self::of_objects(&facts.live_over_time, facts, (ended, sizes, 1))
        }
    }

    /// The live objects of a site; of pages, one of so many was examined.
    pub(super) fn live_of_site(
        site: &SiteFacts,
        series: &LiveSeries,
        facts: &AllocatorFacts,
        (ended, sizes, one_in): (bool, bool, u32),
    ) -> Self {
        // Objects that are larger than a page are all in the sample.
        let in_pages = facts.profile.implicit && site.held_objects.sum > 0;
        let one_in = if in_pages { one_in } else { 1 };
        let of = Self::of_objects(series, facts, (ended, sizes, one_in));
        Self {
            subject: Subject { site: true, ..of.subject },
            came: site.allocated,
            went: site.allocated.saturating_sub(site.live.unwrap_or_default()),
            stays: site.lives,
            survivors: Some(site.survivors.clone()),
            ..of
        }
    }

    fn of_granules(
        curve: &HeldSeries,
        subject: Subject,
        facts: &AllocatorFacts,
        ended: bool,
    ) -> Self {
        let bytes_known = held_bytes(&facts.profile) != HeldBytes::Unknown;
        Self {
            first_ns: first_ns(curve),
            held: values(curve, true, |at| at.granules),
            bytes: values(curve, bytes_known, |at| at.bytes),
            appeared: values(curve, true, |at| at.appeared),
            ..Self::empty(subject, facts, ended)
        }
    }

    fn of_objects(
        series: &LiveSeries,
        facts: &AllocatorFacts,
        (ended, sizes, one_in): (bool, bool, u32),
    ) -> Self {
        let kind = facts.profile.kind;
        let subject = Subject { kind, objects: true, one_in, ..Subject::GRANULES };
        Self {
            first_ns: first_ns(series),
            held: values(series, true, |at| at.objects),
            bytes: values(series, sizes, |at| at.bytes),
            ..Self::empty(subject, facts, ended)
        }
    }

    /// A case of which nothing is known but what it is about, and whether it is over.
    fn empty(subject: Subject, facts: &AllocatorFacts, ended: bool) -> Self {
        Self {
            subject,
            first_ns: 0,
            held: Vec::new(),
            bytes: Vec::new(),
            appeared: Vec::new(),
            came: 0,
            went: 0,
            stays: Hist::new(),
            survivors: None,
            ended: ended || facts.destroyed,
            destroyed: facts.destroyed,
        }
    }
}

fn first_ns<P: Point + Copy>(series: &TimeSeries<P>) -> u64 {
    series.points().next().map_or(0, |point| point.at_ns())
}

/// Time since the first point, and value; nothing where it is not known.
fn values<P: Point + Copy>(
    series: &TimeSeries<P>,
    is_known: bool,
    value: fn(&P) -> u64,
) -> Vec<At> {
    let first = first_ns(series);
    let points = series.points().filter(|_| is_known);
    points.map(|at| (seconds(at.at_ns() - first), value(&at) as f64)).collect()
}

/// The retained granules of kind `drain`, by the time of their close; `None` unless that is known of all.
fn retained_since(facts: &AllocatorFacts) -> Option<Survivors> {
    let newest = facts.over_time.newest()?;
    let mut since = Survivors::between(first_ns(&facts.over_time), newest.at_ns);
    let retained = facts.granules.iter().filter(|granule| granule.closed && granule.closed_ns > 0);
    retained.for_each(|granule| since.add(granule.closed_ns, 1, granule.bytes));
    let is_known = facts.profile.kind == Kind::Drain
        && since.total() == newest.granules
        && newest.granules == facts.retained_granules;
    is_known.then_some(since)
}
