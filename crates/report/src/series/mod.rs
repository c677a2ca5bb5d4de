//! Time series in bounded memory: containers only. `trend` and `memory` judge them.

mod held;
mod memory;
mod sites;

pub use held::{FIRST_INTERVAL, HeldBytes, HeldPoint, HeldSeries, held_bytes};
pub use memory::MemorySeries;
pub(crate) use memory::Values;
pub use sites::{SiteNow, SiteSeries, SiteSeriesSet};

/// One point of a series.
pub(crate) trait Point {
    /// Its time in nanoseconds, on any clock that only goes forward.
    fn at_ns(&self) -> u64;

    /// Takes in a later point that is too near to be kept.
    fn absorb(&mut self, _later: &Self) {}
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
