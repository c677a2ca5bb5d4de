//! Medians and spreads.

use serde::{Deserialize, Serialize};

/// The median of some values; `None` without any.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// One value per round, in short.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
}

impl Summary {
    /// Of one value per round; `None` without any.
    pub(crate) fn of(rounds: &[f64]) -> Option<Self> {
        Some(Self {
            median: median(rounds)?,
            lowest: rounds.iter().copied().fold(f64::INFINITY, f64::min),
            highest: rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The middle one, the mean of the two in the middle, or nothing; one outlier does not move it.
    #[test]
    fn medians() {
        assert_eq!(median(&[3.0, 1.0, 1000.0]), Some(3.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[]), None);
    }

    /// The spread is that of the rounds, outliers included.
    #[test]
    fn spreads() {
        let summary = Summary::of(&[2.0, 9.0, 3.0]);
        assert_eq!(summary, Some(Summary { median: 3.0, lowest: 2.0, highest: 9.0 }));
        assert_eq!(Summary::of(&[]), None);
    }
}
