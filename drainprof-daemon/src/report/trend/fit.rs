//! The statistics of a course over time: a line through it, and how sure its slope is.
//!
//! Pure functions over (time, value) pairs, times in seconds and increasing. Called by the rules in
//! `trend`; the formulas are explained in `docs/retention.md`.

/// Parts of equal length that a course is cut into.
pub(super) const BLOCKS: usize = 9;
/// Points that each part needs.
const PER_BLOCK: usize = 2;
/// The 97.5 % quantile of Student's t distribution with `BLOCKS` − 2 = 7 degrees of freedom.
const T: f64 = 2.364_624_251;

/// A point: time in seconds, value.
pub(super) type At = (f64, f64);

/// A line through points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    /// Change per second.
    pub(super) slope: f64,
    /// The share of the variance that the line explains; `None` where nothing varies.
    pub(super) r_squared: Option<f64>,
}

/// The line of least squares; `None` unless there are two different times.
pub(super) fn line(points: &[At]) -> Option<Line> {
    let middle = mean(points)?;
    let (mut tt, mut ty, mut yy) = (0.0, 0.0, 0.0);
    for &(time, value) in points {
        let (t, y) = (time - middle.0, value - middle.1);
        tt += t * t;
        ty += t * y;
        yy += y * y;
    }
    (tt > 0.0).then(|| Line {
        slope: ty / tt,
        r_squared: (yy > 0.0).then(|| (ty * ty / (tt * yy)).clamp(0.0, 1.0)),
    })
}

/// Mean time and mean value.
pub(super) fn mean(points: &[At]) -> Option<At> {
    let count = points.len() as f64;
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (count > 0.0).then(|| (sum.0 / count, sum.1 / count))
}

/// How a course changes from each of its parts to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Changes([f64; BLOCKS - 1]);

impl Changes {
    /// Cuts the course into parts of equal length; `None` where one has too few points for a mean, or
    /// where nobody looked for as long as a part.
    pub(super) fn of(points: &[At]) -> Option<Self> {
        let (first, last) = (points.first()?.0, points.last()?.0);
        let length = (last - first) / BLOCKS as f64;
        if points.windows(2).any(|pair| pair[1].0 - pair[0].0 > length) {
            return None;
        }
        let mut rest = points;
        let mut means = [(0.0, 0.0); BLOCKS];
        for (index, middle) in means.iter_mut().enumerate() {
            let end = first + length * (index + 1) as f64;
            let last = index + 1 == BLOCKS;
            let count = if last { rest.len() } else { rest.partition_point(|at| at.0 < end) };
            if count < PER_BLOCK {
                return None;
            }
            let (block, more) = rest.split_at(count);
            (*middle, rest) = (mean(block)?, more);
        }
        let mut changes = [0.0; BLOCKS - 1];
        for (change, pair) in changes.iter_mut().zip(means.windows(2)) {
            let (time, value) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
            if time <= 0.0 {
                return None;
            }
            *change = value / time;
        }
        Some(Self(changes))
    }

    /// The 95 % confidence interval of the change per second.
    ///
    /// What is retained now was mostly retained a moment ago, so the residuals of a fitted line are no
    /// independent draws, and its textbook error would be far too small. The changes from part to part are
    /// nearly independent even where the values are not (they are exactly so for a random walk), and where
    /// they depend on each other, as for independent values, a rise is followed by a fall and the interval
    /// is too wide rather than too narrow. So Student's t is taken over them.
    pub(super) fn interval(self) -> [f64; 2] {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares: f64 = self.0.iter().map(|change| (change - mean).powi(2)).sum();
        let half = T * (squares / (count - 1.0) / count).sqrt();
        [mean - half, mean + half]
    }

    /// The mean change in the earlier and in the later half.
    pub(super) fn halves(self) -> [f64; 2] {
        let (early, late) = self.0.split_at(self.0.len() / 2);
        [early, late].map(|half| half.iter().sum::<f64>() / half.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A textbook example by hand: slope 0.6, R² 0.6.
    #[test]
    fn known_line() {
        let points = [(1.0, 2.0), (2.0, 4.0), (3.0, 5.0), (4.0, 4.0), (5.0, 5.0)];
        let Line { slope, r_squared } = line(&points).unwrap();
        assert!((slope - 0.6).abs() < 1e-12 && (r_squared.unwrap() - 0.6).abs() < 1e-12);
        assert_eq!(line(&[(1.0, 2.0), (1.0, 3.0)]), None, "one time");
        assert_eq!(line(&[]), None);
        let flat = line(&[(1.0, 2.0), (2.0, 2.0)]).unwrap();
        assert_eq!((flat.slope, flat.r_squared), (0.0, None), "nothing varies");
    }

    /// Changes by hand: means 0, 1, 0, 1, … 0 change by ±1 per part, on average by nothing; the standard
    /// deviation is √(8/7), so half an interval is 2.3646 × √(1/7).
    #[test]
    fn known_interval() {
        // Nine parts of two points each, and one more at the very end, which belongs to the last.
        let points: Vec<At> = (0..9u32)
            .flat_map(|part| [0.25, 0.75].map(|more| (f64::from(part) + more, f64::from(part % 2))))
            .chain([(0.0, 0.0), (9.0, 0.0)])
            .collect();
        let mut points = points;
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        let [low, high] = Changes::of(&points).unwrap().interval();
        let half = 2.364_6 * (1.0f64 / 7.0).sqrt();
        assert!((low + half).abs() < 0.05 && (high - half).abs() < 0.05, "{low} {high} {half}");
    }

    /// A part without points, as after a stop, is not bridged.
    #[test]
    fn gaps_are_not_bridged() {
        let points: Vec<At> = (0..200).map(|n| (f64::from(n), 1.0)).collect();
        assert!(Changes::of(&points).is_some());
        let gap: Vec<At> =
            points.iter().copied().filter(|at| !(50.0..80.0).contains(&at.0)).collect();
        assert_eq!(Changes::of(&gap), None);
        assert_eq!(Changes::of(&points[..17]), None, "too few");
        assert_eq!(Changes::of(&[]), None);
    }

    proptest! {
        /// A straight line is found exactly, whatever its slope and wherever it begins.
        #[test]
        fn straight_lines(slope in -1e6f64..1e6, from in -1e6f64..1e6, count in 30usize..400) {
            let points: Vec<At> =
                (0..count).map(|n| n as f64 * 0.05).map(|t| (t, from + slope * t)).collect();
            let near = |found: f64| (found - slope).abs() <= 1e-6 * (1.0 + from.abs() + slope.abs());
            let changes = Changes::of(&points).unwrap();
            prop_assert!(near(line(&points).unwrap().slope));
            prop_assert!(changes.interval().into_iter().chain(changes.halves()).all(near));
        }

        /// Whatever the values, an interval is one and R² is a share.
        #[test]
        fn sane(values in prop::collection::vec(0.0f64..1e12, 30..300)) {
            let points: Vec<At> =
                values.iter().enumerate().map(|(n, &value)| (n as f64, value)).collect();
            let [low, high] = Changes::of(&points).unwrap().interval();
            prop_assert!(low <= high);
            prop_assert!(line(&points).unwrap().r_squared.is_none_or(|r| (0.0..=1.0).contains(&r)));
        }
    }
}
