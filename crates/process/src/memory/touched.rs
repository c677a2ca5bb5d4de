//! The join of touched pages and granules: which of the memory that was touched lies in granules that are pinned now.
//!
//! A page belongs to granules byte by byte: what of it lies in a granule's range is the granule's, the rest is
//! in none. Whatever stood at an address when it was touched, what counts is who holds it back now: an address that is
//! used again brings no new page.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_common::growth::{PAGE, REGION, REGION_WORDS, RegionPages};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a granule is at this moment.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum GranuleState {
    /// Open.
    Open,
    /// Closed, and held back by objects.
    Pinned,
    /// Closed and empty: the allocator can use it again.
    Drained,
}

/// A granule that is a range of addresses, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GranuleRange {
    /// Which granule: parts of one count as one.
    pub granule: u64,
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its state.
    pub state: GranuleState,
    /// Which allocator of the target, for the caller.
    pub allocator: usize,
    /// Where it was opened; 0: not known.
    pub place: u64,
}

/// What was touched in granules of one allocator, state and place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Bytes of pages that were touched.
    pub bytes: u64,
    /// Granules of which some were.
    pub granules: u64,
}

/// Allocator, state, place of opening.
pub type TouchedKey = (usize, GranuleState, u64);

/// What was touched of a target's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TouchedMemory {
    /// Bytes of all pages that were touched.
    pub bytes: u64,
    /// Those that lie in granules.
    pub granules: BTreeMap<TouchedKey, Touched>,
}

/// Joins the pages of regions (by number) with granules.
#[must_use]
pub fn join(regions: &BTreeMap<u64, RegionPages>, granules: &[GranuleRange]) -> TouchedMemory {
    let pages: u64 = regions
        .values()
        .flat_map(|region| region.words)
        .map(|word| u64::from(word.count_ones()))
        .sum();
    let mut touched = TouchedMemory { bytes: pages * PAGE, granules: BTreeMap::new() };
    let mut granules: Vec<&GranuleRange> =
        granules.iter().filter(|granule| granule.bytes > 0).collect();
    // Where ranges overlap (one granule inside another) a byte is the first one's only.
    granules.sort_by_key(|granule| (granule.start, granule.bytes));
    let mut from = 0;
    let mut counted = BTreeSet::new();
    for granule in granules {
        let end = granule.start.saturating_add(granule.bytes);
        let bytes = touched_within(regions, granule.start.max(from), end);
        from = from.max(end);
        if bytes > 0 {
            let key = (granule.allocator, granule.state, granule.place);
            let sum = touched.granules.entry(key).or_default();
            sum.bytes = sum.bytes.saturating_add(bytes);
            sum.granules += u64::from(counted.insert((key, granule.granule)));
        }
    }
    touched
}

/// Bytes of touched pages in a range. The work follows the regions that there are, not the range's length.
fn touched_within(regions: &BTreeMap<u64, RegionPages>, from: u64, to: u64) -> u64 {
    if from >= to {
        return 0;
    }
    let mut bytes = 0;
    for (number, pages) in regions.range(from / REGION..=(to - 1) / REGION) {
        let begin = number * REGION;
        let first = from.max(begin) - begin;
        let last = (to - begin).min(REGION);
        for page in first / PAGE..last.div_ceil(PAGE) {
            let word = pages.words[(page / 64) as usize & (REGION_WORDS - 1)];
            if word >> (page % 64) & 1 != 0 {
                bytes += last.min((page + 1) * PAGE) - first.max(page * PAGE);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(addresses: &[u64]) -> BTreeMap<u64, RegionPages> {
        let mut regions: BTreeMap<u64, RegionPages> = BTreeMap::new();
        for address in addresses {
            let page = address % REGION / PAGE;
            regions.entry(address / REGION).or_default().words[page as usize / 64] |=
                1 << (page % 64);
        }
        regions
    }

    fn granule(start: u64, bytes: u64, state: GranuleState) -> GranuleRange {
        GranuleRange { granule: start, start, bytes, state, allocator: 0, place: 7 }
    }

    /// Each state has what was touched in its granules, and the rest is in none.
    #[test]
    fn by_state() {
        let base = 4 * REGION;
        let touched =
            pages(&[base, base + PAGE, base + 2 * PAGE, base + REGION, base + 9 * REGION]);
        let granules = [
            granule(base, PAGE, GranuleState::Pinned),
            granule(base + PAGE, PAGE, GranuleState::Open),
            granule(base + REGION - PAGE, 2 * PAGE, GranuleState::Drained),
            granule(base + 20 * REGION, PAGE, GranuleState::Pinned),
        ];
        let joined = join(&touched, &granules);
        assert_eq!(joined.bytes, 5 * PAGE);
        let one = Touched { bytes: PAGE, granules: 1 };
        let expected = [GranuleState::Open, GranuleState::Pinned, GranuleState::Drained]
            .map(|state| ((0, state, 7), one));
        assert_eq!(joined.granules, BTreeMap::from(expected));
    }

    /// A page that several granules share is divided, and none is counted twice where they overlap.
    #[test]
    fn parts_of_pages() {
        let base = 8 * REGION;
        let touched = pages(&[base]);
        let parts = [
            granule(base + 256, 1024, GranuleState::Pinned),
            granule(base + 1280, 256, GranuleState::Pinned),
            granule(base + 512, 256, GranuleState::Open),
            granule(base - 100, 200, GranuleState::Drained),
        ];
        let joined = join(&touched, &parts);
        let bytes = |state| joined.granules.get(&(0, state, 7)).map_or(0, |own| own.bytes);
        assert_eq!(bytes(GranuleState::Pinned), 1280);
        assert_eq!(bytes(GranuleState::Open), 0, "inside another");
        assert_eq!(bytes(GranuleState::Drained), 100);
    }

    /// A granule of several pages is one granule.
    #[test]
    fn granules_of_pages() {
        let base = 3 * REGION;
        let touched = pages(&[base, base + 4 * PAGE]);
        let part = |page| GranuleRange {
            granule: 1,
            ..granule(base + page * PAGE, PAGE, GranuleState::Pinned)
        };
        let joined = join(&touched, &[part(0), part(2), part(4)]);
        let expected = Touched { bytes: 2 * PAGE, granules: 1 };
        assert_eq!(joined.granules, BTreeMap::from([((0, GranuleState::Pinned, 7), expected)]));
    }

    /// Ids that are no addresses, and ranges without sense, meet no page.
    #[test]
    fn no_addresses() {
        let touched = pages(&[REGION * 1000]);
        let odd = [
            granule(3, PAGE, GranuleState::Open),
            granule(u64::MAX, u64::MAX, GranuleState::Open),
            granule(REGION * 1000, 0, GranuleState::Open),
        ];
        assert_eq!(join(&touched, &odd).granules, BTreeMap::new());
    }
}
