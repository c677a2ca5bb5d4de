//! The census: how full the open granules of a `slab` allocator are now.
//!
//! Such an allocator closes a granule only once it is empty, so that every close is drainable and says
//! nothing; what matters is what keeps granules open.

use std::collections::BTreeMap;

use super::{Census, Occupancy, build::Known};
use crate::account::AllocatorFacts;

/// Looks at every open granule of the snapshot.
pub(super) fn census(facts: &AllocatorFacts, known: Known) -> Census {
    let mut census = Census { bytes_open: known.bytes.then_some(0), ..Census::default() };
    let mut classes: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for granule in facts.granules.iter().filter(|granule| !granule.closed) {
        census.granules_open += 1;
        if let Some(bytes) = &mut census.bytes_open {
            *bytes = bytes.saturating_add(granule.bytes);
        }
        if granule.before {
            // It may hold objects from before the attach that nobody counted.
            census.unknown += 1;
            continue;
        }
        census.drainable_now += u64::from(granule.live == 0);
        census.live_objects += granule.live;
        *classes.entry(class(granule.live)).or_default() += 1;
    }
    census.occupancy = classes
        .into_iter()
        .map(|((live_from, live_to), granules)| Occupancy { live_from, live_to, granules })
        .collect();
    census
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
    use super::super::samples;
    use super::*;
    use crate::account::GranuleFacts;

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
    /// counted in them; closed ones are not looked at.
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
}
