//! The heap pages of Ruby (3.1 to 3.4), without symbols, and the built-in types of what is in them.
//!
//! A page of 16 KiB (3.1) or 64 KiB begins with the address of its `heap_page`: bytes of a slot at 0, slots at 2, free
//! ones at 4, and at 32 or 40 where the first slot is, which must lie in the very page. The first word of a slot is 0 if
//! it is free; its low five bits are the type. Source: `gc.c` (in 3.4 `gc/default/default.c`) and `value_type.h`.

use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Granules, Heap, Type},
    space::{Space, word_of},
};

/// Bytes of a page, and what all of them are aligned to.
const SIZES: [u64; 2] = [16 << 10, 64 << 10];
/// The smallest and the largest slot.
const SLOTS: [u64; 2] = [40, 1024];
/// Fewer pages than this may be chance.
const FEWEST: usize = 4;
/// Types by the low bits of a slot's first word.
const TYPES: [&str; 32] = [
    "T_NONE",
    "T_OBJECT",
    "T_CLASS",
    "T_MODULE",
    "T_FLOAT",
    "T_STRING",
    "T_REGEXP",
    "T_ARRAY",
    "T_HASH",
    "T_STRUCT",
    "T_BIGNUM",
    "T_FILE",
    "T_DATA",
    "T_MATCH",
    "T_COMPLEX",
    "T_RATIONAL",
    "unknown",
    "T_NIL",
    "T_TRUE",
    "T_FALSE",
    "T_SYMBOL",
    "T_FIXNUM",
    "T_UNDEF",
    "unknown",
    "unknown",
    "unknown",
    "T_IMEMO",
    "T_NODE",
    "T_ICLASS",
    "T_ZOMBIE",
    "T_MOVED",
    "unknown",
];
/// What lies in pages that are swapped out in part.
const UNREAD: &str = "(not in memory)";

/// A page whose structure validates.
struct HeapPage {
    address: u64,
    bytes: u64,
    /// Where its first slot is, from its begin.
    first: u64,
    /// Bytes of a slot, and how many there are.
    slot: u64,
    slots: u64,
    live: u64,
    /// Live objects by type; `None` where not all of the page is present.
    types: Option<[u64; 32]>,
    resident: u64,
}

/// Looks for pages in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut pages: Vec<HeapPage> = Vec::new();
    for range in space.anonymous() {
        let region = space.region(range.start, range.end);
        let mut at = range.start.next_multiple_of(SIZES[0]);
        while at + SIZES[0] <= range.end {
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(SIZES[0]);
                continue;
            }
            let is_open = taken.end_of(at).is_none();
            let found = if is_open { page(space, at, range.end) } else { None };
            let Some(mut page) = found else {
                at += SIZES[0];
                continue;
            };
            page.resident = region.present_bytes(at, at + page.bytes);
            if page.resident == page.bytes {
                count(space, &mut page);
            }
            at += page.bytes;
            pages.push(page);
        }
    }
    (pages.len() >= FEWEST).then(|| sum(space, &pages))
}

/// The page at an address; `None` where there is none.
fn page(space: &Space<'_>, address: u64, end: u64) -> Option<HeapPage> {
    let structure = space.word(address)?;
    if !structure.is_multiple_of(8) || !space.range_at(structure)?.writable {
        return None;
    }
    let [counts, _, _, _, fourth, fifth] = space.words(structure)?;
    // Later versions have the page's own address in front.
    let first = if fourth == address { fifth } else { fourth };
    let [slot, slots, free] = [0, 16, 32].map(|shift| counts >> shift & 0xffff);
    let offset = first.checked_sub(address).filter(|offset| (8..8 + slot).contains(offset))?;
    let bytes = SIZES.into_iter().find(|bytes| offset + slot * slots <= *bytes)?;
    let is_page = (SLOTS[0]..=SLOTS[1]).contains(&slot)
        && slot.is_multiple_of(8)
        && offset + slot * (slots + 1) > bytes
        && free <= slots
        && address.is_multiple_of(bytes)
        && address + bytes <= end;
    is_page.then_some(HeapPage {
        address,
        bytes,
        first: offset,
        slot,
        slots,
        live: slots.saturating_sub(free),
        types: None,
        resident: 0,
    })
}

/// Counts what is in a page by type.
fn count(space: &Space<'_>, page: &mut HeapPage) {
    let mut bytes = vec![0; page.bytes as usize];
    if !space.read(page.address, &mut bytes) {
        return;
    }
    let mut types = [0; 32];
    for slot in 0..page.slots {
        let flags = word_of(&bytes, (page.first + slot * page.slot) as usize).unwrap_or_default();
        if flags != 0 {
            types[(flags & 31) as usize] += 1;
        }
    }
    page.live = types.iter().sum();
    page.types = Some(types);
}

fn sum(space: &Space<'_>, pages: &[HeapPage]) -> Found {
    let mut heap = Heap { allocator: "ruby".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "heap page".to_owned(), ..Granules::default() };
    let (mut classes, mut held_bytes) = (BySize::default(), 0);
    let mut types = [(); 33].map(|()| Type::default());
    for page in pages {
        heap.mapped_bytes += page.bytes;
        heap.resident_bytes += page.resident;
        heap.live_objects += page.live;
        heap.live_bytes += page.live * page.slot;
        classes.add(page.slot, page.live, page.bytes);
        let live = (page.live, page.live * page.slot);
        space.note_granule(&mut heap.map, page.address, page.bytes, live);
        if page.live > 0 {
            held_bytes += page.resident;
        } else {
            granules.empty += 1;
            granules.empty_bytes += page.bytes;
        }
        let mut unread = [0; 33];
        match page.types {
            Some(own) => unread[..32].copy_from_slice(&own),
            None => unread[32] = page.live,
        }
        for (sum, own) in types.iter_mut().zip(unread).filter(|(_, own)| *own > 0) {
            sum.objects += own;
            sum.bytes += own * page.slot;
            sum.arenas += 1;
            sum.arenas_alone += u64::from(own == page.live);
            sum.alone_bytes += if own == page.live { page.bytes } else { 0 };
        }
    }
    heap.free_bytes = heap.mapped_bytes - heap.live_bytes;
    granules.held = held(pages.iter().map(|page| (page.live, page.bytes)));
    heap.granules = granules;
    heap.classes = classes.finish();
    for (one, name) in types.iter_mut().zip(TYPES.into_iter().chain([UNREAD])) {
        name.clone_into(&mut one.name);
    }
    heap.types = types.into_iter().filter(|one| one.objects > 0).collect();
    heap.types.sort_by_key(|one| std::cmp::Reverse(one.bytes));
    let taken = pages.iter().map(|page| (page.address, page.address + page.bytes)).collect();
    Found { heap, held_bytes, taken, notes: Vec::new() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        space::PAGE,
        testing::{Pieces, anonymous},
    };

    const BASE: u64 = 0x7f00_0000_0000;
    const BYTES: u64 = 256 << 10;
    /// Where structures are.
    const DATA: u64 = 0x7e00_0000_0000;

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
            memory.put(structure, &[slot | slots << 16 | (slots - used) << 32, 0, 0, 0, at + 8, 0]);
            for (index, kind) in [5, 0x1005, 7].into_iter().take(used as usize).enumerate() {
                memory.put(at + 8 + (index as u64 + 4) * slot, &[kind]);
            }
        }
        memory
    }

    fn ranges() -> Vec<crate::space::Range> {
        vec![anonymous(BASE, BYTES), anonymous(DATA, 4096)]
    }

    fn found(memory: &Pieces) -> Heap {
        let space = Space::new(ranges(), memory);
        find(&space, &Taken::default()).expect("there are pages").heap
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
            let wanted =
                [("T_STRING", 2 * (pages - 1), pages - 1), ("T_ARRAY", pages - 1, pages - 1)];
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

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

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
}
