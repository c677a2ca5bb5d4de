//! What is there now, by the time at which it came. For `trend`: what stays accumulates here, what comes and goes does not.

use crate::series::LivePoint;

/// Bins of equal length.
const BINS: u64 = 64;

/// Counts and bytes of what is there now, by the time at which it came, in bins of equal length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survivors {
    from_ns: u64,
    to_ns: u64,
    /// Counts and bytes; empty as long as there is nothing.
    bins: Vec<[u64; 2]>,
}

impl Survivors {
    /// Nothing yet, of what came between these times (`CLOCK_MONOTONIC` ns).
    #[must_use]
    pub const fn between(from_ns: u64, to_ns: u64) -> Self {
        Self { from_ns, to_ns, bins: Vec::new() }
    }

    /// Adds what came at this time; what came before or after all bins counts in the nearest.
    pub fn add(&mut self, came_ns: u64, count: u64, bytes: u64) {
        if self.bins.is_empty() {
            self.bins = vec![[0; 2]; BINS as usize];
        }
        let since = u128::from(came_ns.saturating_sub(self.from_ns));
        let length = u128::from(self.length_ns().max(1));
        let bin = usize::try_from(since * u128::from(BINS) / length).unwrap_or(usize::MAX);
        if let Some(bin) = self.bins.get_mut(bin.min(BINS as usize - 1)) {
            bin[0] = bin[0].saturating_add(count);
            bin[1] = bin[1].saturating_add(bytes);
        }
    }

    /// Adds what is there elsewhere. Where the bins are others, by their begins.
    pub fn join(&mut self, other: &Self) {
        if self.bins.is_empty() {
            self.clone_from(other);
            return;
        }
        other.bins().filter(|bin| bin.objects > 0).for_each(|bin| {
            self.add(bin.at_ns, bin.objects, bin.bytes);
        });
    }

    /// The bins, each at its begin.
    pub fn bins(&self) -> impl Iterator<Item = LivePoint> + '_ {
        let begin = |index: usize| {
            let passed = u128::from(self.length_ns()) * index as u128 / u128::from(BINS);
            self.from_ns.saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
        };
        self.bins.iter().enumerate().map(move |(index, &[objects, bytes])| LivePoint {
            at_ns: begin(index),
            objects,
            bytes,
            allocated: 0,
        })
    }

    /// How long a bin is, nanoseconds.
    #[must_use]
    pub const fn bin_ns(&self) -> u64 {
        self.length_ns() / BINS
    }

    /// All that is there.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.bins.iter().fold(0, |sum, bin| sum.saturating_add(bin[0]))
    }

    const fn length_ns(&self) -> u64 {
        self.to_ns.saturating_sub(self.from_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything is in the bin of its time, also what came at the very end or outside; joining loses nothing.
    #[test]
    fn every_one_has_a_bin() {
        let mut one = Survivors::between(1_000, 1_640);
        assert_eq!((one.total(), one.bins().count(), one.bin_ns()), (0, 0, 10));
        for at in [0, 1_000, 1_009, 1_010, 1_639, 1_640, 9_999] {
            one.add(at, 2, 10);
        }
        let counts = |of: &Survivors| -> Vec<(u64, u64, u64)> {
            let filled = of.bins().filter(|bin| bin.objects > 0);
            filled.map(|bin| (bin.at_ns, bin.objects, bin.bytes)).collect()
        };
        assert_eq!(counts(&one), [(1_000, 6, 30), (1_010, 2, 10), (1_630, 6, 30)]);
        let mut other = Survivors::default();
        other.join(&one);
        assert_eq!(other, one);
        other.join(&one);
        assert_eq!((other.total(), counts(&other)[1]), (28, (1_010, 4, 20)));
        let mut none = Survivors::default();
        none.add(5, 1, 1);
        assert_eq!(none.total(), 1, "without a length all is in one bin");
    }
}
