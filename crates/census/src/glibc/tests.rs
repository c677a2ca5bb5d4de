use proptest::prelude::*;

use super::*;
use crate::{
    space::{Range, RangeKind},
    testing::{Pieces, anonymous},
};

const HEAP: u64 = 0x5555_0000_0000;
const DATA: u64 = 0x7f00_0000_0000;
const PAGES: u64 = 64;

/// A heap of some pages, and a main arena whose `top` is its end; `chunks` are sizes, and whether each is in use.
fn heap(chunks: &[(u64, bool)]) -> (Pieces, Vec<Range>) {
    let bytes = PAGES * PAGE;
    let mut memory = Pieces::default();
    memory.pieces.push((HEAP, vec![0; bytes as usize]));
    memory.pieces.push((DATA, vec![0; 4096]));
    let (mut at, mut before) = (HEAP, true);
    for (size, in_use) in chunks {
        memory.put(at + 8, &[size | u64::from(before)]);
        (at, before) = (at + size, *in_use);
    }
    memory.put(at + 8, &[(HEAP + bytes - at) | u64::from(before)]);
    let state = DATA + 64;
    memory.put(state + 96, &[at]);
    memory.put(state + 112, &[state + 96]);
    memory.put(state + 2160, &[state]);
    memory.put(state + 2184, &[bytes]);
    let kind = RangeKind::Heap;
    let main = Range { kind, ..anonymous(HEAP, bytes) };
    let data = Range { kind: RangeKind::File, ..anonymous(DATA, 4096) };
    (memory, vec![main, data])
}

fn census(memory: &Pieces, ranges: &[Range]) -> Heap {
    find(&Space::new(ranges.to_vec(), memory), &Taken::default()).expect("there is a heap").heap
}

/// Chunks in use are live, the others and `top` are free; pages count the objects that touch them.
#[test]
fn chunks_and_pages() {
    // A page's worth of free chunks between two live ones, then `top`.
    let (memory, ranges) = heap(&[(64, true), (3 * PAGE, false), (64, true), (0x60, true)]);
    let heap = census(&memory, &ranges);
    assert_eq!((heap.live_objects, heap.live_bytes), (3, 64 + 64 + 0x60));
    assert_eq!(heap.free_bytes + heap.live_bytes, PAGES * PAGE);
    assert_eq!((heap.unknown_bytes, heap.cached_bytes), (0, 0));
    let held: u64 = heap.granules.held.iter().map(|held| held.granules).sum();
    assert_eq!((held, heap.granules.empty), (2, PAGES - 2));
    // Two whole pages between them, and all pages of `top` but the first.
    assert_eq!(heap.trimmable_bytes, Some((2 + PAGES - 4) * PAGE));
    let class = |size| heap.classes.iter().find(|class| class.size == size).unwrap();
    assert_eq!((class(56).objects, class(56).alone, class(0x58).alone), (2, 1, 0));
}

/// What is in a fastbin is free, what is in a thread's cache is cached; both look in use. Pointers are masked.
#[test]
fn caches() {
    let cache = 0x290;
    let (mut memory, ranges) =
        heap(&[(cache, true), (32, true), (32, true), (48, true), (64, true)]);
    let at = |offset: u64| HEAP + cache + offset;
    let mask = |place: u64, to: u64| (place >> 12) ^ to;
    // Two chunks of 32 bytes in the first list, one of 64 in a fastbin.
    memory.put(HEAP + 16, &[2]);
    memory.put(HEAP + 16 + 128, &[at(16)]);
    memory.put(at(16), &[mask(at(16), at(48))]);
    memory.put(at(48), &[mask(at(48), 0)]);
    memory.put(DATA + 64 + 16 + 16, &[at(112)]);
    memory.put(at(112 + 16), &[mask(at(112 + 16), 0)]);
    let heap = census(&memory, &ranges);
    assert_eq!((heap.live_objects, heap.live_bytes), (2, cache + 48));
    assert_eq!(heap.cached_bytes, 64);
    assert_eq!(heap.free_bytes + heap.live_bytes + heap.cached_bytes, PAGES * PAGE);
}

/// A chain that breaks is found again behind the break; what lies between is unknown, and so is what is swapped out.
#[test]
fn breaks() {
    let chunks: Vec<(u64, bool)> = (0..1000).map(|index| (64, index % 2 == 0)).collect();
    let (mut memory, ranges) = heap(&chunks);
    memory.put(HEAP + 64 * 100 + 8, &[7]);
    let heap = census(&memory, &ranges);
    assert!((64..=1024).contains(&heap.unknown_bytes), "{}", heap.unknown_bytes);
    assert!(heap.live_objects >= 490, "{}", heap.live_objects);
    memory.absent.push(HEAP + 5 * PAGE);
    let heap = census(&memory, &ranges);
    assert!((PAGE..=PAGE + 2048).contains(&heap.unknown_bytes), "{}", heap.unknown_bytes);
    let sum = heap.live_bytes + heap.free_bytes + heap.unknown_bytes;
    assert_eq!(sum, PAGES * PAGE, "every byte is one of these");
}

/// A mapping of its own: whole pages, its size in its second word.
#[test]
fn mapped_chunks() {
    let (mut memory, mut ranges) = heap(&[(64, true)]);
    let at = 0x7e00_0000_0000;
    memory.pieces.push((at, vec![0xff; 8 * PAGE as usize]));
    memory.put(at + PAGE, &[0, (4 * PAGE) | 2]);
    ranges.push(anonymous(at, 8 * PAGE));
    let heap = census(&memory, &ranges);
    assert_eq!((heap.live_objects, heap.mapped_alone_bytes), (2, 4 * PAGE));
    assert_eq!(heap.granules.full, 4);
}

/// A thread's arena whose heaps lead in a circle: each heap is walked once.
#[test]
fn circles() {
    let (mut memory, mut ranges) = heap(&[(64, true)]);
    let first = 0x7e00_0000_0000;
    let (state, last) = (first + 32, first + (64 << 20));
    for at in [first, last] {
        memory.pieces.push((at, vec![0; 2 * PAGE as usize]));
        ranges.push(anonymous(at, 2 * PAGE));
    }
    memory.put(DATA + 64 + 2160, &[state]);
    memory.put(state + 96, &[last + 64]);
    memory.put(state + 2160, &[DATA + 64]);
    memory.put(last, &[state, last, 2 * PAGE]);
    assert_eq!(census(&memory, &ranges).mapped_bytes, (PAGES + 2) * PAGE);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever stands in a heap, the census ends, and says of each byte one thing at most.
    #[test]
    fn hostile(words in prop::collection::vec((0..PAGES * 512, any::<u64>(), 0..4u8), 0..200), absent in prop::collection::vec(0..PAGES, 0..8)) {
        let chunks: Vec<(u64, bool)> = (0..800).map(|index| (0x20 + index % 40 * 16, index % 3 > 0)).collect();
        let fits: Vec<(u64, bool)> = chunks
            .into_iter()
            .scan(0, |sum, chunk| { *sum += chunk.0; Some((*sum, chunk)) })
            .take_while(|(sum, _)| *sum < (PAGES - 2) * PAGE)
            .map(|(_, chunk)| chunk)
            .collect();
        let (mut memory, ranges) = heap(&fits);
        for (at, word, kind) in words {
            // Random words, small sizes, and pointers into the heap.
            let word = match kind { 0 => word, 1 => word % 4096, 2 => HEAP + word % (PAGES * PAGE), _ => word & 0xfff | 1 };
            memory.put(HEAP + at * 8, &[word]);
        }
        memory.absent = absent.into_iter().map(|page| HEAP + page * PAGE).collect();
        let space = Space::new(ranges, &memory);
        if let Some(found) = find(&space, &Taken::default()) {
            let heap = found.heap;
            prop_assert!(heap.live_bytes + heap.free_bytes + heap.unknown_bytes <= PAGES * PAGE + 64, "{heap:?}");
            prop_assert!(heap.trimmable_bytes.unwrap_or(0) <= PAGES * PAGE);
            prop_assert!(space.read_bytes() < 1 << 30);
        }
    }
}
