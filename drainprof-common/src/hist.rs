//! Log-linear histograms that the kernel can fill: four buckets per power of two.
//!
//! The relative width of a bucket is at most 1/4, so a percentile read from it is within 12.5 % when the
//! middle is taken; minimum, maximum and count are exact.

use bytemuck::{Pod, Zeroable};

/// Buckets per power of two.
pub const SUB: u32 = 4;
/// Number of buckets: values up to 2⁴⁶ (about 19 hours in nanoseconds); larger ones share the last.
pub const BUCKETS: usize = 184;

/// What a histogram is of; part of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Of {
    /// Nanoseconds from a pinned close to its late drain.
    PinDelay = 1,
    /// Nanoseconds from a granule's open (or last reset) to its close, per place of opening.
    Lifetime = 2,
    /// Nanoseconds from a pinned close to the free of a pin, per site (its number stands for the place).
    SiteDelay = 3,
    /// Nanoseconds from an object's allocation to its free, per site, where frees are no late drains.
    SiteLife = 4,
}

/// One histogram.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Hist {
    /// Number of values.
    pub count: u64,
    /// Their sum.
    pub sum: u64,
    /// The largest value.
    pub max: u64,
    /// Bitwise complement of the smallest value, so that zeroed memory means "none" and one atomic
    /// maximum serves both ends.
    pub not_min: u64,
    /// Counts per bucket.
    pub buckets: [u32; BUCKETS],
}

/// The bucket of `value`.
#[inline(always)]
#[must_use]
pub const fn bucket(value: u64) -> usize {
    if value < SUB as u64 {
        return value as usize;
    }
    let exponent = log2(value);
    let sub = (value >> (exponent - 2)) & 3;
    let index = ((exponent - 1) * SUB) as usize + sub as usize;
    if index < BUCKETS { index } else { BUCKETS - 1 }
}

/// The smallest value of bucket `index`.
#[must_use]
pub const fn lower_bound(index: usize) -> u64 {
    if index < SUB as usize {
        return index as u64;
    }
    let exponent = index as u32 / SUB + 1;
    let sub = (index as u32 % SUB) as u64;
    (SUB as u64 + sub) << (exponent - 2)
}

/// Position of the highest set bit: every bit below it is set too, and all are counted. BPF has no
/// instruction for it, and its verifier would follow each of the 64 ways through a search by halves.
/// 0 for 0.
#[inline(always)]
const fn log2(value: u64) -> u32 {
    let mut filled = value | 1;
    let mut reach = 1;
    while reach < 64 {
        filled |= filled >> reach;
        reach *= 2;
    }
    crate::interp::popcount(filled) as u32 - 1
}

impl Hist {
    /// An empty histogram.
    #[must_use]
    pub const fn new() -> Self {
        Self { count: 0, sum: 0, max: 0, not_min: 0, buckets: [0; BUCKETS] }
    }

    /// Adds one value; for the host's tests and for merging, the kernel does the same with atomics.
    pub fn record(&mut self, value: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
        self.max = self.max.max(value);
        self.not_min = self.not_min.max(!value);
        self.buckets[bucket(value)] += 1;
    }

    /// The smallest value; `None` where there is none.
    #[must_use]
    pub const fn min(&self) -> Option<u64> {
        if self.count == 0 { None } else { Some(!self.not_min) }
    }

    /// The value below which the share `q` (0–1) of all values lies: the middle of its bucket, kept
    /// within the exact minimum and maximum. `None` where there is no value.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        let min = self.min()?;
        let total: u64 = self.buckets.iter().map(|&count| u64::from(count)).sum();
        #[allow(clippy::cast_sign_loss, reason = "q and the count are not negative")]
        #[allow(clippy::cast_precision_loss, reason = "a rank beyond 2^53 values is not reached")]
        let rank = (q.clamp(0.0, 1.0) * total as f64) as u64;
        let rank = rank.min(total.saturating_sub(1));
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += u64::from(count);
            if seen > rank {
                let low = lower_bound(index);
                let high = if index + 1 < BUCKETS { lower_bound(index + 1) } else { self.max };
                let middle = low + high.saturating_sub(low) / 2;
                return Some(middle.clamp(min, self.max));
            }
        }
        Some(self.max)
    }

    /// Adds another histogram to this one.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
        self.max = self.max.max(other.max);
        self.not_min = self.not_min.max(other.not_min);
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine = mine.saturating_add(*theirs);
        }
    }
}

impl Default for Hist {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every bucket's lower bound falls into that bucket, the value before it into the one before.
    #[test]
    fn bounds_and_buckets_agree() {
        for index in 1..BUCKETS {
            let low = lower_bound(index);
            assert_eq!(bucket(low), index, "bound {low}");
            assert_eq!(bucket(low - 1), index - 1, "below {low}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    /// Quantiles of a known series lie within a bucket's width; the ends are exact.
    #[test]
    fn quantiles_of_a_known_series() {
        let mut hist = Hist::new();
        for value in 1..=10_000u64 {
            hist.record(value * 1_000);
        }
        let p50 = hist.quantile(0.5).unwrap();
        let p99 = hist.quantile(0.99).unwrap();
        assert!(p50.abs_diff(5_000_000) <= 5_000_000 / 8, "{p50}");
        assert!(p99.abs_diff(9_900_000) <= 9_900_000 / 8, "{p99}");
        assert_eq!((hist.min(), hist.max), (Some(1_000), 10_000_000));
        assert_eq!(Hist::new().quantile(0.5), None);
    }
}
