//! Which pages are in a sample.
//!
//! A page of a malloc has no event of its own at which one could draw for it, and what was drawn would have to be
//! remembered for all the pages that are left out. So a page is in or out by a hash of its address: the alloc and the
//! free of one object always agree, and a page that empties and fills again keeps its answer.

/// Whether a page is in a sample of one page in `one_in`; with 0 or 1, every page is. `seed` separates the heaps, and
/// the observations, whose pages are to be chosen independently of one another.
///
/// All bits of the address count alike, so that neither its alignment nor a pattern of the allocator's decides.
#[inline(always)]
#[must_use]
pub const fn has_page(seed: u64, address: u64, one_in: u32) -> bool {
    ((mixed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ address) >> 32) * one_in as u64) >> 32 == 0
}

/// The finisher of `SplitMix64` (G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators",
/// OOPSLA 2014): each bit of the input changes each bit of the result in half of all cases.
#[inline(always)]
const fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages that lie side by side, as a heap has them.
    fn pages(first: u64, bytes: u64, count: u64) -> impl Iterator<Item = u64> {
        (0..count).map(move |number| first + number * bytes)
    }

    /// Whether a count is within five standard deviations of what independent draws come to.
    fn is_near(count: u64, draws: u64, share: f64) -> bool {
        let expected = draws as f64 * share;
        (count as f64 - expected).abs() <= 5.0 * (expected * (1.0 - share)).sqrt()
    }

    /// The share is one in so many, whatever pages are aligned to, wherever they lie, and for every seed; also among
    /// each eight pages in a row, which an allocator may use alike.
    #[test]
    fn is_uniform() {
        let heaps = [0u64, 0x5555_5555_6000, 0x7f12_3456_7000, 0xffff_8000_0000_0000];
        for one_in in [2u32, 3, 16, 64, 1000] {
            let share = 1.0 / f64::from(one_in);
            for bytes in [1u64, 64, 4096, 8192, 1 << 21] {
                for (seed, first) in heaps.into_iter().enumerate() {
                    let is_in = |&page: &u64| has_page(seed as u64, page, one_in);
                    let count = pages(first, bytes, 40_000).filter(is_in).count() as u64;
                    assert!(is_near(count, 40_000, share), "1/{one_in} of {bytes}: {count}");
                }
            }
            let mut columns = [0u64; 8];
            for (number, page) in pages(0x7f00_0000_0000, 4096, 80_000).enumerate() {
                columns[number % 8] += u64::from(has_page(7, page, one_in));
            }
            for count in columns {
                assert!(is_near(count, 10_000, share), "1/{one_in}: {columns:?}");
            }
        }
    }

    /// Two neighbours, and the same page under two seeds, are in together no more often than by chance.
    #[test]
    fn is_independent() {
        let (mut neighbours, mut seeds) = (0, 0);
        for page in pages(0x5555_5555_6000, 4096, 100_000) {
            let is_in = has_page(1, page, 8);
            neighbours += u64::from(is_in && has_page(1, page + 4096, 8));
            seeds += u64::from(is_in && has_page(2, page, 8));
        }
        assert!(is_near(neighbours, 100_000, 1.0 / 64.0), "{neighbours}");
        assert!(is_near(seeds, 100_000, 1.0 / 64.0), "{seeds}");
    }

    /// One of one, or of none, is every page; and the answer is the same each time.
    #[test]
    fn all_are_in() {
        for page in pages(0, 4096, 1_000) {
            assert!(has_page(page, page, 1) && has_page(page, page, 0));
            assert_eq!(has_page(3, page, 5), has_page(3, page, 5));
        }
    }
}
