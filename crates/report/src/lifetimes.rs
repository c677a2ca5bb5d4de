//! How long granules live, per place of opening, and which of the open ones outlive their peers.

use std::{cmp::Reverse, collections::BTreeMap};

use drainprof_common::hist::{BUCKETS, Hist, lower_bound};

use crate::{
    facts::{AllocatorFacts, GranuleFacts},
    known::{Known, hex, seconds, spread},
    model::{
        allocator::{Lifetimes, Overdue, Place},
        series::Bucket,
    },
};

/// A granule is overdue once it is open for so many times the p99 lifetime of its peers.
pub const OVERDUE_FACTOR: u64 = 10;
/// Closes that a place needs before its open granules are judged.
pub const OVERDUE_MIN_CLOSES: u64 = 20;
/// The rule in words, as reports carry it.
pub const OVERDUE_RULE: &str = "open longer than 10 × the p99 lifetime of granules opened at the \
                                same place, at least 20 of which were closed";

/// The lifetimes, the overdue granules, and the rule that decides on a single one. `now_ns` is `None` once the
/// process has ended: it holds nothing any more, so nothing is overdue.
pub(super) fn judge(
    facts: &AllocatorFacts,
    now_ns: Option<u64>,
    known: Known,
) -> (Lifetimes, Overdue, impl Fn(&GranuleFacts) -> bool + use<>) {
    let limits: BTreeMap<u64, u64> = facts
        .lifetimes
        .iter()
        // A page has no purpose that others opened there have fulfilled: the census says what holds it.
        .filter(|(_, hist)| !facts.profile.implicit && hist.count >= OVERDUE_MIN_CLOSES)
        .filter_map(|(&place, hist)| {
            // A p99 of 0 ns is below the clock's step, and would make every open granule overdue.
            Some((place, hist.quantile(0.99)?.max(1).saturating_mul(OVERDUE_FACTOR)))
        })
        .collect();
    let is_overdue = move |granule: &GranuleFacts| {
        !granule.closed
            && granule.opened_ns != 0
            && limits
                .get(&granule.place)
                .zip(now_ns)
                .is_some_and(|(&limit, now_ns)| now_ns.saturating_sub(granule.opened_ns) > limit)
    };
    let open = facts.granules.iter().filter(|granule| !granule.closed);
    let mut per_place: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut overdue = Overdue { granules: 0, bytes: None, rule: OVERDUE_RULE.to_owned() };
    let mut bytes = 0u64;
    for granule in open {
        let (open_now, late) = per_place.entry(granule.place).or_default();
        *open_now += 1;
        if is_overdue(granule) {
            *late += 1;
            overdue.granules += 1;
            bytes = bytes.saturating_add(granule.bytes);
        }
    }
    overdue.bytes = known.bytes.then_some(bytes);
    (lifetimes(facts, &per_place), overdue, is_overdue)
}

fn lifetimes(facts: &AllocatorFacts, open: &BTreeMap<u64, (u64, u64)>) -> Lifetimes {
    let mut all = Hist::new();
    let mut places: BTreeMap<u64, Place> = BTreeMap::new();
    for (&address, hist) in &facts.lifetimes {
        all.merge(hist);
        let place = places.entry(address).or_default();
        let points = spread(hist);
        (place.closed, place.p50, place.p99) = (hist.count, points.p50, points.p99);
    }
    for (&address, &(open_now, overdue)) in open {
        let place = places.entry(address).or_default();
        (place.open_now, place.overdue) = (open_now, overdue);
    }
    let mut places: Vec<Place> =
        places.into_iter().map(|(address, place)| Place { place: hex(address), ..place }).collect();
    places.sort_by_key(|place| Reverse((place.overdue, place.closed, place.open_now)));
    let totals = &facts.totals;
    let closed = totals.closed();
    Lifetimes {
        count: all.count,
        seconds: spread(&all),
        bytes_per_granule: (closed > 0 && totals.closed_bytes > 0)
            .then(|| totals.closed_bytes as f64 / closed as f64),
        places,
        histogram: buckets(&all),
    }
}

/// The buckets with values, each by its upper edge.
pub(super) fn buckets(hist: &Hist) -> Vec<Bucket> {
    let filled = hist.buckets.iter().enumerate().filter(|&(_, &count)| count > 0);
    filled
        .map(|(index, &count)| {
            let largest = if index + 1 < BUCKETS { lower_bound(index + 1) - 1 } else { hist.max };
            Bucket { le_seconds: seconds(largest), count: u64::from(count) }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::samples, *};
    use crate::{Options, Report, facts::Ended};

    const MS: u64 = 1_000_000;

    fn known() -> Known {
        Known { bytes: true, sizes: true, objects: true }
    }

    /// A granule that is open for more than 10 × p99 of its place is overdue; a younger one, one of a
    /// place with too few closes, and one whose open was not seen are not.
    #[test]
    fn overdue_needs_peers_and_age() {
        let now = 10_000 * MS;
        let mut facts = samples::bulk();
        facts.lifetimes.clear();
        facts.lifetimes.insert(0xa, hist(OVERDUE_MIN_CLOSES, MS));
        facts.lifetimes.insert(0xb, hist(OVERDUE_MIN_CLOSES - 1, MS));
        facts.granules = vec![
            open(1, 0xa, now - 11 * MS),
            open(2, 0xa, now - 9 * MS),
            open(3, 0xb, now - 5_000 * MS),
            open(4, 0xa, 0),
            open(5, 0xc, now - 5_000 * MS),
        ];
        let (lifetimes, overdue, is_overdue) = judge(&facts, Some(now), known());
        assert_eq!((overdue.granules, overdue.bytes), (1, Some(4096)));
        assert!(is_overdue(&facts.granules[0]) && !is_overdue(&facts.granules[1]));
        let first = &lifetimes.places[0];
        assert_eq!((first.place.as_deref(), first.open_now, first.overdue), (Some("0xa"), 3, 1));
        assert_eq!(lifetimes.places.iter().map(|place| place.open_now).sum::<u64>(), 5);
    }

    /// What a process held at its end is open, but not overdue, however long ago that was.
    #[test]
    fn nothing_is_overdue_after_the_end() {
        let mut snapshot = samples::bulk_snapshot();
        let counts = |snapshot: &_| {
            let allocator =
                Report::build(snapshot, &Options::default()).targets[0].allocators.remove(0);
            let places: u64 = allocator.lifetimes.places.iter().map(|place| place.overdue).sum();
            let listed = allocator.open_granules.iter().filter(|granule| granule.overdue).count();
            (allocator.granules.open_now, allocator.overdue.granules, places, listed)
        };
        assert_eq!(counts(&snapshot), (2, 1, 1, 1));
        snapshot.targets[0].ended = Some(Ended::exit(Some(Ok(0))));
        assert_eq!(counts(&snapshot), (2, 0, 0, 0));
    }

    /// Buckets are reported by their upper edge, empty ones are left out, and no value is lost.
    #[test]
    fn histogram_keeps_every_value() {
        let mut facts = samples::bulk();
        facts.lifetimes = BTreeMap::from([(1, hist(30, MS)), (2, hist(12, 700 * MS))]);
        let (lifetimes, ..) = judge(&facts, Some(0), known());
        assert_eq!(lifetimes.count, 42);
        assert_eq!(lifetimes.histogram.iter().map(|bucket| bucket.count).sum::<u64>(), 42);
        assert_eq!(lifetimes.histogram.len(), 2);
        assert!(lifetimes.histogram[0].le_seconds >= 0.001);
        assert!(lifetimes.histogram[0].le_seconds < 0.001 * 1.25);
        assert_eq!(lifetimes.seconds.max, Some(0.7));
    }

    fn hist(count: u64, value: u64) -> Hist {
        let mut hist = Hist::new();
        (0..count).for_each(|_| hist.record(value));
        hist
    }

    fn open(id: u64, place: u64, opened_ns: u64) -> GranuleFacts {
        GranuleFacts { id, place, opened_ns, before: opened_ns == 0, ..samples::granule(id) }
    }
}
