//! What sites hold back over time: one series per site, of as many sites as are worth it.
//!
//! The observer fills it at each of its sweeps over the objects that are live.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{
    held::{HeldPoint, HeldSeries},
    live::{LivePoint, LiveSeries},
};

/// Sites whose series are kept: those that have held most.
const MAX_SITES: usize = 256;

/// What a site holds back, over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SiteSeries {
    /// Granules held back: of kind `drain` those that are retained with at least one of its objects, of the others
    /// those that are open with at least one.
    pub held: HeldSeries,
    /// Its objects that are live.
    pub live: LiveSeries,
    /// Granules that were seen to come; those that went between two sweeps are not among them.
    pub came: u64,
    /// Those of them that were seen to be gone.
    pub went: u64,
}

/// A site at the moment of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteNow {
    /// The series that it belongs to.
    pub series: u32,
    /// Its first allocation (`CLOCK_MONOTONIC` ns).
    pub first_ns: u64,
    /// When its instance was destroyed, with all that it held back; 0: it was not.
    pub destroyed_ns: u64,
    /// Granules held back now.
    pub granules: u64,
    /// Their bytes; 0 where unknown.
    pub bytes: u64,
    /// Those of them that can be held back only since this time, given the time of the last sweep.
    pub fresh: u64,
    /// Its objects that are live; the time is not used.
    pub live: LivePoint,
    /// How much it holds, in a unit that all sites of its series share: those that hold most keep their time series.
    pub weight: u64,
    /// Whether it has held back anything so far, seen by a sweep or not.
    pub ever: bool,
}

#[derive(Clone, Debug)]
struct Kept {
    own: SiteSeries,
    series: u32,
    /// The most that it held at a sweep.
    peak: u64,
}

/// The series of sites, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct SiteSeriesSet {
    kept: BTreeMap<u32, Kept>,
    /// When was swept: a site that has held back nothing so far did so at all these times.
    sweeps: HeldSeries,
    /// Whether a site was left out for want of room: then what those without a series held back is not known.
    left_out: bool,
}

impl SiteSeriesSet {
    /// Adds what a sweep at `at_ns` has found; a later one of the same time corrects it. Sites that are not named keep
    /// the series that they have.
    pub fn add(&mut self, at_ns: u64, sites: impl IntoIterator<Item = (u32, SiteNow)>) {
        let mut new = Vec::new();
        for (site, now) in sites {
            match self.kept.get_mut(&site) {
                Some(kept) => kept.extend(at_ns, &now),
                None if now.ever || now.weight > 0 => new.push((site, now)),
                None => {}
            }
        }
        new.sort_by_key(|(site, now)| (Reverse(now.weight), *site));
        for (site, now) in new {
            if self.kept.len() >= MAX_SITES && !self.make_room(&now) {
                break;
            }
            let mut kept = Kept { own: self.past(&now), series: now.series, peak: 0 };
            kept.extend(at_ns, &now);
            self.kept.insert(site, kept);
        }
        self.sweeps.add(HeldPoint { at_ns, ..HeldPoint::default() });
    }

    /// Gives up the series that has held back least, if this site holds back more than twice as much.
    fn make_room(&mut self, now: &SiteNow) -> bool {
        self.left_out = true;
        let least = self.kept.iter().min_by_key(|(_, kept)| kept.peak);
        match least.map(|(site, kept)| (*site, kept.peak)) {
            Some((site, peak)) if now.weight > peak.saturating_mul(2) => {
                self.kept.remove(&site);
                true
            }
            _ => false,
        }
    }

    /// A site's past at the first sweep that keeps it: it held back nothing before, or its past is not known.
    fn past(&self, now: &SiteNow) -> SiteSeries {
        let mut past = SiteSeries::default();
        let last_ns = self.last_ns();
        if now.first_ns != 0 && (!self.left_out || now.first_ns > last_ns) {
            let zero = |at_ns| HeldPoint { at_ns, ..HeldPoint::default() };
            past.held.add(zero(now.first_ns));
            // What was live at earlier sweeps was not asked of a site that held back nothing.
            if now.first_ns > last_ns {
                past.live.add(LivePoint { at_ns: now.first_ns, ..LivePoint::default() });
            }
            for sweep in self.sweeps.points().filter(|sweep| sweep.at_ns > now.first_ns) {
                past.held.add(zero(sweep.at_ns));
            }
        }
        past
    }

    /// The series of a site, if one is kept.
    #[must_use]
    pub fn of(&self, site: u32) -> Option<&SiteSeries> {
        self.kept.get(&site).map(|kept| &kept.own)
    }

    /// Whether a series has a time series of at least `ns` nanoseconds.
    #[must_use]
    pub fn is_long(&self, ns: u64, mut series: impl FnMut(u32) -> bool) -> bool {
        let length = |own: &SiteSeries| {
            let first = own.held.points().next().map_or(0, |point| point.at_ns);
            own.held.newest().map_or(0, |newest| newest.at_ns - first)
        };
        self.kept.values().any(|kept| length(&kept.own) >= ns && series(kept.series))
    }

    /// When the last sweep was; 0: there was none.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.sweeps.newest().map_or(0, |sweep| sweep.at_ns)
    }

    /// From when on the longest series would keep a further point.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.sweeps.due_ns()
    }
}

impl Kept {
    fn extend(&mut self, at_ns: u64, now: &SiteNow) {
        let SiteSeries { held, live, came, went } = &mut self.own;
        let newest = held.newest();
        let before = newest.map_or(0, |newest| newest.granules);
        let (at_ns, granules, bytes) = match now.destroyed_ns {
            0 => (at_ns, now.granules, now.bytes),
            end => (end.max(newest.map_or(0, |newest| newest.at_ns)), 0, 0),
        };
        let new = now.fresh.min(granules).max(granules.saturating_sub(before));
        *came += new;
        *went += (before + new).saturating_sub(granules);
        self.peak = self.peak.max(now.weight);
        held.add(HeldPoint { at_ns, granules, bytes, appeared: 0 });
        let now = match now.destroyed_ns {
            0 => now.live,
            _ => LivePoint { allocated: now.live.allocated, ..LivePoint::default() },
        };
        live.add(LivePoint { at_ns, ..now });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn holds(granules: u64) -> SiteNow {
        SiteNow {
            first_ns: MS,
            granules,
            bytes: 64 * granules,
            live: LivePoint { objects: 3 * granules, ..LivePoint::default() },
            weight: granules,
            ever: true,
            ..SiteNow::default()
        }
    }

    fn values(series: &SiteSeriesSet, site: u32) -> Vec<(u64, u64)> {
        let points = series.of(site).unwrap().held.points();
        points.map(|point| (point.at_ns / MS, point.granules)).collect()
    }

    /// A site that begins to hold back after a while has done nothing before, at every sweep; one that never holds
    /// back anything takes no room.
    #[test]
    fn the_past_is_known() {
        let mut series = SiteSeriesSet::default();
        let idle = SiteNow { ever: false, ..holds(0) };
        for at in [100, 200, 300] {
            series.add(at * MS, [(1, idle), (2, idle)]);
        }
        series.add(400 * MS, [(1, holds(5)), (2, idle)]);
        assert_eq!(values(&series, 1), [(1, 0), (100, 0), (200, 0), (300, 0), (400, 5)]);
        let live = series.of(1).unwrap().live.points();
        assert_eq!(live.map(|at| (at.at_ns / MS, at.objects)).collect::<Vec<_>>(), [(400, 15)]);
        assert!(series.of(2).is_none());
        assert_eq!((series.last_ns(), series.due_ns()), (400 * MS, 450 * MS));
    }

    /// New granules distinguish what comes and goes between two sweeps from what stays.
    #[test]
    fn turnover() {
        let mut series = SiteSeriesSet::default();
        series.add(100 * MS, [(1, SiteNow { fresh: 10, ..holds(10) })]);
        series.add(200 * MS, [(1, SiteNow { fresh: 4, ..holds(10) })]);
        series.add(300 * MS, [(1, holds(12))]);
        series.add(400 * MS, [(1, holds(3))]);
        let own = series.of(1).unwrap();
        assert_eq!((own.came, own.went), (16, 13));
        series.add(500 * MS, [(1, SiteNow { destroyed_ns: 450 * MS, ..holds(3) })]);
        assert_eq!(values(&series, 1).last(), Some(&(450, 0)), "it ends with its instance");
        assert_eq!(series.of(1).unwrap().went, 16);
    }

    /// Of more sites than are kept, those that hold back most stay; a later one has no past, and little more than
    /// another one displaces none.
    #[test]
    fn the_largest_are_kept() {
        let mut series = SiteSeriesSet::default();
        series.add(100 * MS, (0..2_000).map(|site| (site, holds(u64::from(site)))));
        assert_eq!(series.kept.len(), MAX_SITES);
        assert!(series.of(1_744).is_some() && series.of(1_743).is_none());
        let crowd = |more: u64| (0..1_744).map(move |site| (site, holds(more)));
        series.add(200 * MS, crowd(3_000));
        assert_eq!(series.kept.len(), MAX_SITES);
        assert!(series.of(1_999).is_some(), "not twice as much");
        series.add(300 * MS, [(0, holds(8_000))]);
        assert_eq!(values(&series, 0), [(300, 8_000)]);
        assert!(series.of(1_744).is_none() && series.of(1_745).is_some());
        let young = SiteNow { first_ns: 350 * MS, ..holds(9_000) };
        series.add(400 * MS, [(5_000, young)]);
        assert_eq!(values(&series, 5_000), [(350, 0), (400, 9_000)], "younger than the last sweep");
    }

    /// Only series of the series that is asked for, and of some length, are long.
    #[test]
    fn long_ones() {
        let mut series = SiteSeriesSet::default();
        series.add(500 * MS, [(1, SiteNow { series: 7, ..holds(1) })]);
        assert!(series.is_long(400 * MS, |series| series == 7));
        assert!(!series.is_long(400 * MS, |series| series == 8));
        assert!(!series.is_long(600 * MS, |_| true));
    }
}
