//! The statistics of a time series over time: a line through it, and how sure its slope is.
//!
//! Pure functions over (time, value) pairs, times in seconds and increasing. Called by the rules for memory here, and by
//! those for what is held back in `report::trend`; the formulas are explained in `docs/retention.md`.

/// Parts of equal length that a time series is cut into.
pub(crate) const BLOCKS: usize = 9;
/// Points that each part needs.
const PER_BLOCK: usize = 2;
/// The 97.5 % quantile of Student's t distribution with `BLOCKS` − 2 = 7 degrees of freedom.
const T: f64 = 2.364_624_251;
/// √(23/15): by so much the changes of a random walk's means spread less than their mean does. Neighbouring means of a
/// walk share half of its way, so a change is followed by a similar one (their correlation is ¼): the mean of eight
/// varies by 23/192 of what a part adds, and the usual estimate of that from the changes themselves is 5/64 on average.
const WALK: f64 = 1.238_278_375;

/// A point: time in seconds, value.
pub(crate) type At = (f64, f64);

/// A line through points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Line {
    /// Change per second.
    pub(crate) slope: f64,
    /// The share of the variance that the line explains; `None` where nothing varies.
    pub(crate) r_squared: Option<f64>,
}

/// The line of least squares; `None` unless there are two different times.
pub(crate) fn line(points: &[At]) -> Option<Line> {
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
pub(crate) fn mean(points: &[At]) -> Option<At> {
    let count = points.len() as f64;
    let sum = points.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
    (count > 0.0).then(|| (sum.0 / count, sum.1 / count))
}

/// How a time series changes from each of its parts to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Changes([f64; BLOCKS - 1]);

impl Changes {
    /// Cuts the time series into parts of equal length; `None` where one has too few points for a mean, or
    /// where nothing was read for as long as a part.
    pub(crate) fn of(points: &[At]) -> Option<Self> {
        Self::between(points, mean)
    }

    /// The same of the lowest value of each part, at the middle of its points: of what never went meanwhile.
    pub(crate) fn of_floor(points: &[At]) -> Option<Self> {
        Self::between(points, |part| {
            let (time, _) = mean(part)?;
            Some((time, part.iter().map(|at| at.1).min_by(f64::total_cmp)?))
        })
    }

    /// How what `stands` for each part changes.
    fn between(points: &[At], stands: impl Fn(&[At]) -> Option<At>) -> Option<Self> {
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
            (*middle, rest) = (stands(block)?, more);
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
    /// nearly independent even where the values are not (in a random walk neighbours are correlated by ¼), and where
    /// they depend on each other, as for independent values, a rise is followed by a fall and the interval
    /// is too wide rather than too narrow. So Student's t is taken over them.
    pub(crate) fn interval(self) -> [f64; 2] {
        let count = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / count;
        let squares: f64 = self.0.iter().map(|change| (change - mean).powi(2)).sum();
        let half = T * (squares / (count - 1.0) / count).sqrt();
        [mean - half, mean + half]
    }

    /// The interval, made so wide that it holds for a random walk too.
    pub(crate) fn wide_interval(self) -> [f64; 2] {
        let [low, high] = self.interval();
        let (mean, half) = (f64::midpoint(low, high), (high - low) / 2.0 * WALK);
        [mean - half, mean + half]
    }

    /// The mean change per second, and how sure it is that it has this sign and is not 0: 1 − p of the two-sided t test
    /// that belongs to [`Changes::wide_interval`].
    pub(crate) fn confidence(self) -> (f64, f64) {
        let [low, high] = self.wide_interval();
        let (mean, error) = (f64::midpoint(low, high), (high - low) / 2.0 / T);
        let t = if mean == 0.0 { 0.0 } else { (mean / error).abs() };
        // Student's distribution with 7 degrees of freedom in closed form: Abramowitz and Stegun, 26.7.3.
        let angle = (t / 7.0f64.sqrt()).atan();
        let (sine, cosine) = angle.sin_cos();
        let series = cosine * (1.0 + cosine.powi(2) * (2.0 / 3.0 + cosine.powi(2) * 8.0 / 15.0));
        (mean, (std::f64::consts::FRAC_2_PI * (angle + sine * series)).clamp(0.0, 1.0))
    }

    /// The mean change of the last quarter.
    pub(crate) fn newest(self) -> f64 {
        let newest = &self.0[self.0.len() - self.0.len() / 4..];
        newest.iter().sum::<f64>() / newest.len() as f64
    }

    /// The mean change in the earlier and in the later half.
    pub(crate) fn halves(self) -> [f64; 2] {
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

    /// The 97.5 % quantile is where a two-sided test is 95 % sure; the other values are those of the tables.
    #[test]
    fn known_confidence() {
        let table = [(0.711_1, 0.5), (1.894_6, 0.9), (T, 0.95), (3.499_5, 0.99), (5.407_9, 0.999)];
        for (t, sure) in table {
            // ±1 around the mean: their standard error is 1/√7, and is widened.
            let mean = t * WALK / 7.0f64.sqrt();
            let changes =
                Changes([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0].map(|one| one + mean));
            let (found, confidence) = changes.confidence();
            assert!((found - mean).abs() < 1e-12, "{found} {mean}");
            assert!((confidence - sure).abs() < 1e-4, "{t} {confidence}");
        }
        assert_eq!(Changes([0.0; 8]).confidence(), (0.0, 0.0));
        assert_eq!(Changes([2.0; 8]).confidence(), (2.0, 1.0));
    }

    /// The floor of a saw-tooth does not move, though the means of its parts do.
    #[test]
    #[allow(clippy::float_cmp, reason = "differences of equal numbers are exactly 0")]
    fn floors() {
        let points: Vec<At> = (0..900).map(|n| (f64::from(n), 7.0 + f64::from(n % 37))).collect();
        assert_eq!(Changes::of_floor(&points).unwrap().interval(), [0.0, 0.0]);
        let [low, high] = Changes::of(&points).unwrap().interval();
        assert!(low < 0.0 && high > 0.0);
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
            prop_assert!(near(changes.newest()));
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
