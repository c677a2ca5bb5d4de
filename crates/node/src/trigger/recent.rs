//! What a rule remembers: its signal's last points, and the baseline.

use std::collections::VecDeque;

/// Points per window; nearer ones are merged, so the memory is bounded at any interval.
const POINTS_A_SPAN: f64 = 64.0;

/// The points of a sliding window, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct Recent<T> {
    points: VecDeque<(f64, T)>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Self { points: VecDeque::new() }
    }
}

impl<T: Copy> Recent<T> {
    /// Adds a point and forgets those that are no longer needed for a window of `over` seconds.
    pub(super) fn push(&mut self, at: f64, value: T, over: f64) {
        let points = &mut self.points;
        if let (Some(last), Some(before)) =
            (points.len().checked_sub(1), points.len().checked_sub(2))
            && points[last].0 - points[before].0 < over / POINTS_A_SPAN
        {
            points.truncate(last);
        }
        points.push_back((at, value));
        while points.get(1).is_some_and(|(second, _)| *second <= at - over) {
            points.pop_front();
        }
        // After a gap, the difference to a point far back is no difference over the window.
        while points.front().is_some_and(|(first, _)| *first < at - 2.0 * over) {
            points.pop_front();
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.points.clear();
    }

    /// The newest value.
    pub(super) fn last(&self) -> Option<T> {
        self.points.back().map(|(_, value)| *value)
    }

    /// The oldest value, if it is at least `span` seconds older than the newest.
    pub(super) fn first(&self, span: f64) -> Option<T> {
        let ((first, value), (last, _)) = (self.points.front()?, self.points.back()?);
        (last - first >= span).then_some(*value)
    }

    /// Seconds between the oldest value and the newest.
    pub(super) fn span(&self) -> f64 {
        let ends = self.points.front().zip(self.points.back());
        ends.map_or(0.0, |((first, _), (last, _))| last - first)
    }

    /// Oldest, middle and newest value of a window that is nearly full.
    pub(super) fn halves(&self, over: f64) -> Option<[T; 3]> {
        let first = self.first(over * 0.9)?;
        let (begin, end) = (self.points.front()?.0, self.points.back()?.0);
        let middle = f64::midpoint(begin, end);
        let (_, half) = self.points.iter().find(|(at, _)| *at >= middle)?;
        Some([first, *half, self.last()?])
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.points.len()
    }
}

/// What is baseline: mean and variance, in which a value counts the less the older it is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Baseline {
    pub(super) mean: f64,
    pub(super) variance: f64,
    /// Seconds and values that it was learned from.
    pub(super) seconds: f64,
    values: f64,
}

impl Baseline {
    /// Learns a value that stands for `seconds`; after `over` seconds it counts about a third. The first
    /// values count alike, so that the first of all is not more than one of them.
    pub(super) fn learn(&mut self, value: f64, seconds: f64, over: f64) {
        self.values += 1.0;
        self.seconds += seconds;
        let share = (1.0 - (-seconds / over).exp()).max(1.0 / self.values);
        let off = value - self.mean;
        self.mean += share * off;
        self.variance = (1.0 - share) * (self.variance + share * off * off);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recent is bounded however often it is added to, and spans its window.
    #[test]
    fn bounded() {
        let mut recent = Recent::default();
        for step in 0..1_000_000_u32 {
            recent.push(f64::from(step) / 1000.0, step, 60.0);
        }
        assert!(recent.len() <= 130, "{}", recent.len());
        let first = recent.first(60.0).unwrap();
        assert!((938_000..=940_000).contains(&first), "{first}");
        assert_eq!(recent.last(), Some(999_999));
    }

    /// A gap longer than two windows leaves nothing to compare with.
    #[test]
    fn gaps() {
        let mut recent = Recent::default();
        recent.push(0.0, 1, 60.0);
        recent.push(30.0, 2, 60.0);
        recent.push(151.0, 3, 60.0);
        assert_eq!(recent.first(1.0), None);
        recent.push(160.0, 4, 60.0);
        assert_eq!(recent.first(1.0), Some(3));
    }

    /// Both halves need a window that is nearly full.
    #[test]
    fn halves() {
        let mut recent = Recent::default();
        for step in 0..=20_i32 {
            recent.push(f64::from(step * 5), step, 100.0);
            assert_eq!(recent.halves(100.0).is_some(), step >= 18, "{step}");
        }
        assert_eq!(recent.halves(100.0), Some([0, 10, 20]));
    }

    /// Mean and variance are those of what was learned, while all counts alike.
    #[test]
    fn baseline() {
        let mut baseline = Baseline::default();
        for value in [1.0, 2.0, 3.0, 4.0] {
            baseline.learn(value, 1.0, 1e9);
        }
        assert!((baseline.mean - 2.5).abs() < 1e-12);
        assert!((baseline.variance - 1.25).abs() < 1e-12);
    }
}
