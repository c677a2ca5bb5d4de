//! A time series in bounded memory.

use std::time::Duration;

/// Points of a [`TimeSeries`] that are kept at most, the newest not counted, where nothing else is asked for.
pub const MOST_POINTS: usize = 512;
/// The time between two kept points, as long as all fit. Each time that they do not, it doubles.
pub const FIRST_INTERVAL: Duration = Duration::from_millis(50);

/// One point of a series.
pub trait Point {
    /// Its time in nanoseconds, on any clock that only goes forward.
    fn at_ns(&self) -> u64;

    /// Takes in a later point that is too near to be kept.
    fn absorb(&mut self, _later: &Self) {}
}

/// A time series. The first and the newest point are always there, times increase, and
/// memory is bounded, however long it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeSeries<P> {
    pub(super) kept: Thinned<P>,
    newest: Option<P>,
}

impl<P: Point + Copy> Default for TimeSeries<P> {
    fn default() -> Self {
        Self::new()
    }
}

impl<P: Point + Copy> TimeSeries<P> {
    /// A series without points.
    #[must_use]
    pub const fn new() -> Self {
        Self::of_at_most(MOST_POINTS)
    }

    /// A series without points that keeps so many at most, the newest not counted.
    #[must_use]
    pub const fn of_at_most(points: usize) -> Self {
        Self { kept: Thinned::new(points, FIRST_INTERVAL.as_nanos() as u64), newest: None }
    }

    /// Adds a point. One that is older than the newest is left out; one of the same time replaces it.
    pub fn add(&mut self, point: P) {
        if self.newest.is_some_and(|newest| point.at_ns() < newest.at_ns()) {
            return;
        }
        self.newest = Some(point);
        match self.kept.last_mut() {
            Some(last) if last.at_ns() == point.at_ns() => *last = point,
            _ => self.kept.add(point),
        }
    }

    /// All points, the oldest first.
    pub fn points(&self) -> impl Iterator<Item = P> + '_ {
        let kept = self.kept.points();
        let last = kept.last().map(P::at_ns);
        let newest = self.newest.filter(|newest| Some(newest.at_ns()) != last);
        kept.iter().copied().chain(newest)
    }

    /// Whether there is no point.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    /// The newest point.
    #[must_use]
    pub const fn newest(&self) -> Option<P> {
        self.newest
    }

    /// From when on a further point would be kept; 0 while there is none.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.kept.due_ns()
    }
}

/// Points at growing distances: when there are too many, each two become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thinned<P> {
    points: Vec<P>,
    limit: usize,
    interval_ns: u64,
}

impl<P: Point> Thinned<P> {
    /// At most `limit` points, `interval_ns` apart as long as all fit. 0: every point, as long as all fit.
    pub(crate) const fn new(limit: usize, interval_ns: u64) -> Self {
        Self { points: Vec::new(), limit, interval_ns }
    }

    /// The points that are kept, the oldest first.
    pub(crate) fn points(&self) -> &[P] {
        &self.points
    }

    /// Forgets the points before a time.
    pub(crate) fn forget_before(&mut self, ns: u64) {
        let old = self.points.partition_point(|point| point.at_ns() < ns);
        self.points.drain(..old);
    }

    /// The newest point that is kept.
    pub(crate) fn last_mut(&mut self) -> Option<&mut P> {
        self.points.last_mut()
    }

    /// The time from which on a further point is kept; 0 while there is none.
    pub(crate) fn due_ns(&self) -> u64 {
        self.points.last().map_or(0, |last| last.at_ns().saturating_add(self.interval_ns))
    }

    /// Adds a point that is newer than all others.
    pub(crate) fn add(&mut self, point: P) {
        let due_ns = self.due_ns();
        match self.points.last_mut() {
            Some(last) if point.at_ns() < due_ns => last.absorb(&point),
            _ => self.points.push(point),
        }
        if self.points.len() > self.limit {
            self.coarsen();
        }
    }

    fn coarsen(&mut self) {
        let at = |point: Option<&P>| point.map_or(0, Point::at_ns);
        let length = at(self.points.last()) - at(self.points.first());
        self.interval_ns = match self.interval_ns {
            0 => 2 * (length / self.limit as u64),
            known => known.saturating_mul(2),
        };
        let mut points = std::mem::take(&mut self.points).into_iter();
        while let Some(mut first) = points.next() {
            if let Some(second) = points.next() {
                first.absorb(&second);
            }
            self.points.push(first);
        }
    }
}
