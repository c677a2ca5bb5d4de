//! The memory of a process over time. `memory::trend` judges it.

use drainprof_process::memory::MemoryReading;

use super::points::{Point, Thinned};
use crate::fit::At;

/// Points that are kept at most. When there are more, each two become one that knows their mean and their lowest value.
const MAX_POINTS: usize = 256;

/// Readings that followed each other, as one.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Readings {
    /// The time of its first reading.
    from: f64,
    count: f64,
    /// Sums over its readings: of times since `from`, of resident memory, of anonymous memory.
    seconds: f64,
    rss: f64,
    /// Swapped-out memory included: it is the process's as before, and comes back.
    anon: f64,
    /// Its lowest resident memory.
    floor: f64,
}

impl Readings {
    fn of(from: f64, reading: &MemoryReading) -> Self {
        let rss = reading.rss_bytes as f64;
        let anon = reading.anon_bytes.saturating_add(reading.swap_bytes) as f64;
        Self { from, count: 1.0, seconds: 0.0, rss, anon, floor: rss }
    }

    /// The mean time.
    fn mean_time(&self) -> f64 {
        self.from + self.seconds / self.count
    }
}

impl Point for Readings {
    fn at_ns(&self) -> u64 {
        nanoseconds(self.from)
    }

    fn absorb(&mut self, later: &Self) {
        self.seconds += later.count.mul_add(later.from - self.from, later.seconds);
        self.count += later.count;
        self.rss += later.rss;
        self.anon += later.anon;
        self.floor = self.floor.min(later.floor);
    }
}

/// Saturates; times before 0 are 0.
#[allow(clippy::cast_sign_loss, reason = "the cast saturates")]
fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// A series as the statistics want it: times since its first point.
pub(crate) struct Values {
    /// Mean resident memory.
    pub(crate) rss: Vec<At>,
    /// The lowest resident memory.
    pub(crate) floor: Vec<At>,
    /// Mean anonymous memory.
    pub(crate) anon: Vec<At>,
}

/// Readings of one process: the first and the newest as they were, and at most `MAX_POINTS` points, however many
/// readings are added. At most 14 KiB.
#[derive(Clone, Debug)]
pub struct MemorySeries {
    first: Option<(f64, MemoryReading)>,
    newest: Option<(f64, MemoryReading)>,
    points: Thinned<Readings>,
    readings: u64,
    /// How far back points go, seconds; `None`: to the first reading.
    over: Option<f64>,
}

impl Default for MemorySeries {
    fn default() -> Self {
        Self::new()
    }
}

impl MemorySeries {
    /// A series from the first reading on. When it is full, its points become coarser.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            first: None,
            newest: None,
            points: Thinned::new(MAX_POINTS, 0),
            readings: 0,
            over: None,
        }
    }

    /// A series that forgets what is older than `over` seconds: for a process that is watched for months, growth is
    /// that of the last minutes.
    #[must_use]
    pub fn recent(over: f64) -> Self {
        Self { over: Some(over), ..Self::new() }
    }

    /// How far back a series goes that forgets.
    #[must_use]
    pub const fn reach(&self) -> Option<f64> {
        self.over
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
        self.points.add(Readings::of(seconds, reading));
        if let Some(over) = self.over {
            self.points.forget_before(nanoseconds(seconds - over));
        }
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

    /// The series as the statistics want it.
    pub(crate) fn values(&self) -> Values {
        let from = self.points.points().first().map_or(0.0, Readings::mean_time);
        let values = |value: fn(&Readings) -> f64| {
            self.points
                .points()
                .iter()
                .map(|point| (point.mean_time() - from, value(point)))
                .collect()
        };
        Values {
            rss: values(|point| point.rss / point.count),
            floor: values(|point| point.floor),
            anon: values(|point| point.anon / point.count),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryTrend;

    fn reading(rss_bytes: u64) -> MemoryReading {
        MemoryReading { rss_bytes, anon_bytes: 3, swap_bytes: 4, ..MemoryReading::default() }
    }

    /// However long it is fed, memory is bounded, and points are spread over all of the time: none is lost, so that
    /// their mean is that of all readings, and their floor the lowest of all.
    #[test]
    fn bounded() {
        let mut series = MemorySeries::new();
        for second in 0..100_000u32 {
            series.add(f64::from(second) * 0.25, &reading(u64::from(second) + 10));
            assert!(series.points.points().len() <= MAX_POINTS);
        }
        assert!(series.points.points().len() >= MAX_POINTS / 3, "{}", series.points.points().len());
        let Values { rss, floor, anon } = series.values();
        assert_eq!((rss[0].0, floor[0].1, anon[0].1), (0.0, 10.0, 7.0), "swapped-out is anonymous");
        assert!(rss.windows(2).all(|two| two[0].0 < two[1].0 && two[1].0 - two[0].0 < 500.0));
        // The values are four times their times, in points as in readings.
        let slope = crate::fit::line(&rss).unwrap().slope;
        assert!((slope - 4.0).abs() < 1e-9, "{slope}");
        let sums = series
            .points
            .points()
            .iter()
            .fold((0.0, 0.0), |sum, point| (sum.0 + point.count, sum.1 + point.rss));
        assert_eq!(sums, (100_000.0, 100_000.0 * (99_999.0 / 2.0 + 10.0)));
        assert_eq!((series.first().unwrap().1, series.readings()), (reading(10), 100_000));
        assert_eq!(series.newest().unwrap().1, reading(100_009));
    }

    /// A series that forgets is of the last minutes alone and bounded, and does not become coarser for ever: a leak that
    /// begins after days is seen as soon as one that begins at once.
    #[test]
    fn forgets() {
        const OVER: f64 = 1_800.0;
        let mut series = MemorySeries::recent(OVER);
        for second in 0..200_000u32 {
            let leaked = u64::from(second.saturating_sub(198_200)) * 1_000;
            series.add(f64::from(second), &reading((1 << 30) + leaked));
            assert!(series.points.points().len() <= MAX_POINTS, "{}", series.points.points().len());
        }
        assert!(series.points.points().len() >= MAX_POINTS / 3, "{}", series.points.points().len());
        let Values { rss, .. } = series.values();
        let (first, last) = (rss[0].0, rss.last().unwrap().0);
        assert!((OVER - 40.0..=OVER).contains(&(last - first)), "{}", last - first);
        let slope = MemoryTrend::of(&series).unwrap().slope_bytes_per_second;
        assert!((slope - 1_000.0).abs() < 1.0, "{slope}");
        assert_eq!((series.reach(), series.readings()), (Some(OVER), 200_000));
        // After a gap, what is left is of now.
        series.add(1e6, &reading(7));
        assert_eq!(series.values().rss, [(0.0, 7.0)]);
    }

    /// Times that go back, repeat or are no numbers are left out, so that no slope is infinite.
    #[test]
    fn strange_times() {
        let mut series = MemorySeries::new();
        for seconds in [5.0, 5.0, 4.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 6.0] {
            series.add(seconds, &reading(1));
        }
        assert_eq!(series.readings(), 2);
        assert_eq!(series.values().rss, [(0.0, 1.0), (1.0, 1.0)]);
        assert!(MemoryTrend::of(&series).is_none());
        assert!(MemoryTrend::of(&MemorySeries::default()).is_none());
    }
}
