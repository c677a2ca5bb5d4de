//! What sites hold back over time: one curve per site, of as many sites as are worth it.
//!
//! A container only, as `Curve` is: `watch` fills it, at each of its sweeps over the objects that are live, and
//! `report::trend` says what a course means.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{Curve, CurvePoint};

/// Sites whose courses are kept: those that have held back most.
pub const COURSES: usize = 256;

/// What a site holds back, over time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Course {
    /// Granules held back: of kind `drain` those that are retained with at least one of its objects, of the others
    /// those that are open with at least one.
    pub curve: Curve,
    /// Granules that were seen to come; those that went between two looks are not among them.
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
    /// Whether it has held back anything so far, seen by a sweep or not.
    pub ever: bool,
}

#[derive(Clone, Debug)]
struct Kept {
    course: Course,
    series: u32,
    /// The most that was held back at a sweep.
    peak: u64,
}

/// The courses of sites, by their numbers.
#[derive(Clone, Debug, Default)]
pub struct Courses {
    kept: BTreeMap<u32, Kept>,
    /// When was swept: a site that has held back nothing so far did so at all these times.
    sweeps: Curve,
    /// Whether a site was left out for want of room: then nobody knows what was held back by those without course.
    left_out: bool,
}

impl Courses {
    /// Adds what a sweep at `at_ns` has found; a later one of the same time corrects it. Sites that are not told keep
    /// the course that they have.
    pub fn add(&mut self, at_ns: u64, sites: impl IntoIterator<Item = (u32, SiteNow)>) {
        let mut new = Vec::new();
        for (site, now) in sites {
            match self.kept.get_mut(&site) {
                Some(kept) => kept.extend(at_ns, &now),
                None if now.ever || now.granules > 0 => new.push((site, now)),
                None => {}
            }
        }
        new.sort_by_key(|(site, now)| (Reverse(now.granules), *site));
        for (site, now) in new {
            if self.kept.len() >= COURSES && !self.make_room(&now) {
                break;
            }
            let mut kept = Kept { course: self.past(&now), series: now.series, peak: 0 };
            kept.extend(at_ns, &now);
            self.kept.insert(site, kept);
        }
        self.sweeps.add(CurvePoint { at_ns, ..CurvePoint::default() });
    }

    /// Gives up the course that has held back least, if this site holds back more than twice as much.
    fn make_room(&mut self, now: &SiteNow) -> bool {
        self.left_out = true;
        let least = self.kept.iter().min_by_key(|(_, kept)| kept.peak);
        match least.map(|(site, kept)| (*site, kept.peak)) {
            Some((site, peak)) if now.granules > peak.saturating_mul(2) => {
                self.kept.remove(&site);
                true
            }
            _ => false,
        }
    }

    /// What is known of a site's past at the first sweep that keeps it: nothing was held back before, or nothing.
    fn past(&self, now: &SiteNow) -> Course {
        let mut course = Course::default();
        let last_ns = self.last_ns();
        if now.first_ns != 0 && (!self.left_out || now.first_ns > last_ns) {
            let zero = |at_ns| CurvePoint { at_ns, ..CurvePoint::default() };
            course.curve.add(zero(now.first_ns));
            for sweep in self.sweeps.points().filter(|sweep| sweep.at_ns > now.first_ns) {
                course.curve.add(zero(sweep.at_ns));
            }
        }
        course
    }

    /// The course of a site, if one is kept.
    #[must_use]
    pub fn of(&self, site: u32) -> Option<&Course> {
        self.kept.get(&site).map(|kept| &kept.course)
    }

    /// Whether a series has a course of at least `ns` nanoseconds.
    #[must_use]
    pub fn is_long(&self, ns: u64, mut series: impl FnMut(u32) -> bool) -> bool {
        let length = |course: &Course| {
            let first = course.curve.points().next().map_or(0, |point| point.at_ns);
            course.curve.newest().map_or(0, |newest| newest.at_ns - first)
        };
        self.kept.values().any(|kept| length(&kept.course) >= ns && series(kept.series))
    }

    /// When the last sweep was; 0: there was none.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.sweeps.newest().map_or(0, |sweep| sweep.at_ns)
    }

    /// From when on the longest of the courses would keep a further point.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.sweeps.due_ns()
    }
}

impl Kept {
    fn extend(&mut self, at_ns: u64, now: &SiteNow) {
        let Course { curve, came, went } = &mut self.course;
        let newest = curve.newest();
        let before = newest.map_or(0, |newest| newest.granules);
        let (at_ns, granules, bytes) = match now.destroyed_ns {
            0 => (at_ns, now.granules, now.bytes),
            end => (end.max(newest.map_or(0, |newest| newest.at_ns)), 0, 0),
        };
        let new = now.fresh.min(granules).max(granules.saturating_sub(before));
        *came += new;
        *went += (before + new).saturating_sub(granules);
        self.peak = self.peak.max(granules);
        curve.add(CurvePoint { at_ns, granules, bytes, appeared: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn holds(granules: u64) -> SiteNow {
        SiteNow { first_ns: MS, granules, bytes: 64 * granules, ever: true, ..SiteNow::default() }
    }

    fn values(courses: &Courses, site: u32) -> Vec<(u64, u64)> {
        let points = courses.of(site).unwrap().curve.points();
        points.map(|point| (point.at_ns / MS, point.granules)).collect()
    }

    /// A site that begins to hold back after a while has done nothing before, at every sweep; one that never holds
    /// back anything takes no room.
    #[test]
    fn the_past_is_known() {
        let mut courses = Courses::default();
        let idle = SiteNow { ever: false, ..holds(0) };
        for at in [100, 200, 300] {
            courses.add(at * MS, [(1, idle), (2, idle)]);
        }
        courses.add(400 * MS, [(1, holds(5)), (2, idle)]);
        assert_eq!(values(&courses, 1), [(1, 0), (100, 0), (200, 0), (300, 0), (400, 5)]);
        assert!(courses.of(2).is_none());
        assert_eq!((courses.last_ns(), courses.due_ns()), (400 * MS, 450 * MS));
    }

    /// What comes and goes between two sweeps is told from what stays by the granules that are new.
    #[test]
    fn turnover() {
        let mut courses = Courses::default();
        courses.add(100 * MS, [(1, SiteNow { fresh: 10, ..holds(10) })]);
        courses.add(200 * MS, [(1, SiteNow { fresh: 4, ..holds(10) })]);
        courses.add(300 * MS, [(1, holds(12))]);
        courses.add(400 * MS, [(1, holds(3))]);
        let course = courses.of(1).unwrap();
        assert_eq!((course.came, course.went), (16, 13));
        courses.add(500 * MS, [(1, SiteNow { destroyed_ns: 450 * MS, ..holds(3) })]);
        assert_eq!(values(&courses, 1).last(), Some(&(450, 0)), "it ends with its instance");
        assert_eq!(courses.of(1).unwrap().went, 16);
    }

    /// Of more sites than are kept, those that hold back most stay; who comes later has no past, and little more than
    /// another one drives nobody out.
    #[test]
    fn the_largest_are_kept() {
        let mut courses = Courses::default();
        courses.add(100 * MS, (0..2_000).map(|site| (site, holds(u64::from(site)))));
        assert_eq!(courses.kept.len(), COURSES);
        assert!(courses.of(1_744).is_some() && courses.of(1_743).is_none());
        let crowd = |more: u64| (0..1_744).map(move |site| (site, holds(more)));
        courses.add(200 * MS, crowd(3_000));
        assert_eq!(courses.kept.len(), COURSES);
        assert!(courses.of(1_999).is_some(), "not twice as much");
        courses.add(300 * MS, [(0, holds(8_000))]);
        assert_eq!(values(&courses, 0), [(300, 8_000)]);
        assert!(courses.of(1_744).is_none() && courses.of(1_745).is_some());
        let young = SiteNow { first_ns: 350 * MS, ..holds(9_000) };
        courses.add(400 * MS, [(5_000, young)]);
        assert_eq!(
            values(&courses, 5_000),
            [(350, 0), (400, 9_000)],
            "younger than the last sweep"
        );
    }

    /// Only courses of the series that is asked for, and of some length, are long.
    #[test]
    fn long_ones() {
        let mut courses = Courses::default();
        courses.add(500 * MS, [(1, SiteNow { series: 7, ..holds(1) })]);
        assert!(courses.is_long(400 * MS, |series| series == 7));
        assert!(!courses.is_long(400 * MS, |series| series == 8));
        assert!(!courses.is_long(600 * MS, |_| true));
    }
}
