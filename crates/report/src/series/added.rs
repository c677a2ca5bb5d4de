//! What call stacks have added to resident memory over time: one series per stack, of as many as are worth it.

use std::{cmp::Reverse, collections::BTreeMap};

use super::points::{Point, TimeSeries};

/// Call stacks whose series are kept: those that have changed most.
const MAX_STACKS: usize = 256;

/// What was added by then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddedPoint {
    /// `CLOCK_MONOTONIC` nanoseconds.
    pub at_ns: u64,
    /// Bytes of resident memory, on balance.
    pub bytes: i64,
}

impl Point for AddedPoint {
    fn at_ns(&self) -> u64 {
        self.at_ns
    }
}

/// What one call stack has added.
pub type AddedSeries = TimeSeries<AddedPoint>;

/// The series of call stacks, by target and number.
#[derive(Clone, Debug, Default)]
pub struct AddedSet {
    kept: BTreeMap<(u32, u32), AddedSeries>,
    /// When was read.
    readings: AddedSeries,
    /// Whether a stack was left out for want of room: then what those without a series had added is not known.
    left_out: bool,
}

impl AddedSet {
    /// Nothing was added before this time.
    pub fn begin(&mut self, at_ns: u64) {
        if self.readings.is_empty() {
            self.readings.add(AddedPoint { at_ns, bytes: 0 });
        }
    }

    /// Adds what each stack had added by `at_ns`.
    pub fn add(&mut self, at_ns: u64, sums: &BTreeMap<(u32, u32), i64>) {
        let mut new = Vec::new();
        for (&stack, &bytes) in sums {
            match self.kept.get_mut(&stack) {
                Some(series) => series.add(AddedPoint { at_ns, bytes }),
                None if bytes != 0 => new.push((stack, bytes)),
                None => {}
            }
        }
        new.sort_by_key(|(stack, bytes)| (Reverse(bytes.unsigned_abs()), *stack));
        for (stack, bytes) in new {
            if self.kept.len() >= MAX_STACKS && !self.make_room(bytes) {
                break;
            }
            // Until now it had added nothing, unless it was left out.
            let mut series = if self.left_out { AddedSeries::new() } else { self.readings.clone() };
            series.add(AddedPoint { at_ns, bytes });
            self.kept.insert(stack, series);
        }
        self.readings.add(AddedPoint { at_ns, bytes: 0 });
    }

    /// Gives up the series that has changed least, if this one has changed more than twice as much.
    fn make_room(&mut self, bytes: i64) -> bool {
        self.left_out = true;
        let change = |series: &AddedSeries| series.newest().map_or(0, |at| at.bytes.unsigned_abs());
        let least = self.kept.iter().min_by_key(|(_, series)| change(series));
        match least.map(|(stack, series)| (*stack, change(series))) {
            Some((stack, least)) if bytes.unsigned_abs() / 2 > least => {
                self.kept.remove(&stack);
                true
            }
            _ => false,
        }
    }

    /// The series of a call stack, if one is kept.
    #[must_use]
    pub fn of(&self, stack: (u32, u32)) -> Option<&AddedSeries> {
        self.kept.get(&stack)
    }

    /// The series of a call stack under all its numbers: it has several until its code is known. `None` where one of them
    /// has none, or has no past.
    #[must_use]
    pub fn sum(&self, stacks: &[(u32, u32)]) -> Option<AddedSeries> {
        let (first, rest) = stacks.split_first()?;
        let mut sum: Vec<AddedPoint> = self.of(*first)?.points().collect();
        for stack in rest {
            // All that have a past have points at the same times.
            let own: Vec<AddedPoint> = self.of(*stack)?.points().collect();
            if !own.iter().map(|point| point.at_ns).eq(sum.iter().map(|point| point.at_ns)) {
                return None;
            }
            for (sum, point) in sum.iter_mut().zip(own) {
                sum.bytes = sum.bytes.saturating_add(point.bytes);
            }
        }
        let mut series = AddedSeries::new();
        for point in sum {
            series.add(point);
        }
        Some(series)
    }

    /// From when on a further point would be kept.
    #[must_use]
    pub fn due_ns(&self) -> u64 {
        self.readings.due_ns()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn values(set: &AddedSet, number: u32) -> Vec<(u64, i64)> {
        let points = set.of((0, number)).unwrap().points();
        points.map(|point| (point.at_ns / MS, point.bytes)).collect()
    }

    /// A stack that begins later had added nothing before; what it takes away again counts.
    #[test]
    fn the_past_is_nothing() {
        let mut set = AddedSet::default();
        set.begin(50 * MS);
        set.add(100 * MS, &BTreeMap::from([((0, 1), 4096)]));
        set.add(200 * MS, &BTreeMap::from([((0, 1), 8192), ((0, 2), -4096), ((0, 3), 0)]));
        assert_eq!(values(&set, 1), [(50, 0), (100, 4096), (200, 8192)]);
        assert_eq!(values(&set, 2), [(50, 0), (100, 0), (200, -4096)]);
        assert!(set.of((0, 3)).is_none() && set.of((1, 1)).is_none());
        assert_eq!(set.due_ns(), 250 * MS);
        let both = set.sum(&[(0, 1), (0, 2)]).unwrap();
        let both: Vec<i64> = both.points().map(|point| point.bytes).collect();
        assert_eq!(both, [0, 4096, 4096]);
        assert!(set.sum(&[(0, 1), (0, 3)]).is_none() && set.sum(&[]).is_none());
    }

    /// Of more stacks than are kept those that changed most stay; one that comes later has no past.
    #[test]
    fn the_largest_are_kept() {
        let mut set = AddedSet::default();
        let many = (0..1_000).map(|number| ((0, number), i64::from(number) + 1));
        set.add(100 * MS, &many.collect());
        assert_eq!(set.kept.len(), MAX_STACKS);
        assert!(set.of((0, 999)).is_some() && set.of((0, 743)).is_none());
        set.add(200 * MS, &BTreeMap::from([((0, 7), 4_000)]));
        assert_eq!((values(&set, 7), set.kept.len()), (vec![(200, 4_000)], MAX_STACKS));
    }
}
