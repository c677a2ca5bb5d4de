use proptest::prelude::*;

use super::*;

fn call(kind: MapKind, path: u32, address: u64, length: u64, result: u64) -> MapRecord {
    MapRecord { kind: kind as u32, tid: 1, path, address, length, result, ..MapRecord::default() }
}

fn map(ledger: &mut MappingLedger, path: u32, at: u64, length: u64) {
    let record = MapRecord { flags: ANONYMOUS, ..call(MapKind::Mmap, path, 0, length, at) };
    ledger.add(&record);
}

fn unmap(ledger: &mut MappingLedger, at: u64, length: u64) {
    ledger.add(&call(MapKind::MunmapBegins, 9, at, length, 0));
    ledger.add(&call(MapKind::Munmap, 9, at, length, 0));
}

fn remap(ledger: &mut MappingLedger, at: u64, old: u64, new: u64, to: u64, flags: u64) {
    let begins = MapRecord { third: new, flags, ..call(MapKind::MremapBegins, 8, at, old, 0) };
    ledger.add(&begins);
    ledger.add(&MapRecord { kind: MapKind::Mremap as u32, result: to, ..begins });
}

fn left(ledger: &MappingLedger, path: u32) -> (u64, u64) {
    ledger.paths().get(&path).map_or((0, 0), |own| (own.outstanding, own.regions))
}

/// A hole in a mapping leaves two pieces; what is unmapped beyond it was not ours.
#[test]
fn partial_unmaps() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 0x10_000);
    unmap(&mut ledger, 0x10_4000, 0x1000);
    assert_eq!(left(&ledger, 1), (0xf000, 2));
    unmap(&mut ledger, 0x10_e000, 0x4000);
    assert_eq!(left(&ledger, 1), (0xd000, 2));
    assert_eq!((ledger.unmapped(), ledger.unmapped_before()), (0x3000, 0x2000));
}

/// Lengths count in whole pages, as the kernel maps them.
#[test]
fn rounding() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 1);
    assert_eq!(left(&ledger, 1), (0x1000, 1));
}

/// `MAP_FIXED` replaces what is there, across the ends of several mappings.
#[test]
fn fixed_maps_replace() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 0x4000);
    map(&mut ledger, 2, 0x10_4000, 0x4000);
    map(&mut ledger, 3, 0x10_2000, 0x4000);
    assert_eq!(
        [left(&ledger, 1).0, left(&ledger, 2).0, left(&ledger, 3).0],
        [0x2000, 0x2000, 0x4000]
    );
    assert_eq!(ledger.unmapped(), 0x4000);
}

/// A failed call changes nothing.
#[test]
fn failures() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 0x4000);
    let before = ledger.paths();
    ledger.add(&call(MapKind::Mmap, 1, 0, 0x1000, u64::MAX - 11));
    ledger.add(&call(MapKind::MunmapBegins, 1, 0x10_0000, 0x4000, 0));
    ledger.add(&call(MapKind::Munmap, 1, 0x10_0000, 0x4000, u64::MAX - 21));
    remap(&mut ledger, 0x10_0000, 0x4000, 0x8000, u64::MAX - 11, 1);
    assert_eq!(ledger.paths(), before);
}

/// Addresses that are given to another thread before `munmap` has returned stay that thread's.
#[test]
fn handed_over_before_the_return() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 0x4000);
    ledger.add(&call(MapKind::MunmapBegins, 9, 0x10_0000, 0x4000, 0));
    ledger.add(&MapRecord { tid: 2, ..call(MapKind::Mmap, 2, 0, 0x4000, 0x10_0000) });
    ledger.add(&call(MapKind::Munmap, 9, 0x10_0000, 0x4000, 0));
    assert_eq!((left(&ledger, 1), left(&ledger, 2)), ((0, 0), (0x4000, 1)));
}

/// What moves stays its maker's; what grows on top is the caller's; what shrinks has gone.
#[test]
fn mremap_moves_grows_and_shrinks() {
    let mut ledger = MappingLedger::default();
    map(&mut ledger, 1, 0x10_0000, 0x4000);
    remap(&mut ledger, 0x10_0000, 0x4000, 0x6000, 0x20_0000, 1);
    assert_eq!((left(&ledger, 1).0, left(&ledger, 8).0), (0x4000, 0x2000));
    unmap(&mut ledger, 0x10_0000, 0x4000);
    assert_eq!(left(&ledger, 1).0, 0x4000, "nothing is at the old place");
    remap(&mut ledger, 0x20_0000, 0x6000, 0x1000, 0x20_0000, 0);
    assert_eq!((left(&ledger, 1).0, left(&ledger, 8).0), (0x1000, 0));
    assert_eq!(ledger.unmapped(), 0x5000);
    // The old mapping may stay.
    remap(&mut ledger, 0x20_0000, 0x1000, 0x1000, 0x30_0000, 1 | DONT_UNMAP);
    assert_eq!(left(&ledger, 1), (0x2000, 2));
}

/// The heap's growth is exit minus entry, in both directions, and the first answer only says where it ends.
#[test]
fn heap() {
    let brk = |to| call(MapKind::Brk, 4, to, 0, to);
    let mut ledger = MappingLedger::default();
    ledger.add(&brk(0x5000));
    assert_eq!(ledger.paths().get(&4), None);
    ledger.add(&brk(0x9000));
    ledger.add(&brk(0x9000));
    ledger.add(&brk(0x8000));
    assert_eq!((ledger.paths()[&4].heap, ledger.paths()[&4].calls), (0x3000, 2));
    let mut known = MappingLedger::new(Some(0x5000));
    known.add(&brk(0x5800));
    assert_eq!(known.paths()[&4].heap, 0x800);
}

/// Records without sense change nothing.
#[test]
fn hostile_records() {
    let mut ledger = MappingLedger::default();
    ledger.add(&MapRecord { kind: 77, ..MapRecord::default() });
    ledger.add(&call(MapKind::Mmap, 1, 0, u64::MAX, 0x1000));
    unmap(&mut ledger, u64::MAX - 5, u64::MAX);
    remap(&mut ledger, u64::MAX, u64::MAX, u64::MAX, 0x7000, u64::MAX);
}

proptest! {
    /// Whatever is mapped and unmapped, the ledger holds what a naive table of pages holds.
    #[test]
    fn like_a_table_of_pages(
        calls in prop::collection::vec((0u8..3, 0u64..64, 1u64..16, 1u64..16, 0u64..64), 1..60)
    ) {
        let mut ledger = MappingLedger::default();
        let mut pages: HashMap<u64, u32> = HashMap::new();
        for (number, (what, at, length, new, to)) in calls.into_iter().enumerate() {
            let path = 100 + number as u32;
            let (from, bytes) = (at * PAGE, length * PAGE);
            match what {
                0 => {
                    map(&mut ledger, path, from, bytes);
                    (at..at + length).for_each(|page| { pages.insert(page, path); });
                }
                1 => {
                    unmap(&mut ledger, from, bytes);
                    (at..at + length).for_each(|page| { pages.remove(&page); });
                }
                _ => {
                    remap(&mut ledger, from, bytes, new * PAGE, to * PAGE, 3);
                    let old: Vec<_> = (at..at + length).map(|page| pages.remove(&page)).collect();
                    (to..to + new).for_each(|page| { pages.remove(&page); });
                    for offset in 0..new {
                        let path = match old.get(offset as usize) {
                            Some(kept) => *kept,
                            None => Some(8),
                        };
                        if let Some(path) = path {
                            pages.insert(to + offset, path);
                        }
                    }
                }
            }
        }
        let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
        for path in pages.values() {
            *expected.entry(*path).or_default() += PAGE;
        }
        let found: BTreeMap<u32, u64> = ledger
            .paths()
            .into_iter()
            .filter(|(_, own)| own.outstanding > 0)
            .map(|(path, own)| (path, own.outstanding))
            .collect();
        prop_assert_eq!(found, expected);
    }
}
