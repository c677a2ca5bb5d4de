use super::*;
use crate::{
    space::{Range, RangeKind},
    testing::{Pieces, anonymous},
};

const DATA: u64 = 0x1000_0000;
const PARTS: u64 = 0x3000_0000;
const HEAP: u64 = 0x7f00_0000;
const DESCRIPTIONS: u64 = 0x5000_0000;
const PAGES: u64 = 4;
/// Where the table begins in the data.
const ROOT: u64 = DATA + 64;

const TWO: Shape = Shape { levels: &[8, 18], entry: 8, alignment: 64, join: |entry, _| entry };
const THREE: Shape =
    Shape { levels: &[8, 9, 9], entry: 16, alignment: 64, join: |entry, more| entry | more << 48 };

/// A table that lists the heap's pages, each with a description, and the index of the entry of each level.
fn memory(shape: &Shape) -> (Pieces, Vec<Range>, Vec<u64>) {
    let bytes: u64 = (1..shape.levels.len()).map(|level| shape.bytes(level)).sum();
    let mut memory = Pieces::default();
    memory.pieces.push((DATA, vec![0; PAGE as usize]));
    memory.pieces.push((PARTS, vec![0; bytes as usize]));
    let ranges = vec![
        Range { kind: RangeKind::File, ..anonymous(DATA, PAGE) },
        anonymous(PARTS, bytes),
        anonymous(DESCRIPTIONS, PAGE),
        anonymous(HEAP, PAGES * PAGE),
    ];
    let mut places = Vec::new();
    let (mut part, mut next) = (ROOT, PARTS);
    for (level, bits) in shape.levels.iter().enumerate() {
        let index = ((HEAP / PAGE) >> shape.below(level)) & ((1 << bits) - 1);
        if level + 1 < shape.levels.len() {
            memory.put(part + index * 8, &[next]);
            places.push(part + index * 8);
            (part, next) = (next, next + shape.bytes(level + 1));
            continue;
        }
        places.push(part + index * shape.entry);
        for page in 0..PAGES {
            let at = part + (index + page) * shape.entry;
            memory.put(at, &[DESCRIPTIONS + page * 64]);
            if shape.entry > 8 {
                memory.put(at + 8, &[7]);
            }
        }
    }
    (memory, ranges, places)
}

fn entries((memory, ranges): &(Pieces, Vec<Range>), shape: &Shape) -> Option<Vec<(u64, u64)>> {
    let space = Space::new(ranges.clone(), memory);
    let known = [(HEAP / PAGE + 1, DESCRIPTIONS + 64)];
    find(&space, shape, &known, |word, one| word == one).map(|listed| listed.entries)
}

/// What a table lists is found by one of its pages, with both words of an entry.
#[test]
fn listed() {
    for (shape, more) in [(&TWO, 0), (&THREE, 7 << 48)] {
        let (memory, ranges, _) = memory(shape);
        let all = (0..PAGES)
            .map(|page| (HEAP / PAGE + page, DESCRIPTIONS + page * 64 + more))
            .collect::<Vec<_>>();
        assert_eq!(entries(&(memory, ranges), shape), Some(all));
    }
}

/// Memory that has one description by chance where a table would have it is no part of one.
#[test]
fn chance() {
    const OTHER: u64 = 0x6000_0000;
    let (mut memory, mut ranges, places) = memory(&TWO);
    let bytes = TWO.bytes(1);
    memory.pieces.push((OTHER, vec![0; bytes as usize]));
    ranges.push(anonymous(OTHER, bytes));
    memory.put(DATA + 8, &[OTHER]);
    let one = (HEAP / PAGE + 1, DESCRIPTIONS + 64);
    memory.put(places[1] - PARTS + OTHER + 8, &[one.1]);
    let known = [one, (HEAP / PAGE + 3, DESCRIPTIONS + 3 * 64)];
    let space = Space::new(ranges, &memory);
    let of = |known| {
        let listed = find(&space, &TWO, known, |word, one| word == one);
        listed.expect("there is a table").entries.len() as u64
    };
    assert_eq!(of(&known), PAGES);
    assert_ne!(of(&[one]), PAGES);
}

/// Where one entry behind the first level lies elsewhere, no table is found, or it does not list the pages that are known.
#[test]
fn shifted() {
    for shape in [&TWO, &THREE] {
        for level in 1..shape.levels.len() {
            let (mut memory, ranges, places) = memory(shape);
            let space = Space::new(ranges.clone(), &memory);
            let words: [u64; 12] = space.words(places[level]).expect("it is written");
            memory.put(places[level], &[0]);
            memory.put(places[level] + 8, &words);
            let found = entries(&(memory, ranges), shape).unwrap_or_default();
            let is_right = |(page, entry): &(u64, u64)| {
                let number = (entry & 0xffff_ffff).wrapping_sub(DESCRIPTIONS) / 64;
                *page == HEAP / PAGE + number
            };
            assert!(!found.iter().any(is_right), "{level}: {found:x?}");
        }
    }
}

/// What no known stretch accounts for is one stretch, where one description has it and nothing is between.
#[test]
fn unknown() {
    let (memory, ranges, _) = memory(&TWO);
    let space = Space::new(ranges, &memory);
    let page = HEAP / PAGE;
    let entries = vec![(page, 1), (page + 1, 2), (page + 3, 2), (page + 9, 3)];
    let listed = Listed { entries, is_whole: true };
    let stretches = |known: &[(u64, u64)]| {
        unlisted(&space, &Taken::default(), known.iter().copied(), &listed, PAGE.trailing_zeros())
    };
    let (first, all) = ((HEAP, HEAP + PAGE), (HEAP, HEAP + PAGES * PAGE));
    assert_eq!(stretches(&[all]), []);
    assert_eq!(stretches(&[first]), [(HEAP + PAGE, HEAP + PAGES * PAGE)]);
    assert_eq!(stretches(&[]), [first, (HEAP + PAGE, HEAP + PAGES * PAGE)]);
}
