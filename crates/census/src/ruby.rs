//! The heap pages of Ruby (3.1 to 3.4), without symbols, and the built-in types of what is in them.
//!
//! A page of 16 KiB (3.1) or 64 KiB begins with the address of its `heap_page`: bytes of a slot at 0, slots at 2, free
//! ones at 4, and at 32 or 40 where the first slot is, which must lie in the very page. The first word of a slot is 0 if
//! it is free; its low five bits are the type. Which pages there are is compared with the interpreter's own list ([`list`]).
//! Source: `gc.c` (in 3.4 `gc/default/default.c`) and `value_type.h`.

mod list;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use crate::{
    found::{Found, Taken},
    granules::{BySize, held},
    model::{Granules, Heap, Type},
    region::Region,
    space::{Space, word_of},
};

/// Bytes of a page, and what all of them are aligned to.
const SIZES: [u64; 2] = [16 << 10, 64 << 10];
/// The smallest and the largest slot.
const SLOTS: [u64; 2] = [40, 1024];
/// Fewer pages than this may be chance.
const MIN_PAGES: usize = 4;
/// Pages that are read at once.
const PAGES_AT_ONCE: usize = 1024;
/// How often a page is read with slots of no known type: the process runs.
const PAGE_ATTEMPTS: u32 = 3;
/// What no type is called.
const NO_TYPE: &str = "unknown";
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
    NO_TYPE,
    "T_NIL",
    "T_TRUE",
    "T_FALSE",
    "T_SYMBOL",
    "T_FIXNUM",
    "T_UNDEF",
    NO_TYPE,
    NO_TYPE,
    NO_TYPE,
    "T_IMEMO",
    "T_NODE",
    "T_ICLASS",
    "T_ZOMBIE",
    "T_MOVED",
    NO_TYPE,
];
/// What lies in pages that are swapped out in part.
const UNREAD: &str = "(not in memory)";

/// A page whose structure validates.
struct HeapPage {
    address: u64,
    bytes: u64,
    /// Its structure, and what part of the heap that belongs to.
    structure: u64,
    owner: u64,
    /// Where its first slot is, from its begin.
    first: u64,
    /// Bytes of a slot, and how many there are.
    slot: u64,
    slots: u64,
    live: u64,
    /// Live objects by type; `None` where not all of the page is present.
    types: Option<[u16; 32]>,
    resident: u64,
    /// Whether slots of no known type are in it.
    is_nonsense: bool,
}

/// Looks for pages in anonymous memory that no other heap has taken.
pub(crate) fn find(space: &Space<'_>, taken: &Taken) -> Option<Found> {
    let mut pages: Vec<HeapPage> = Vec::new();
    for range in space.anonymous() {
        let region = Region::new(space, range.start, range.end);
        let mut at = range.start.next_multiple_of(SIZES[0]);
        let mut places = Vec::new();
        while at + SIZES[0] <= range.end {
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(SIZES[0]);
                continue;
            }
            if taken.end_of(at).is_none() {
                places.push(at);
            }
            at += SIZES[0];
            if places.len() >= PAGES_AT_ONCE {
                add(space, &mut pages, &mut places, range.end);
            }
        }
        add(space, &mut pages, &mut places, range.end);
    }
    if pages.len() < MIN_PAGES {
        return None;
    }
    let (mut unread, mut notes) = (0, Vec::new());
    match list::find(space, &pages) {
        Some(listed) => {
            pages.retain(|page| listed.contains(&page.structure));
            let known: BTreeSet<u64> = pages.iter().map(|page| page.structure).collect();
            let missing = listed.difference(&known);
            let mut addresses: BTreeSet<u64> = pages.iter().map(|page| page.address).collect();
            for structure in missing {
                match page_of(space, *structure) {
                    // What came since the list was read is counted once.
                    Some(page) if addresses.insert(page.address) => pages.push(page),
                    _ => unread += 1,
                }
            }
        }
        None => notes.push(
            "ruby: the interpreter's list of heap pages was not found: there may be more than these"
                .to_owned(),
        ),
    }
    for page in &mut pages {
        let region = Region::new(space, page.address, page.address + page.bytes);
        page.resident = region.present_bytes(page.address, page.address + page.bytes);
        if page.resident == page.bytes {
            count(space, page);
        }
    }
    let mut found = sum(space, &pages);
    let bytes = pages.iter().map(|page| page.bytes).max().unwrap_or_default();
    unread += pages.iter().filter(|page| page.is_nonsense).count() as u64;
    found.heap.mapped_bytes += bytes * unread;
    found.heap.unknown_bytes += bytes * unread;
    if unread > 0 {
        notes.push(format!(
            "ruby: {unread} heap pages ({} KiB) are listed, and are swapped out or make no sense",
            (bytes * unread) >> 10
        ));
    }
    found.notes = notes;
    Some(found)
}

/// The page of a structure; `None` where there is none.
fn page_of(space: &Space<'_>, structure: u64) -> Option<HeapPage> {
    let first = space.field(structure, 32)?;
    SIZES.into_iter().find_map(|bytes| {
        let address = first / bytes * bytes;
        let leads_back = space.word(address) == Some(structure);
        leads_back.then(|| page(space, structure, address, space.range_at(address)?.end))?
    })
}

/// Adds the pages at these places, which ascend and lie in a mapping that ends there.
fn add(space: &Space<'_>, pages: &mut Vec<HeapPage>, places: &mut Vec<u64>, end: u64) {
    let words = space.read_each::<8>(places);
    for (at, word) in places.drain(..).zip(words) {
        let before = pages.last().map_or(0, |page| page.address + page.bytes);
        let structure = word.map(u64::from_le_bytes).filter(|_| at >= before);
        let page = structure.and_then(|structure| page(space, structure, at, end));
        // With its places in lists.
        pages.extend(page.filter(|_| space.budget.keeps::<(HeapPage, [u64; 16])>(1)));
    }
}

/// The page at an address that leads to a structure; `None` where it makes no sense.
fn page(space: &Space<'_>, structure: u64, address: u64, end: u64) -> Option<HeapPage> {
    if !structure.is_multiple_of(8) || !space.range_at(structure)?.writable {
        return None;
    }
    let [counts, _, owner, _, fourth, fifth] = space.words(structure)?;
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
        structure,
        owner,
        first: offset,
        slot,
        slots,
        live: slots.saturating_sub(free),
        types: None,
        resident: 0,
        is_nonsense: false,
    })
}

/// Counts what is in a page by type.
fn count(space: &Space<'_>, page: &mut HeapPage) {
    let mut bytes = vec![0; page.bytes as usize];
    for _ in 0..PAGE_ATTEMPTS {
        if !space.read(page.address, &mut bytes) {
            return;
        }
        let mut types = [0u16; 32];
        page.is_nonsense = false;
        for slot in 0..page.slots {
            let at = (page.first + slot * page.slot) as usize;
            let flags = word_of(&bytes, at).unwrap_or_default();
            let kind = (flags & 31) as usize;
            if flags != 0 {
                types[kind] += 1;
                page.is_nonsense |= kind == 0 || TYPES[kind] == NO_TYPE;
            }
        }
        if !page.is_nonsense {
            page.live = types.iter().copied().map(u64::from).sum();
            page.types = Some(types);
            return;
        }
    }
}

fn sum(space: &Space<'_>, pages: &[HeapPage]) -> Found {
    let mut heap = Heap { allocator: "ruby".to_owned(), ..Heap::default() };
    let mut granules = Granules { unit: "heap page".to_owned(), ..Granules::default() };
    let (mut classes, mut held_bytes) = (BySize::default(), 0);
    let mut types = [(); 33].map(|()| Type::default());
    // Pages that make no sense are unknown, and only that.
    for page in pages.iter().filter(|page| !page.is_nonsense) {
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
            Some(own) => unread[..32].copy_from_slice(&own.map(u64::from)),
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
    let sound = pages.iter().filter(|page| !page.is_nonsense);
    granules.held = held(sound.map(|page| (page.live, page.bytes)));
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
