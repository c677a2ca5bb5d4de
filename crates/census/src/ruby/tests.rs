use proptest::prelude::*;

use super::*;
use crate::{
    space::PAGE,
    testing::{Pieces, anonymous, seeds},
};

const BASE: u64 = 0x7f00_0000_0000;
const BYTES: u64 = 256 << 10;
/// Where structures are.
const DATA: u64 = 0x7e00_0000_0000;
/// Where the part of the heap with slots of this size is, the address of the list behind it, and the list.
const OWNER: u64 = DATA + 0x900;
const LISTED: u64 = OWNER + 216;
const LIST: u64 = DATA + 0xb00;

/// Pages of one size, full of slots, of which each page but the first has three in use: two strings and an array.
fn memory(bytes: u64, slot: u64) -> Pieces {
    let mut memory = Pieces::default();
    memory.pieces.push((BASE, vec![0; BYTES as usize]));
    memory.pieces.push((DATA, vec![0; 4096]));
    for page in 0..BYTES / bytes {
        let (at, structure) = (BASE + page * bytes, DATA + page * 128);
        let slots = (bytes - 8) / slot;
        let used = if page == 0 { 0 } else { 3 };
        memory.put(at, &[structure]);
        memory.put(structure, &[slot | slots << 16 | (slots - used) << 32, 0, OWNER, 0, at + 8, 0]);
        memory.put(LIST + page * 8, &[structure]);
        for (index, kind) in [5, 0x1005, 7].into_iter().take(used as usize).enumerate() {
            memory.put(at + 8 + (index as u64 + 4) * slot, &[kind]);
        }
    }
    memory.put(LISTED, &[LIST, BYTES / bytes, 0, 0]);
    memory
}

fn ranges() -> Vec<crate::space::Range> {
    vec![anonymous(BASE, BYTES), anonymous(DATA, 4096)]
}

fn search(memory: &Pieces) -> Option<Found> {
    find(&Space::new(ranges(), memory), &Taken::default())
}

fn found(memory: &Pieces) -> Heap {
    let found = search(memory).expect("there are pages");
    assert!(found.notes.is_empty() && found.heap.unknown_bytes == 0, "{:?}", found.notes);
    found.heap
}

/// Pages of both sizes, their slots and types.
#[test]
fn pages() {
    for (bytes, slot, pages) in [(16 << 10, 40, 16), (64 << 10, 40, 4), (64 << 10, 640, 4)] {
        let heap = found(&memory(bytes, slot));
        assert_eq!((heap.mapped_bytes, heap.live_objects), (BYTES, 3 * (pages - 1)), "{bytes}");
        assert_eq!((heap.granules.empty, heap.granules.held[0].granules), (1, pages - 1));
        assert_eq!((heap.classes[0].size, heap.classes[0].granules), (slot, Some(pages)));
        let types: Vec<_> =
            heap.types.iter().map(|one| (one.name.as_str(), one.objects, one.arenas)).collect();
        let wanted = [("T_STRING", 2 * (pages - 1), pages - 1), ("T_ARRAY", pages - 1, pages - 1)];
        assert_eq!(types, wanted, "{bytes}");
    }
}

/// Of a page that is swapped out in part, what its structure says counts.
#[test]
fn swapped() {
    let mut memory = memory(16 << 10, 40);
    memory.absent.push(BASE + (16 << 10) + PAGE);
    let heap = found(&memory);
    assert_eq!(heap.live_objects, 45);
    let unread = heap.types.iter().find(|one| one.name == UNREAD).expect("it is said");
    assert_eq!((unread.objects, unread.arenas), (3, 1));
    assert_eq!(heap.resident_bytes, BYTES - PAGE);
}

/// The structure of 3.4: the page's own address is in front of the first slot's, and the list's length in front of it.
fn memory_of_3_4() -> Pieces {
    let mut memory = memory(64 << 10, 40);
    for page in 0..BYTES >> 16 {
        let at = BASE + (page << 16);
        memory.put(DATA + page * 128 + 32, &[at, at + 8]);
    }
    let pages: Vec<u64> = (0..BYTES >> 16).map(|page| DATA + page * 128).collect();
    memory.put(LIST, &[pages.len() as u64, 512]);
    memory.put(LIST + 16, &pages);
    memory.put(LISTED, &[LIST, 7]);
    memory
}

#[test]
fn length_in_front() {
    assert_eq!(found(&memory_of_3_4()).live_objects, 9);
}

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    seeds::check("ruby-3.4", &memory_of_3_4(), &ranges(), "");
    seeds::check("ruby-16k", &memory(16 << 10, 40), &ranges(), "");
    seeds::check("ruby-64k", &memory(64 << 10, 640), &ranges(), "");
}

type Break = fn(&mut Pieces, u64, u64);

/// What is listed and makes no sense is unknown; what is not listed is none; without a list that is said.
#[test]
fn guards() {
    let bytes = 16 << 10;
    let (second, structure) = (BASE + bytes, DATA + 128);
    let breaks: [Break; 4] = [
        |memory, page, _| memory.put(page, &[0]),
        |memory, page, _| memory.absent.push(page),
        |memory, _, structure| memory.put(structure, &[0]),
        // A slot of no type.
        |memory, page, _| memory.put(page + 8 + 40, &[31]),
    ];
    for (index, damage) in breaks.into_iter().enumerate() {
        let mut memory = memory(bytes, 40);
        damage(&mut memory, second, structure);
        let found = search(&memory).expect("there are pages");
        assert_eq!((found.heap.unknown_bytes, found.heap.mapped_bytes), (bytes, BYTES), "{index}");
        assert_eq!(found.heap.live_objects, 42, "{index}");
        assert_eq!(found.notes.len(), 1, "{index}");
    }
    let mut memory = memory(bytes, 40);
    memory.put(LISTED + 8, &[BYTES / bytes - 1]);
    assert_eq!(found(&memory).live_objects, 42, "the last page is not listed");
    memory.put(LISTED + 8, &[BYTES / bytes + 1]);
    let found = search(&memory).expect("there are pages");
    assert!(found.notes[0].contains("list of heap pages was not found"), "{:?}", found.notes);
}

/// Whether everything was read, and rightly, or it is said that it was not.
fn is_honest(found: Option<&Found>, pages: u64) -> bool {
    found.is_none_or(|found| {
        let heap = &found.heap;
        let is_right = (heap.live_objects, heap.mapped_bytes) == (3 * (pages - 1), BYTES);
        is_right && heap.unknown_bytes == 0 || !found.notes.is_empty()
    })
}

/// A structure with one field moved, for each field, of one page and of all.
#[test]
fn shifted() {
    for (all, pages, words) in
        [(memory as fn(u64, u64) -> Pieces, 16, 6), (|_, _| memory_of_3_4(), 4, 6)]
    {
        for (field, which) in (0..words).flat_map(|field| [(field, 1..2), (field, 0..pages)]) {
            let mut memory = all(16 << 10, 40);
            for page in which.clone() {
                let (at, space) = (DATA + page * 128, Space::new(ranges(), &memory));
                let words: [u64; 6] = space.words(at).expect("it is there");
                memory.put(at + field * 8, &[0]);
                memory.put(at + field * 8 + 8, &words[field as usize..]);
            }
            let found = search(&memory);
            assert!(
                is_honest(found.as_ref(), pages),
                "{field} of {which:?}: {:?}",
                found.map(|found| found.heap)
            );
        }
    }
}

proptest! {
    /// Structures of some pages with a field moved by any number of words: what is said is right, or it is said that it
    /// is not.
    #[test]
    fn moved(
        with_length_in_front: bool,
        (field, first, count, times) in (0..6u64, 0..16u64, 1..=16u64, 1..4u8),
    ) {
        let (mut memory, pages) =
            if with_length_in_front { (memory_of_3_4(), 4) } else { (memory(16 << 10, 40), 16) };
        for page in (first..first + count).filter(|page| *page < pages) {
                for _ in 0..times {
                    let at = DATA + page * 128;
                    let words: [u64; 6] =
                        Space::new(ranges(), &memory).words(at).expect("it is there");
                    memory.put(at + field * 8, &[0]);
                    memory.put(at + field * 8 + 8, &words[field as usize..]);
                }
            }
        let found = search(&memory);
        let is_honest = is_honest(found.as_ref(), pages);
        prop_assert!(is_honest, "{:?}", found.map(|found| (found.heap, found.notes)));
    }

    /// Whatever stands in pages and structures, the census ends and counts no more than there is room for.
    #[test]
    fn hostile(words in prop::collection::vec((any::<bool>(), 0..BYTES / 8, any::<u64>(), 0..3u8), 0..100)) {
        let mut memory = memory(16 << 10, 40);
        for (in_data, at, word, kind) in words {
            let word = match kind { 0 => word, 1 => BASE + word % BYTES, _ => DATA + word % 4096 / 8 * 8 };
            memory.put(if in_data { DATA + at % 512 * 8 } else { BASE + at * 8 }, &[word]);
        }
        if let Some(found) = find(&Space::new(ranges(), &memory), &Taken::default()) {
            prop_assert!(found.heap.live_bytes <= found.heap.mapped_bytes);
            prop_assert!(found.heap.mapped_bytes <= BYTES);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    crate::testing::cut_short(&ranges(), &memory(SIZES[1], 40));
    crate::testing::cut_short(&ranges(), &memory_of_3_4());
}
