//! The census: how full the open granules of a `slab` allocator are now.
//!
//! Such an allocator closes a granule only once it is empty, so that every close is drainable and says
//! nothing; what matters is what keeps granules open. It is another quantity than DSR. What holds them is reported
//! with the sites.

use std::collections::BTreeMap;

use crate::{
    facts::{AllocatorFacts, GranuleFacts},
    known::Known,
    model::census::{Apart, Census, Fill, Occupancy},
};

/// Upper bounds of the classes of [`Census::fill`], in percent.
const FILLS: [u64; 6] = [10, 25, 50, 75, 90, 100];

/// How full every open granule of the snapshot is.
pub(super) fn census(facts: &AllocatorFacts, known: Known) -> Census {
    let mut census = Census {
        bytes_open: known.bytes.then_some(0),
        live_bytes: known.sizes.then_some(0),
        unknown_live_bytes: known.sizes.then_some(0),
        ..Census::default()
    };
    let mut classes: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    let mut fill = FILLS.map(|percent_to| Fill { percent_to, ..EMPTY });
    for granule in facts.granules.iter().filter(|granule| !granule.closed) {
        census.granules_open += 1;
        add(&mut census.bytes_open, granule.bytes);
        if granule.before {
            // It may hold objects from before the attach, which were not counted.
            census.unknown += 1;
            census.unknown_live_objects += granule.live;
            add(&mut census.unknown_live_bytes, granule.live_bytes);
            continue;
        }
        census.drainable_now += u64::from(granule.live == 0);
        census.live_objects += granule.live;
        add(&mut census.live_bytes, granule.live_bytes);
        *classes.entry(class(granule.live)).or_default() += 1;
        if let Some(class) = fill.get_mut(fill_of(granule)) {
            class.granules += 1;
            class.live_bytes = class.live_bytes.saturating_add(granule.live_bytes);
        }
    }
    census.occupancy = classes
        .into_iter()
        .map(|((live_from, live_to), granules)| Occupancy { live_from, live_to, granules })
        .collect();
    census.fill = (known.bytes && known.sizes).then(|| reported(fill));
    compact(&mut census, facts.profile.granule_bytes);
    if facts.profile.implicit {
        census.apart = Some(apart(facts));
        census.unknown_frees = Some(facts.totals.unmatched_frees);
    }
    census
}

const EMPTY: Fill = Fill { percent_from: 0, percent_to: 0, granules: 0, live_bytes: 0 };

fn add(sum: &mut Option<u64>, bytes: u64) {
    if let Some(sum) = sum {
        *sum = sum.saturating_add(bytes);
    }
}

/// The classes that are not empty, each with the bound below it.
fn reported(fill: [Fill; FILLS.len()]) -> Vec<Fill> {
    let below = std::iter::once(0).chain(FILLS);
    fill.into_iter()
        .zip(below)
        .map(|(class, percent_from)| Fill { percent_from, ..class })
        .filter(|class| class.granules > 0)
        .collect()
}

/// Which class a granule is of. An object that begins in a granule and ends in the next counts in the first, which
/// can so hold more than its own bytes: it is full.
fn fill_of(granule: &GranuleFacts) -> usize {
    let (live, bytes) = (u128::from(granule.live_bytes), u128::from(granule.bytes));
    FILLS
        .iter()
        .position(|&percent| live * 100 <= bytes * u128::from(percent))
        .unwrap_or(FILLS.len() - 1)
}

/// How many granules less would do for what is live in those that are known.
fn compact(census: &mut Census, granule_bytes: Option<u64>) {
    let (Some(bytes), Some(live)) = (granule_bytes, census.live_bytes) else { return };
    let needed = live.div_ceil(bytes.max(1));
    let free = (census.granules_open - census.unknown).saturating_sub(needed);
    census.compactable_granules = Some(free);
    census.compactable_bytes = Some(free.saturating_mul(bytes));
}

/// What is live in no granule.
fn apart(facts: &AllocatorFacts) -> Apart {
    let totals = &facts.totals;
    let gone = totals.gone() + facts.left_objects;
    let gone_bytes = totals.freed_bytes.saturating_add(facts.left_object_bytes);
    let granules = || facts.granules.iter().filter(|granule| !granule.closed);
    let inside = granules().fold(0, |sum: u64, granule| sum.saturating_add(granule.live));
    let inside_bytes =
        granules().fold(0, |sum: u64, granule| sum.saturating_add(granule.live_bytes));
    Apart {
        objects: totals.allocated.saturating_sub(gone.saturating_add(inside)),
        bytes: totals.allocated_bytes.saturating_sub(gone_bytes.saturating_add(inside_bytes)),
    }
}

/// Classes double: 0, 1, 2–3, 4–7, …
fn class(live: u64) -> (u64, u64) {
    match live.checked_ilog2() {
        None => (0, 0),
        Some(log) => (1 << log, (1u64 << log) - 1 + (1 << log)),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::samples, *};

    /// The classes cover every count once, up to the largest.
    #[test]
    fn classes_are_gapless() {
        assert_eq!(class(0), (0, 0));
        assert_eq!(class(1), (1, 1));
        assert_eq!(class(3), (2, 3));
        assert_eq!(class(4), (4, 7));
        assert_eq!(class(u64::MAX), (1 << 63, u64::MAX));
        for live in 1..1000 {
            let (from, to) = class(live);
            assert!(from <= live && live <= to);
        }
    }

    /// Empty granules are drainable now; those from before the attach are unknown, even if nothing was
    /// counted in them; closed ones are not examined.
    #[test]
    fn unknown_is_not_empty() {
        let mut facts = samples::slab();
        facts.granules = vec![
            GranuleFacts { live: 0, ..samples::granule(1) },
            GranuleFacts { live: 5, ..samples::granule(2) },
            GranuleFacts { live: 0, before: true, ..samples::granule(3) },
            GranuleFacts { closed: true, ..samples::granule(4) },
        ];
        let known = Known { bytes: true, sizes: true, objects: true };
        let census = census(&facts, known);
        assert_eq!((census.granules_open, census.drainable_now, census.unknown), (3, 1, 1));
        assert_eq!((census.live_objects, census.bytes_open), (5, Some(3 * 4096)));
        let four_to_seven = Occupancy { live_from: 4, live_to: 7, granules: 1 };
        assert!(census.occupancy.contains(&four_to_seven));
    }

    /// Classes by bytes: their bounds belong to the class below, and what is more than full is full.
    #[test]
    fn fill_has_gapless_classes() {
        let of = |live_bytes| fill_of(&GranuleFacts { live_bytes, ..samples::granule(1) });
        assert_eq!([0, 409, 410, 1024, 1025, 2048].map(of), [0, 0, 1, 1, 2, 2]);
        assert_eq!([3072, 3686, 3687, 4096, 9999].map(of), [3, 4, 5, 5, 5]);
        let none = GranuleFacts { bytes: 0, live_bytes: 5, ..samples::granule(1) };
        assert_eq!(fill_of(&none), FILLS.len() - 1);
    }

    /// What would come free is what the live bytes of known granules do not need; what is live in no granule stands
    /// apart, and so do the objects that were seen in granules of which not all is known.
    #[test]
    fn what_compaction_would_free() {
        let granule =
            |id, live, live_bytes| GranuleFacts { live, live_bytes, ..samples::granule(id) };
        let mut facts = samples::pages();
        facts.granules = vec![
            granule(1, 1, 100),
            granule(2, 2, 4000),
            granule(3, 1, 100),
            GranuleFacts { before: true, ..granule(4, 3, 50) },
        ];
        facts.totals.allocated = 20;
        facts.totals.freed = 12;
        facts.totals.allocated_bytes = 100_000;
        facts.totals.freed_bytes = 5_750;
        facts.totals.unmatched_frees = 9;
        let known = Known { bytes: true, sizes: true, objects: true };
        let census = census(&facts, known);
        assert_eq!((census.live_bytes, census.granules_open), (Some(4200), 4));
        assert_eq!((census.compactable_granules, census.compactable_bytes), (Some(1), Some(4096)));
        assert_eq!((census.unknown_live_objects, census.unknown_live_bytes), (3, Some(50)));
        assert_eq!(census.apart, Some(Apart { objects: 1, bytes: 90_000 }));
        assert_eq!(census.unknown_frees, Some(9));
        let fill = census.fill.expect("both are known");
        let two = Fill { percent_from: 0, percent_to: 10, granules: 2, live_bytes: 200 };
        assert_eq!((fill.len(), fill[0]), (2, two));
    }
}
