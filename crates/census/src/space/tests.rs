use proptest::prelude::*;

use super::*;
use crate::testing::{Pieces, anonymous};

proptest! {
    /// What lies close together is read as what does not.
    #[test]
    fn near(
        mut places in prop::collection::vec(0..300_000u64, 0..40),
        close in prop::collection::vec(0..5_000u64, 0..40),
        absent in prop::collection::vec(0..76u64, 0..4),
    ) {
        let at = 0x7f00_0000_0000;
        places.extend(close);
        places.sort_unstable();
        let places: Vec<u64> = places.into_iter().map(|place| at + place).collect();
        let mut memory = Pieces::default();
        memory.pieces.push((at, (0..70 * PAGE).map(|byte| (byte % 251) as u8).collect()));
        memory.absent.extend(absent.into_iter().map(|page| at + page * PAGE));
        let space = Space::new(vec![anonymous(at, 70 * PAGE)], &memory);
        prop_assert_eq!(space.read_near::<48>(&places), space.read_each::<48>(&places));
    }
}

/// What is present and cannot be read costs about as much as what can.
#[test]
fn unreadable() {
    let (at, count) = (0x7f00_0000_0000, 4096);
    let memory = Pieces::default();
    let space = Space::new(vec![anonymous(at, count * 64)], &memory);
    let places: Vec<u64> = (0..count).map(|place| at + place * 64).collect();
    assert!(space.read_each::<64>(&places).iter().all(Option::is_none));
    assert!(space.read_bytes() <= 2 * count * 64, "{}", space.read_bytes());
}

/// What is larger than any heap, or empty, is not read.
#[test]
fn reservations() {
    let memory = Pieces::default();
    let empty = Range { rss: 0, ..anonymous(1 << 20, PAGE) };
    let heap = Range { kind: RangeKind::Heap, ..anonymous(1 << 40, MAX_MAPPING_BYTES + PAGE) };
    let many = (1..8).map(|at| anonymous(at << 42, MAX_MAPPING_BYTES));
    let ranges = [empty, heap, anonymous(2 << 20, PAGE)].into_iter().chain(many);
    let space = Space::new(ranges.collect(), &memory);
    assert_eq!(space.anonymous().count(), 1 + 3);
    assert!(space.ranges.iter().all(|range| range.kind == RangeKind::Anonymous));
    assert!(space.note().is_some_and(|note| note.starts_with("1280 GiB")), "{:?}", space.note());
}

/// Where holes cost time, what is mapped is read as far as it is resident, and a little more.
#[test]
fn slow_holes() {
    let memory = Pieces { slow: true, ..Pieces::default() };
    let sparse = |at: u64, bytes, rss| Range { rss, ..anonymous(at << 40, bytes) };
    let ranges = vec![
        sparse(1, 160 << 30, 20 << 30),
        sparse(2, 160 << 30, 19 << 30),
        sparse(3, 3 << 30, PAGE),
        sparse(4, 3 << 30, PAGE),
        sparse(5, 1 << 30, PAGE),
    ];
    let space = Space::new(ranges, &memory);
    let starts: Vec<u64> = space.anonymous().map(|range| range.start >> 40).collect();
    assert_eq!(starts, [1, 3, 5]);
    assert!(space.note().is_some_and(|note| note.starts_with("163 GiB")), "{:?}", space.note());
}
