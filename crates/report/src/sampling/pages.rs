//! What the pages in a sample say of all pages.
//!
//! A page is in with the same probability, 1/N, and independently of the others, by a hash of its address. What is in no
//! page (an object larger than one) is always counted.

use crate::facts::HeldSum;

/// The 97.5 % quantile of the normal distribution: an interval of 95 % leaves 2.5 % on each side.
const Z: f64 = 1.959_963_984_540_054;

/// Below so many pages the normal distribution, by which intervals go, says too much of what is improbable.
const FEW: f64 = 5.0;

impl HeldSum {
    /// The estimate for all pages: the sum of each page's part, divided by the page's probability of being in.
    ///
    /// D. G. Horvitz, D. J. Thompson, "A generalization of sampling without replacement from a finite universe", Journal
    /// of the American Statistical Association 47 (1952), 663–685.
    pub(crate) fn estimate(self, one_in: u32) -> u64 {
        self.sum.saturating_mul(u64::from(one_in.max(1)))
    }

    /// The 95 % interval of the truth; `None` where no page was seen and what one can hold (`most`) is not known.
    ///
    /// It is a score interval: of each possible truth it is asked whether the estimate lies within 1.96 of its standard
    /// deviations. The variance is N − 1 times the sum of the squares over all pages, and grows with the truth in the same
    /// measure as in the sample. So it is not symmetric, and has a width also where nothing was seen. It never ends below
    /// what was counted, and ends there where only a few pages weigh: one of them may be there by a rare chance.
    #[allow(clippy::cast_sign_loss, reason = "not negative")]
    pub(crate) fn interval(self, one_in: u32, most: Option<u64>) -> Option<[u64; 2]> {
        let estimate = self.estimate(one_in) as f64;
        let per_unit = if self.sum == 0 { most? as f64 } else { self.squares / self.sum as f64 };
        let half_variance = Z * Z * f64::from(one_in.max(1) - 1) * per_unit / 2.0;
        let half = half_variance.mul_add(half_variance, 2.0 * half_variance * estimate).sqrt();
        let middle = estimate + half_variance;
        // As many pages that all hold the same would have these two sums.
        let pages = self.sum as f64 / per_unit;
        let low = if pages < FEW { 0.0 } else { (middle - half).max(0.0) };
        let low = if one_in > 1 { (low.floor() as u64).max(self.sum) } else { self.sum };
        Some([low, ((middle + half).ceil() as u64).max(low)])
    }
}

#[cfg(test)]
mod tests {
    use drainprof_common::sample::has_page;

    use super::*;

    /// How many of `samples` samples of one page in `one_in` have an interval around the truth, and the mean of their
    /// estimates as a share of the truth.
    fn coverage(held: &[u64], one_in: u32, samples: u64) -> (f64, f64) {
        let truth: u64 = held.iter().sum();
        let (mut covered, mut estimates) = (0u32, 0.0);
        for seed in 0..samples {
            let mut seen = HeldSum::default();
            for (page, &held) in held.iter().enumerate() {
                if has_page(seed, 0x7f12_3456_7000 + 4096 * page as u64, one_in) {
                    seen.add(held);
                }
            }
            let [low, high] = seen.interval(one_in, Some(4096)).unwrap();
            covered += u32::from((low..=high).contains(&truth));
            estimates += seen.estimate(one_in) as f64;
        }
        (f64::from(covered) / samples as f64, estimates / samples as f64 / truth as f64)
    }

    /// Pages of one heap, each with up to 4096 bytes: `shape` turns a number from 0 to 1 into the share that is live.
    fn heap(pages: u64, shape: impl Fn(f64) -> f64) -> Vec<u64> {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        (0..pages)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                #[allow(clippy::cast_sign_loss, reason = "not negative")]
                let bytes = (4096.0 * shape((state >> 11) as f64 / (1u64 << 53) as f64)) as u64;
                bytes
            })
            .collect()
    }

    /// Of 1,200 samples of each of several heaps, 93 to 97 % have an interval around the truth, and their estimates are
    /// right on average: full pages, pages that are anything from empty to full, few full ones among many nearly empty.
    #[test]
    fn covers_the_truth() {
        let shapes: [fn(f64) -> f64; 3] = [|_| 1.0, |share| share, |share| share.powi(8)];
        for (number, shape) in shapes.into_iter().enumerate() {
            for one_in in [4, 16, 64] {
                let held = heap(5_000, shape);
                let (covered, mean) = coverage(&held, one_in, 1_200);
                assert!((0.93..=0.97).contains(&covered), "shape {number}, 1/{one_in}: {covered}");
                assert!((0.98..=1.02).contains(&mean), "shape {number}, 1/{one_in}: {mean}");
            }
        }
    }

    /// Where hardly a page is expected in the sample, the interval is wider than it must be, never narrower.
    #[test]
    fn covers_few_pages() {
        for pages in [1, 10, 64, 200, 400] {
            let (covered, _) = coverage(&heap(pages, |_| 0.5), 64, 1_200);
            assert!(covered >= 0.93, "{pages} pages: {covered}");
        }
    }

    /// With one in one nothing is estimated; nothing seen has an upper end if a page's bound is known; an interval
    /// does not end below what was counted.
    #[test]
    fn corners() {
        let mut seen = HeldSum::default();
        assert_eq!(seen.interval(64, None), None);
        let [low, high] = seen.interval(64, Some(4096)).unwrap();
        // Pages of which none is seen with a probability of 2.5 % are 234; the bound is a little wider.
        assert!(low == 0 && (234..250).contains(&(high / 4096)), "{high}");
        seen.add(100);
        seen.add(300);
        assert_eq!((seen.estimate(1), seen.interval(1, None)), (400, Some([400, 400])));
        let [low, high] = seen.interval(64, None).unwrap();
        assert!((400..25_600).contains(&low) && high > 25_600, "{low} {high}");
        assert_eq!(HeldSum { sum: u64::MAX, squares: 1.0 }.estimate(64), u64::MAX);
    }
}
