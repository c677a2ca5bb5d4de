//! What a sample of the granules says about all of them: an interval for the DSR, and estimated totals.
//!
//! A granule is in or out as a whole, so that the DSR of the sample is an unbiased estimate. Pages, which have none, are
//! in or out by a hash of their addresses; objects larger than a page are always counted, so that what is live is
//! estimated in two parts. Without sampling nothing is estimated, and none of this is in a report.

mod pages;

use super::{Allocator, Estimates, Sampling, SiteEstimates};
use crate::facts::{AllocatorFacts, HeldSum, SiteFacts};

/// The 97.5 % quantile of the normal distribution: an interval of 95 % leaves 2.5 % on each side.
const Z: f64 = 1.959_963_984_540_054;

/// The 95 % score interval of a share, after `hits` of `all`; `None` where there was nothing to count.
///
/// E. B. Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the
/// American Statistical Association 22 (1927), 209–212. It is within 0 to 1 and has a width also where
/// all or none were hits.
#[must_use]
pub fn wilson(hits: u64, all: u64) -> Option<[f64; 2]> {
    if all == 0 || hits > all {
        return None;
    }
    let (n, share) = (all as f64, hits as f64 / all as f64);
    let zz = Z * Z;
    let middle = (share + zz / (2.0 * n)) / (1.0 + zz / n);
    let spread = share.mul_add(1.0 - share, zz / (4.0 * n)) / n;
    let half = Z * spread.sqrt() / (1.0 + zz / n);
    // Where all or none were hits, an end is that share itself, but for rounding.
    let low = if hits == 0 { 0.0 } else { (middle - half).clamp(0.0, share) };
    let high = if hits == all { 1.0 } else { (middle + half).clamp(share, 1.0) };
    Some([low, high])
}

/// Adds to an allocator's part of a report what follows from its being a sample of one in `one_in`.
pub(super) fn add(allocator: &mut Allocator, facts: &AllocatorFacts, one_in: u32) {
    if is_of_pages(facts, one_in) {
        allocator.sampling = Some(of_pages(allocator, facts, one_in));
        return;
    }
    let granules = allocator.granules;
    let decided = granules.decided();
    allocator.dsr_interval = allocator.dsr.and_then(|_| wilson(granules.drainable, decided));
    let all = |count: u64| count.saturating_mul(u64::from(one_in));
    allocator.sampling = Some(Sampling {
        one_in,
        granules_out: Some(facts.sampled_out),
        estimated: Estimates {
            granules_closed: all(granules.closed),
            granules_pinned: all(granules.pinned),
            granules_retained: allocator.retention.granules.map(all),
            retained_bytes: allocator.retention.bytes.map(all),
            objects_allocated: allocator.objects.map(|objects| all(objects.allocated)),
            objects_live: allocator.objects.map(|objects| all(objects.live)),
            objects_live_bytes: allocator.objects.and_then(|objects| objects.live_bytes.map(all)),
            ..Estimates::default()
        },
    });
}

/// Whether pages are sampled, by their addresses.
pub(super) fn is_of_pages(facts: &AllocatorFacts, one_in: u32) -> bool {
    facts.profile.implicit && one_in > 1
}

fn of_pages(allocator: &Allocator, facts: &AllocatorFacts, one_in: u32) -> Sampling {
    let (mut objects, mut bytes) = (HeldSum::default(), HeldSum::default());
    for page in facts.granules.iter().filter(|page| !page.closed) {
        objects.add(page.live);
        bytes.add(page.live_bytes);
    }
    let apart = allocator.census.as_ref().and_then(|census| census.apart).unwrap_or_default();
    let known = allocator.objects.is_some_and(|objects| objects.live_bytes.is_some());
    let shift = |interval: [u64; 2], sure: u64| interval.map(|end| end.saturating_add(sure));
    let all = |count: u64| count.saturating_mul(u64::from(one_in));
    let is_counted = allocator.objects.is_some();
    Sampling {
        one_in,
        granules_out: None,
        estimated: Estimates {
            granules_closed: all(allocator.granules.closed),
            objects_live: is_counted
                .then(|| objects.estimate(one_in).saturating_add(apart.objects)),
            objects_live_interval: objects
                .interval(one_in, None)
                .filter(|_| is_counted)
                .map(|interval| shift(interval, apart.objects)),
            objects_live_bytes: known.then(|| bytes.estimate(one_in).saturating_add(apart.bytes)),
            objects_live_bytes_interval: bytes
                .interval(one_in, facts.profile.granule_bytes)
                .filter(|_| known)
                .map(|interval| shift(interval, apart.bytes)),
            ..Estimates::default()
        },
    }
}

/// What is live of a site, of which `parts` is all that is known; `None` unless pages are sampled.
pub(super) fn of_site(
    parts: &[&SiteFacts],
    facts: &AllocatorFacts,
    one_in: u32,
    sizes: bool,
) -> Option<SiteEstimates> {
    if !is_of_pages(facts, one_in) {
        return None;
    }
    let (mut objects, mut bytes) = (HeldSum::default(), HeldSum::default());
    let (mut live, mut live_bytes) = (0u64, 0u64);
    for part in parts {
        objects.join(part.held_objects);
        bytes.join(part.held_bytes);
        live = live.saturating_add(part.live?);
        live_bytes = live_bytes.saturating_add(part.live_bytes);
    }
    // What is in no page is larger than one, and counted to the last object.
    let apart = live_bytes.saturating_sub(bytes.sum);
    let interval = bytes.interval(one_in, None);
    Some(SiteEstimates {
        live: objects.estimate(one_in).saturating_add(live.saturating_sub(objects.sum)),
        live_bytes: sizes.then(|| bytes.estimate(one_in).saturating_add(apart)),
        live_bytes_interval: interval
            .filter(|_| sizes)
            .map(|interval| interval.map(|end| end.saturating_add(apart))),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Options, Report, samples};

    /// Counts are the sample's and stay as they are; estimates stand beside them; what cannot be known is
    /// null; findings say that they are about a sample.
    #[test]
    fn report_of_a_sample() {
        let all = Report::build(&samples::drain_snapshot(), &Options::default());
        let report = Report::build(&samples::sampled_snapshot(), &Options::default());
        let (exact, shown) = (&all.targets[0].allocators[0], &report.targets[0].allocators[0]);
        assert_eq!((exact.dsr_interval, exact.sampling), (None, None));
        assert_eq!((shown.granules, shown.dsr), (exact.granules, exact.dsr));
        assert_eq!(shown.dsr_interval, wilson(7_526, 10_000));
        let sampling = shown.sampling.unwrap();
        assert_eq!((sampling.one_in, sampling.granules_out), (16, Some(150_127)));
        assert_eq!(sampling.estimated.granules_pinned, 16 * 2_474);
        assert_eq!(sampling.estimated.retained_bytes, Some(16 * 10_133_504));
        assert_eq!(report.losses["unmatched_frees"], None);
        assert_eq!(all.losses["unmatched_frees"], Some(0));
        assert!(report.complete);
        assert!(!report.targets[0].findings.is_empty());
        for finding in &report.targets[0].findings {
            assert!(
                finding.message.starts_with("in a sample of 1 of 16 granules: "),
                "{finding:?}"
            );
        }
    }

    /// Of a sample of pages: what is live is estimated with an interval, larger objects are counted as they are, and what
    /// cannot be known is null.
    #[test]
    fn report_of_sampled_pages() {
        let report = Report::build(&samples::sampled_pages_snapshot(), &Options::default());
        let shown = &report.targets[0].allocators[0];
        let sampling = shown.sampling.unwrap();
        assert_eq!((sampling.one_in, sampling.granules_out), (8, None));
        let (census, estimated) = (shown.census.as_ref().unwrap(), sampling.estimated);
        let apart = census.apart.unwrap();
        assert_eq!((census.live_objects, apart.objects, census.unknown_frees), (150, 1, None));
        assert_eq!(estimated.objects_live, Some(8 * 150 + 1));
        assert_eq!(estimated.objects_live_bytes, Some(8 * 15_000 + apart.bytes));
        let [low, high] = estimated.objects_live_bytes_interval.unwrap();
        assert!(low > apart.bytes + 15_000 && low < 8 * 15_000 + apart.bytes && high > low);
        assert_eq!((estimated.objects_allocated, estimated.granules_retained), (None, None));
        assert_eq!((shown.dsr_interval, report.losses["unmatched_frees"]), (None, None));
        // The path with the most bytes first, and the sum of all is the allocator's but for what is apart.
        let sites = shown.sites.as_ref().unwrap();
        let bytes: Vec<u64> =
            sites.iter().map(|site| site.estimated.unwrap().live_bytes.unwrap()).collect();
        assert_eq!(bytes, [8 * 10_000, 8 * 5_000]);
        assert!(sites.iter().all(|site| site.estimated.unwrap().live_bytes_interval.is_some()));
        let whole = Report::build(&samples::pages_snapshot(), &Options::default());
        let allocator = &whole.targets[0].allocators[0];
        assert!(allocator.sites.iter().flatten().all(|site| site.estimated.is_none()));
    }

    /// At level `boundary`, and without a decided close, there is nothing to estimate: null.
    #[test]
    fn nothing_is_estimated_from_nothing() {
        let sampled = |snapshot| crate::facts::Snapshot { sample: 4, ..snapshot };
        let report = Report::build(&sampled(samples::boundary_snapshot()), &Options::default());
        let estimated = report.targets[0].allocators[0].sampling.unwrap().estimated;
        assert_eq!((estimated.granules_retained, estimated.objects_live), (None, None));
        for snapshot in [samples::undecided_snapshot(), samples::bulk_snapshot()] {
            let report = Report::build(&sampled(snapshot), &Options::default());
            assert_eq!(report.targets[0].allocators[0].dsr_interval, None);
        }
    }

    /// Values of a published table: 81 of 263 (Newcombe 1998, method 3), and both corners of 0 and all.
    #[test]
    fn known_values() {
        let near = |found: Option<[f64; 2]>, low: f64, high: f64| {
            let [a, b] = found.unwrap();
            assert!((a - low).abs() < 5e-5 && (b - high).abs() < 5e-5, "{a} {b}");
        };
        near(wilson(81, 263), 0.2553, 0.3662);
        near(wilson(15, 148), 0.0624, 0.1605);
        near(wilson(0, 20), 0.0, 0.1611);
        near(wilson(1, 29), 0.0061, 0.1718);
        near(wilson(20, 20), 1.0 - 0.1611, 1.0);
        assert_eq!(wilson(0, 0), None);
        assert_eq!(wilson(3, 2), None, "no share");
    }

    /// A repeatable source of numbers from 0 to 1.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Over shares and sizes of samples as they occur, the interval covers the truth in at least 94 % of
    /// simulated samples.
    #[test]
    fn covers_independent_closes() {
        let mut random = Random(0x2545_f491_4f6c_dd1d);
        let (mut covered, mut trials) = (0u32, 0u32);
        for share in [0.02, 0.1, 0.25, 0.5, 0.7526, 0.9, 0.98] {
            for size in [40u64, 200, 1_000] {
                for _ in 0..400 {
                    let hits = (0..size).filter(|_| random.next() < share).count() as u64;
                    let [low, high] = wilson(hits, size).unwrap();
                    covered += u32::from((low..=high).contains(&share));
                    trials += 1;
                }
            }
        }
        let coverage = f64::from(covered) / f64::from(trials);
        // Not 1 either: an interval that is too wide says nothing.
        assert!((0.94..0.97).contains(&coverage), "{coverage}");
    }

    /// The closes of one process, of which each is in the sample by chance: the interval covers the DSR
    /// of all of them in at least 94 % of the samples.
    #[test]
    fn covers_a_process() {
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let (mut covered, mut trials) = (0u32, 0u32);
        for one_in in [2.0, 4.0, 16.0] {
            for drainable in [4_000u64, 3_010, 3_990] {
                for _ in 0..200 {
                    let (mut hits, mut all) = (0, 0);
                    for close in 0..4_000 {
                        if random.next() * one_in < 1.0 {
                            all += 1;
                            hits += u64::from(close < drainable);
                        }
                    }
                    let [low, high] = wilson(hits, all).unwrap();
                    covered += u32::from((low..=high).contains(&(drainable as f64 / 4_000.0)));
                    trials += 1;
                }
            }
        }
        assert!(f64::from(covered) / f64::from(trials) >= 0.94, "{covered} of {trials}");
    }

    proptest! {
        /// Whatever was counted, the interval is one, lies within 0 to 1, contains the share that was seen,
        /// and is narrower after more of the same.
        #[test]
        fn is_an_interval(all in 1u64..1 << 40, part in 0.0..=1.0f64) {
            #[allow(clippy::cast_sign_loss, reason = "not negative")]
            let hits = ((all as f64 * part) as u64).min(all);
            let [low, high] = wilson(hits, all).unwrap();
            let share = hits as f64 / all as f64;
            prop_assert!((0.0..=1.0).contains(&low) && (0.0..=1.0).contains(&high));
            prop_assert!(low <= share && share <= high && low < high, "{low} {share} {high}");
            let [lower, higher] = wilson(4 * hits, 4 * all).unwrap();
            prop_assert!(higher - lower < high - low);
        }
    }
}
