//! The memory of a process over time, in bounded memory: a container. What the course means is judged in `trend`.

use drainprof_process::memory::MemoryReading;

use super::{MemoryTrend, fit::At};

/// Points that are kept at most. When there are more, each two become one that knows their mean and their lowest value.
pub const COURSE_POINTS: usize = 256;

/// Readings that followed each other, as one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// The time of its first reading.
    from: f64,
    readings: f64,
    /// Sums over its readings: of times since `from`, of resident memory, of anonymous memory.
    seconds: f64,
    rss: f64,
    /// Swapped-out memory included: it is the process's as before, and comes back.
    anon: f64,
    /// Its lowest resident memory.
    floor: f64,
}

impl Point {
    fn of(from: f64, reading: &MemoryReading) -> Self {
        let rss = reading.rss_bytes as f64;
        let anon = reading.anon_bytes.saturating_add(reading.swap_bytes) as f64;
        Self { from, readings: 1.0, seconds: 0.0, rss, anon, floor: rss }
    }

    /// Takes in a later one.
    fn absorb(&mut self, later: &Self) {
        self.seconds += later.readings.mul_add(later.from - self.from, later.seconds);
        self.readings += later.readings;
        self.rss += later.rss;
        self.anon += later.anon;
        self.floor = self.floor.min(later.floor);
    }

    /// The mean time.
    fn at(&self) -> f64 {
        self.from + self.seconds / self.readings
    }
}

/// A course as the statistics want it: times since its first point.
pub(super) struct Values {
    /// Mean resident memory.
    pub(super) rss: Vec<At>,
    /// The lowest resident memory.
    pub(super) floor: Vec<At>,
    /// Mean anonymous memory.
    pub(super) anon: Vec<At>,
}

/// Readings of one process: the first and the newest as they were, and at most [`COURSE_POINTS`] points, however many
/// readings are added. At most 14 KiB.
#[derive(Clone, Debug)]
pub struct MemoryCourse {
    first: Option<(f64, MemoryReading)>,
    newest: Option<(f64, MemoryReading)>,
    points: Vec<Point>,
    /// Only the last so many seconds are kept; all, if there is none.
    last: Option<f64>,
    /// Readings within so many seconds are one point.
    step: f64,
    readings: u64,
}

impl Default for MemoryCourse {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryCourse {
    /// A course from the first reading on. When it is full, its points become coarser.
    #[must_use]
    pub const fn new() -> Self {
        Self { first: None, newest: None, points: Vec::new(), last: None, step: 0.0, readings: 0 }
    }

    /// A course over the last `seconds`, for who watches without end: what is older goes.
    #[must_use]
    pub fn over_last(seconds: f64) -> Self {
        let seconds = seconds.max(0.0);
        Self { last: Some(seconds), step: seconds / COURSE_POINTS as f64, ..Self::new() }
    }

    /// Adds a reading; `seconds` is on any clock that only goes forward. One that is not newer than the last, and times
    /// that are no number, are left out.
    pub fn add(&mut self, seconds: f64, reading: &MemoryReading) {
        if !seconds.is_finite() || self.newest.is_some_and(|(newest, _)| seconds <= newest) {
            return;
        }
        self.readings = self.readings.saturating_add(1);
        self.first.get_or_insert((seconds, *reading));
        self.newest = Some((seconds, *reading));
        let point = Point::of(seconds, reading);
        match self.points.last_mut() {
            Some(last) if seconds - last.from < self.step => last.absorb(&point),
            _ => self.points.push(point),
        }
        if let Some(last) = self.last {
            let old = self.points.partition_point(|point| point.from < seconds - last);
            self.points.drain(..old);
        }
        if self.points.len() > COURSE_POINTS {
            self.coarsen();
        }
    }

    /// Makes one point of each two.
    fn coarsen(&mut self) {
        let length = self.points.last().map_or(0.0, |last| last.from)
            - self.points.first().map_or(0.0, |first| first.from);
        self.step = (2.0 * length / COURSE_POINTS as f64).max(self.step);
        let points = std::mem::take(&mut self.points);
        self.points = points
            .chunks(2)
            .filter_map(|pair| {
                let (first, rest) = pair.split_first()?;
                let mut first = *first;
                for later in rest {
                    first.absorb(later);
                }
                Some(first)
            })
            .collect();
    }

    /// The first reading, however long ago, and its time.
    #[must_use]
    pub const fn first(&self) -> Option<&(f64, MemoryReading)> {
        self.first.as_ref()
    }

    /// The newest reading, and its time.
    #[must_use]
    pub const fn newest(&self) -> Option<&(f64, MemoryReading)> {
        self.newest.as_ref()
    }

    /// How many readings were added.
    #[must_use]
    pub const fn readings(&self) -> u64 {
        self.readings
    }

    /// What the course means; `None` where there is too little of it to say anything.
    #[must_use]
    pub fn trend(&self) -> Option<MemoryTrend> {
        let room = self.newest.and_then(|(_, reading)| reading.cgroup_room_bytes);
        MemoryTrend::of(&self.values(), room)
    }

    fn values(&self) -> Values {
        let from = self.points.first().map_or(0.0, Point::at);
        let values = |value: fn(&Point) -> f64| {
            self.points.iter().map(|point| (point.at() - from, value(point))).collect()
        };
        Values {
            rss: values(|point| point.rss / point.readings),
            floor: values(|point| point.floor),
            anon: values(|point| point.anon / point.readings),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(rss_bytes: u64) -> MemoryReading {
        MemoryReading { rss_bytes, anon_bytes: 3, swap_bytes: 4, ..MemoryReading::default() }
    }

    /// However long it is fed, memory is bounded, and points are spread over all of the time: none is lost, so that
    /// their mean is that of all readings, and their floor the lowest of all.
    #[test]
    fn bounded() {
        let mut course = MemoryCourse::new();
        for second in 0..100_000u32 {
            course.add(f64::from(second) * 0.25, &reading(u64::from(second) + 10));
            assert!(course.points.len() <= COURSE_POINTS);
        }
        assert!(course.points.len() >= COURSE_POINTS / 3, "{}", course.points.len());
        let Values { rss, floor, anon } = course.values();
        assert_eq!((rss[0].0, floor[0].1, anon[0].1), (0.0, 10.0, 7.0), "swapped-out is anonymous");
        assert!(rss.windows(2).all(|two| two[0].0 < two[1].0 && two[1].0 - two[0].0 < 500.0));
        // The values are four times their times, in points as in readings.
        let slope = super::super::fit::line(&rss).unwrap().slope;
        assert!((slope - 4.0).abs() < 1e-9, "{slope}");
        let sums = course
            .points
            .iter()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.readings, sum.1 + point.rss));
        assert_eq!(sums, (100_000.0, 100_000.0 * (99_999.0 / 2.0 + 10.0)));
        assert_eq!((course.first().unwrap().1, course.readings()), (reading(10), 100_000));
        assert_eq!(course.newest().unwrap().1, reading(100_009));
    }

    /// A course over the last minutes forgets what is older, at any pace.
    #[test]
    fn over_the_last() {
        for pace in [0.01, 0.5, 2.0, 7.0, 100.0, 1_000.0] {
            let mut course = MemoryCourse::over_last(600.0);
            for look in 0..3_000u32 {
                course.add(f64::from(look) * pace, &reading(u64::from(look)));
                assert!(course.points.len() <= COURSE_POINTS + 1, "{pace}");
            }
            let length = 2_999.0 * pace - course.points[0].from;
            assert!(length <= 600.0, "{pace} {length}");
            assert!(length >= (2_999.0 * pace).min(600.0 - pace) - 5.0, "{pace} {length}");
        }
    }

    /// Times that go back, repeat or are no numbers are left out, so that no slope is infinite.
    #[test]
    fn strange_times() {
        let mut course = MemoryCourse::new();
        for seconds in [5.0, 5.0, 4.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 6.0] {
            course.add(seconds, &reading(1));
        }
        assert_eq!(course.readings(), 2);
        assert_eq!(course.values().rss, [(0.0, 1.0), (1.0, 1.0)]);
        assert!(course.trend().is_none());
        assert!(MemoryCourse::default().trend().is_none());
        let mut none = MemoryCourse::over_last(f64::NAN);
        for second in 0..1_000u32 {
            none.add(f64::from(second), &reading(1));
        }
        assert!(none.points.len() <= COURSE_POINTS);
    }
}
