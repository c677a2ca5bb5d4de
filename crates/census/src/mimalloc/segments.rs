//! The segments of mimalloc 2.0 to 2.4.
//!
//! A segment is aligned to its size and describes itself: pages in use, a cookie, its slices, those of its own header,
//! its kind, the slices that are described, and an array with an entry for each slice. An entry has the slices of a
//! page at 0, its capacity at 10, the blocks that fit at 12; the rest differs, see `LAYOUTS`. What validates: slices that
//! follow each other to the segment's end, and as many pages as the segment says, which belong to a heap just where the
//! segment belongs to a thread. A cookie is the segment's address and
//! a word that all segments share: by it, a segment is known that does not validate. Segments are committed in part.
//! Source: `types.h`, `segment.c`.

use std::collections::BTreeSet;

use super::area::{Area, Blocks, FEWEST_KEYS, FLAGS, Page, Place, Read, SLICE, is_list};
use crate::{
    found::Taken,
    region::Region,
    space::{Space, word_of},
};

/// What all alignments are multiples of.
const STEP: u64 = 8 << 20;
/// Slices of one block, at most.
const MAX_SLICES: u64 = 1 << 24;
/// Bytes of the largest header without its array, and with it.
const MAX_FIXED: u64 = 376;
const MAX_HEADER: u64 = 368 + 1025 * 96;
/// What a `u32` says of blocks that are larger.
const LARGE: u64 = 1 << 31;
/// What the flags of a list say where the heap has one more block.
const IN_HEAP: u64 = 2;

/// Where a segment has what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Header {
    /// What it is aligned to, and its bytes, if it has no larger block.
    pub(super) bytes: u64,
    pub(super) used: u64,
    pub(super) cookie: u64,
    pub(super) slices: u64,
    pub(super) own: u64,
    pub(super) kind: u64,
    pub(super) entries: u64,
    /// The thread that it belongs to; 0 where that has ended.
    pub(super) thread: u64,
    pub(super) array: u64,
}

/// Where an entry has what.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) bytes: u64,
    /// Blocks in use, 32 bits, or 16 where it is wide.
    pub(super) used: u64,
    /// Bytes of a block, 64 bits or 32.
    pub(super) size: u64,
    pub(super) is_wide: bool,
    /// Lists of free blocks: those to hand out, and those that its own thread has freed.
    pub(super) free: u64,
    pub(super) local: u64,
    /// Those that other threads have freed; behind it the heap that the page belongs to.
    pub(super) freed: u64,
    /// Where links are encoded, the keys.
    pub(super) keys: Option<u64>,
}

impl Entry {
    /// Whether a segment may end with a slice that is not accessible.
    fn has_guard(&self) -> bool {
        self.keys.is_some()
    }
}

/// 2.0.0 to 2.0.2, to 2.0.7, to 2.1.7 and `CPython`, to 2.4.
const FIRST: Header = Header {
    bytes: 8 << 20,
    used: 72,
    cookie: 80,
    slices: 88,
    own: 96,
    kind: 104,
    entries: 120,
    thread: 112,
    array: 128,
};
const SECOND: Header = Header {
    bytes: 64 << 20,
    used: 312,
    cookie: 320,
    slices: 328,
    own: 336,
    kind: 344,
    entries: 360,
    thread: 352,
    array: 368,
};
const THIRD: Header = Header {
    bytes: 32 << 20,
    used: 208,
    cookie: 216,
    slices: 224,
    own: 232,
    kind: 240,
    entries: 248,
    thread: 256,
    array: 264,
};
const FOURTH: Header = Header {
    bytes: 32 << 20,
    used: 216,
    cookie: 224,
    slices: 248,
    own: 256,
    kind: 264,
    entries: 272,
    thread: 280,
    array: 288,
};
/// 2.0 and 2.1 to 2.1.2, from 2.1.4 on; then `CPython`'s without a GIL.
const NARROW: Entry = Entry {
    bytes: 80,
    used: 24,
    size: 28,
    is_wide: false,
    free: 16,
    local: 32,
    freed: 40,
    keys: None,
};
const WIDE: Entry =
    Entry { bytes: 96, used: 32, size: 40, is_wide: true, local: 24, freed: 56, ..NARROW };
const PYTHON: Entry = Entry { bytes: 96, ..NARROW };
/// The same with encoded links.
const SECURE_OLD: Entry =
    Entry { bytes: 96, used: 40, size: 44, local: 48, freed: 56, keys: Some(24), ..NARROW };
const SECURE: Entry = Entry { bytes: 96, freed: 56, keys: Some(40), ..NARROW };
const SECURE_WIDE: Entry = Entry { bytes: 112, freed: 72, keys: Some(56), ..WIDE };

/// What is known. At most one validates.
pub(super) const LAYOUTS: [(Header, Entry); 11] = [
    (FIRST, NARROW),
    (FIRST, SECURE_OLD),
    (SECOND, NARROW),
    (SECOND, SECURE_OLD),
    (THIRD, NARROW),
    (THIRD, SECURE),
    (THIRD, PYTHON),
    (THIRD, WIDE),
    (THIRD, SECURE_WIDE),
    (FOURTH, WIDE),
    (FOURTH, SECURE_WIDE),
];

/// Adds the segments of anonymous memory that no other heap has taken.
pub(super) fn find(space: &Space<'_>, taken: &Taken, read: &mut Read) {
    let (mut known, mut others) = (BTreeSet::new(), Vec::new());
    for range in space.anonymous() {
        let region = Region::new(space, range.start, range.end);
        let mut at = range.start.next_multiple_of(STEP);
        while at < range.end {
            // What a segment says of itself is in its first page.
            if !region.is_present(at) {
                at = region.next_present(at).next_multiple_of(STEP);
                continue;
            }
            let mut next = STEP;
            if taken.end_of(at).is_none() {
                match segment(space, at) {
                    Some((area, header, key)) => {
                        // Where there is no room for them, nothing more is read.
                        space.budget.keeps::<Page>(area.pages.len() + 4);
                        next = area.bytes.next_multiple_of(STEP);
                        known.insert((header, key));
                        read.areas.push(area);
                    }
                    None => others.push(at),
                }
            }
            at = at.saturating_add(next);
        }
    }
    let mut end = 0;
    for at in others {
        let is_one = |(header, key): &&(Header, u64)| {
            let cookie = space.field(at, header.cookie);
            at.is_multiple_of(header.bytes) && cookie.is_some_and(|cookie| cookie ^ at == *key)
        };
        let Some((header, _)) = known.iter().find(is_one).filter(|_| at >= end) else { continue };
        if !space.budget.reads(0, 1 + read.areas.len() as u64 / 64) {
            break;
        }
        // Up to the next one that validates.
        let next = read.areas.iter().map(|area| area.address).filter(|start| *start > at).min();
        end = at.saturating_add(header.bytes).min(next.unwrap_or(u64::MAX));
        let mapped = space.range_at(at).map_or(at, |range| range.end);
        end = if space.is_anonymous(at, end) { end } else { mapped.min(end) };
        read.areas.push(Area::unknown(at, end));
    }
}

/// The segment at an address, how it is laid out, and what its cookie shares with others; `None` where there is none, or
/// where more than one layout makes sense.
fn segment(space: &Space<'_>, address: u64) -> Option<(Area, Header, u64)> {
    let mut region = Region::new(space, address, address.checked_add(MAX_HEADER)?);
    let fixed = bytes(&mut region, address, MAX_FIXED);
    let mut sane = LAYOUTS.iter().filter(|layout| fields(space, &fixed, address, layout).is_some());
    sane.next()?;
    // Descriptions of slices that were never used are not present: they are zero.
    let all = bytes(&mut region, address, MAX_HEADER);
    let mut found = LAYOUTS.iter().filter_map(|layout| {
        let (header, entry) = layout;
        let fields = fields(space, &all, address, layout)?;
        let array = all.get(usize::try_from(header.array).ok()?..)?;
        let area = slices_of(space, array, (header, entry), (address, &fields))?;
        let key = word_of(&all, header.cookie as usize)? ^ address;
        // What is unknown here is a page.
        let pages = area.pages.len() + area.unknown.len();
        (pages as u64 == fields.used).then_some((area, *header, key))
    });
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// What a segment says of itself.
struct Fields {
    /// Pages in use, slices, those that are described, and those of the header.
    used: u64,
    slices: u64,
    entries: u64,
    own: u64,
    has_thread: bool,
}

/// The fields of a header; `None` where they make no sense.
fn fields(
    space: &Space<'_>,
    bytes: &[u8],
    address: u64,
    (header, entry): &(Header, Entry),
) -> Option<Fields> {
    let word = |at: u64| word_of(bytes, at as usize);
    let (used, slices, own) = (word(header.used)?, word(header.slices)?, word(header.own)?);
    let (kind, entries) = (word(header.kind)? & 0xffff_ffff, word(header.entries)?);
    let whole = header.bytes / SLICE;
    let described = |entries: u64| entries == whole || (entry.has_guard() && entries + 1 == whole);
    let is_sane = address.is_multiple_of(header.bytes)
        && (1..=whole).contains(&entries)
        && (entries..MAX_SLICES).contains(&slices)
        && (kind == 1 || (kind == 0 && slices == whole && described(entries)))
        && (1..=entries).contains(&own)
        && word(header.cookie)? != 0
        && used <= entries;
    let end = address.checked_add(slices.checked_mul(SLICE)?)?;
    let has_thread = word(header.thread)? != 0;
    let fields = Fields { used, slices, entries, own, has_thread };
    (is_sane && space.is_anonymous(address, end)).then_some(fields)
}

/// The header of a segment, as far as it is present.
fn bytes(region: &mut Region<'_>, address: u64, most: u64) -> Vec<u8> {
    let mut header = Vec::with_capacity(most as usize);
    for at in (address..address + most).step_by(8) {
        header.extend(region.word(at).unwrap_or_default().to_le_bytes());
    }
    header
}

/// The pages of a segment, from the descriptions of its slices, of which the first are its own.
fn slices_of(
    space: &Space<'_>,
    array: &[u8],
    (header, entry): (&Header, &Entry),
    (address, fields): (u64, &Fields),
) -> Option<Area> {
    let Fields { slices, entries, own, has_thread, .. } = *fields;
    let mut area = Area { address, bytes: slices * SLICE, ..Area::default() };
    let mut slice = 0;
    while slice < entries {
        let part = array.get((slice * entry.bytes) as usize..)?;
        let counts = word_of(part, 0)?;
        let count = counts & 0xffff_ffff;
        if count == 0 || counts >> 32 != 0 || slice + count > slices {
            return None;
        }
        let (at, bytes) = (address + slice * SLICE, count * SLICE);
        if slice == 0 {
            (count == own).then_some(())?;
            area.own.push((at, at + bytes));
        } else {
            let own = address + header.array + slice * entry.bytes;
            match page(part, entry, own, (at, bytes))? {
                Slices::Page(page) => {
                    let heap = word_of(part, (entry.freed + 8) as usize)?;
                    if is_heap(space, heap, &page) && (heap != 0) == has_thread {
                        area.pages.push(page);
                    } else {
                        area.unknown.push((page.address, page.end()));
                    }
                }
                Slices::Free => area.free.push((at, at + bytes)),
            }
        }
        slice += count;
    }
    if entry.has_guard() && slice + 1 == slices {
        area.own.push((address + slice * SLICE, area.end()));
        slice += 1;
    }
    (slice == slices).then_some(area)
}

/// Whether a page may belong to the heap at an address, or to none.
fn is_heap(space: &Space<'_>, heap: u64, page: &Page) -> bool {
    let is_inside = (page.address..page.end()).contains(&heap);
    heap.is_multiple_of(8) && !is_inside && (heap == 0 || space.range_at(heap).is_some())
}

/// What slices are that follow each other.
enum Slices {
    Page(Page),
    Free,
}

/// The page that the entry at `own` describes, or that its slices are free; `None` where it makes no sense.
fn page(part: &[u8], entry: &Entry, own: u64, (address, bytes): (u64, u64)) -> Option<Slices> {
    let word = |at: u64| word_of(part, at as usize);
    let half = |at: u64| word(at / 8 * 8).map(|word| word >> (at % 8 * 8) & 0xffff_ffff);
    let blocks = word(8)?;
    let (capacity, reserved) = (blocks >> 16 & 0xffff, blocks >> 32 & 0xffff);
    let used = half(entry.used)? & if entry.is_wide { 0xffff } else { 0xffff_ffff };
    let size = if entry.is_wide { word(entry.size)? } else { half(entry.size)? };
    if size == 0 {
        return (used == 0).then_some(Slices::Free);
    }
    // What is larger than 32 bits can say, fills its page.
    let is_large = !entry.is_wide && reserved == 1 && size >= LARGE;
    let size = if is_large { bytes } else { size };
    let freed = word(entry.freed)?;
    let keys = match entry.keys {
        Some(at) => {
            let [first, second] = [word(at)?, word(at + 8)?];
            (first > FEWEST_KEYS && second > FEWEST_KEYS).then_some(())?;
            // The last link says where the entry is.
            Some([first, second, own])
        }
        None => None,
    };
    let is_page = used <= capacity
        && capacity <= reserved
        && (size == bytes || size.is_multiple_of(8))
        && is_list(freed, address, address + bytes)
        && reserved.checked_mul(size).is_some_and(|all| all <= bytes);
    // The first block that another thread frees goes to the heap; the page says so until the heap has taken it back.
    let waiting = u64::from(freed & FLAGS == IN_HEAP);
    let places = [
        Place::new(own + entry.used, if entry.is_wide { 16 } else { 32 }),
        Place::new(own + 10, 16),
        Place::new(own + entry.free, 64),
        Place::new(own + entry.local, 64),
    ];
    let blocks = Blocks { capacity, heads: [word(entry.free)?, word(entry.local)?], places };
    let page = Page { address, bytes, size, reserved, used, freed, waiting, keys, blocks };
    is_page.then_some(Slices::Page(page))
}
