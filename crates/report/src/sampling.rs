//! What a sample of pages says about all of them: estimated totals, with intervals.
//!
//! Pages are in or out by a hash of their addresses; objects larger than a page always count, so what is live is
//! estimated in two parts. Without sampling none of this is in a report.

mod pages;

use crate::{
    facts::{AllocatorFacts, HeldSum, SiteFacts},
    model::{
        allocator::{Allocator, Estimates, Sampling},
        site::SiteEstimates,
    },
};

/// Adds to an allocator's part of a report what follows from its being a sample of one in `one_in`.
pub(super) fn add(allocator: &mut Allocator, facts: &AllocatorFacts, one_in: u32) {
    if is_of_pages(facts, one_in) {
        allocator.sampling = Some(of_pages(allocator, facts, one_in));
    }
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
    use crate::{Options, Report, samples};

    /// Of a sample of pages: what is live is estimated with an interval, larger objects are counted as they are, and what
    /// cannot be known is null.
    #[test]
    fn report_of_sampled_pages() {
        let report = Report::build(&samples::sampled_pages_snapshot(), &Options::default());
        let shown = &report.targets[0].allocators[0];
        let sampling = shown.sampling.unwrap();
        assert_eq!(sampling.one_in, 8);
        let (census, estimated) = (shown.census.as_ref().unwrap(), sampling.estimated);
        let apart = census.apart.unwrap();
        assert_eq!((census.live_objects, apart.objects, census.unknown_frees), (150, 1, None));
        assert_eq!(estimated.objects_live, Some(8 * 150 + 1));
        assert_eq!(estimated.objects_live_bytes, Some(8 * 15_000 + apart.bytes));
        let [low, high] = estimated.objects_live_bytes_interval.unwrap();
        assert!(low > apart.bytes + 15_000 && low < 8 * 15_000 + apart.bytes && high > low);
        assert_eq!(report.losses["unmatched_frees"], None);
        for finding in &report.targets[0].findings {
            let start = "in a sample of 1 of 8 granules: ";
            assert!(finding.message.starts_with(start), "{finding:?}");
        }
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
}
