//! The address space of a process as walkers see it.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use crate::{
    huge::Huge,
    model::MapCell,
    present::{Numbered, Present},
};

/// Bytes of a page.
pub(crate) const PAGE: u64 = 4096;
/// Bytes of a mapping that is looked at, at most: reservations, shadow memory and the like are larger.
const MOST_MAPPED: u64 = 256 << 30;
/// Bytes of all of them.
const MOST_IN_ALL: u64 = 1 << 40;
/// Where it costs time to find that pages are not present, mapped bytes for each one of a mapping that is resident, …
const SPARSENESS: u64 = 8;
/// … and bytes of all mappings that are larger.
const MOST_SPARSE: u64 = 4 << 30;
/// Bytes of which it is asked at once which pages are present, how often that is remembered, and where addresses end.
const CHECKED: u64 = 2 << 20;
const MOST_CHECKED: usize = 1024;
const END: u64 = (1 << 47) - PAGE;
/// Bytes by which `[heap]` can grow while a process is read, at most.
const MOST_GROWN: u64 = 1 << 30;
/// Structures that are read at once: as many parts as the kernel takes.
const AT_ONCE: usize = 1024;
/// Bytes of data that are kept.
const MOST_DATA: usize = 8 << 20;
/// Bytes between structures that are read at once with them.
const GAP: u64 = 1 << 10;
/// Bytes that a [`Region`] reads at once, and where it reads little.
const WINDOW: u64 = 256 << 10;
const NARROW: u64 = 4 * PAGE;

/// Memory of a process, or of a test.
pub(crate) trait Memory {
    /// Fills `bytes` from `address` on; whether all of them could be read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool;

    /// Fills `bytes` with as many from each of these addresses, which divide it evenly; how many of them could be read
    /// before one that could not.
    fn read_each(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        let each = bytes.len() / addresses.len().max(1);
        let mut parts = addresses.iter().zip(bytes.chunks_exact_mut(each.max(1)));
        parts.position(|(at, part)| !self.read(*at, part)).unwrap_or(addresses.len())
    }

    /// The pages from `start` to `end` that are present. Others are not to be read.
    fn present(&self, start: u64, end: u64) -> Present;

    /// The pages from `start` to `end` that are parts of huge pages; `None` where that is not known.
    fn huge(&self, _start: u64, _end: u64) -> Option<Present> {
        None
    }

    /// Whether all pages from `start` to `end` are guard pages, which fault; `None` where that is not known.
    fn guarded(&self, _start: u64, _end: u64) -> Option<bool> {
        None
    }

    /// Whether [`Memory::present`] costs nothing where nothing is present.
    fn skips_holes(&self) -> bool {
        true
    }

    /// Fills `bytes` with what the mapped file has there; whether it could be read. The process takes no part.
    fn read_file(&self, _address: u64, _bytes: &mut [u8]) -> bool {
        false
    }

    /// The mangled name of the class whose vtable has this address, by its symbol.
    fn vtable(&self, _address: u64) -> Option<String> {
        None
    }
}

/// What a range is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeKind {
    /// `[heap]`: what `brk` moves.
    Heap,
    /// Anonymous memory.
    Anonymous,
    /// `[stack]`: that of the first thread.
    Stack,
    /// A mapped file.
    File,
    /// Shared memory without a file on disk.
    Shared,
}

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: RangeKind,
    pub(crate) writable: bool,
    /// Resident bytes.
    pub(crate) rss: u64,
    /// Swapped bytes.
    pub(crate) swap: u64,
    /// Resident bytes in transparent huge pages.
    pub(crate) huge: u64,
    /// Of the resident bytes, those in huge pages of hugetlbfs.
    pub(crate) hugetlb: u64,
}

/// Bytes, with their addresses.
pub(crate) type DataPieces = Rc<Vec<(u64, Vec<u8>)>>;

/// Data of mapped files that was read to be searched, by its bounds.
#[derive(Default)]
struct Data {
    pieces: HashMap<(u64, u64), DataPieces>,
    /// Bytes of all of it.
    bytes: usize,
}

/// Mappings in ascending order, and the memory.
pub(crate) struct Space<'a> {
    pub(crate) ranges: Vec<Range>,
    memory: &'a dyn Memory,
    read_bytes: Cell<u64>,
    /// Bytes of mappings that are not looked at, though something is in them.
    too_large: u64,
    /// Which pages were present when it was asked, by address.
    checked: RefCell<HashMap<u64, Present>>,
    data: RefCell<Data>,
    /// Huge pages, once they were asked for.
    pub(crate) huge: RefCell<Huge>,
    /// Whether each granule is noted.
    pub(crate) wants_map: bool,
}

impl<'a> Space<'a> {
    pub(crate) fn new(mut ranges: Vec<Range>, memory: &'a dyn Memory) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let (mut left, mut too_large) = (MOST_IN_ALL, 0u64);
        let mut sparse = if memory.skips_holes() { u64::MAX } else { MOST_SPARSE };
        for range in &mut ranges {
            let is_heap = matches!(range.kind, RangeKind::Heap | RangeKind::Anonymous);
            let bytes = range.end - range.start;
            if !is_heap {
                continue;
            }
            let cost = if bytes > range.rss.saturating_mul(SPARSENESS) { bytes } else { 0 };
            if range.rss > 0 && bytes <= MOST_MAPPED.min(left) && cost <= sparse {
                (left, sparse) = (left - bytes, sparse - cost);
                continue;
            }
            if range.rss > 0 && range.writable {
                too_large = too_large.saturating_add(bytes);
            }
            (range.kind, range.writable) = (RangeKind::Anonymous, false);
        }
        Self {
            ranges,
            memory,
            read_bytes: Cell::new(0),
            too_large,
            checked: RefCell::default(),
            data: RefCell::default(),
            huge: RefCell::default(),
            wants_map: false,
        }
    }

    /// Notes a granule, with its live objects and their bytes: for the map, and for huge pages.
    pub(crate) fn note_granule(
        &self,
        map: &mut Vec<MapCell>,
        address: u64,
        bytes: u64,
        (objects, live_bytes): (u64, u64),
    ) {
        if objects > 0 {
            self.huge.borrow_mut().hold(address, bytes);
        }
        if self.wants_map {
            map.push(MapCell { address, granules: 1, bytes, objects, live_bytes });
        }
    }

    /// Finds which pages of anonymous memory are huge, where there are any; whether that is known of all of them.
    pub(crate) fn find_huge(&mut self) -> bool {
        let anonymous =
            |range: &&Range| matches!(range.kind, RangeKind::Heap | RangeKind::Anonymous);
        let mut pages = Present::default();
        for range in self.ranges.iter().filter(anonymous).filter(|range| range.huge > 0) {
            let Some(found) = self.memory.huge(range.start, range.end) else { return false };
            pages.append(found);
        }
        self.huge = RefCell::new(Huge::of(pages));
        true
    }

    /// Whether all pages between two addresses are guard pages; `None` where that is not known.
    pub(crate) fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        self.memory.guarded(start, end)
    }

    /// What is not looked at, in a sentence.
    pub(crate) fn note(&self) -> Option<String> {
        (self.too_large > 0)
            .then(|| format!("{} GiB of mappings were not read: too large", self.too_large >> 30))
    }

    /// Bytes that were read so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.read_bytes.get()
    }

    /// The mapping that an address lies in.
    pub(crate) fn range_at(&self, address: u64) -> Option<&Range> {
        let next = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(next.checked_sub(1)?)?;
        (address < range.end).then_some(range)
    }

    /// The end of the mapping that an address lies in. What `brk` moves may have grown since the mappings were read: what
    /// is present behind it, up to the next mapping, is its.
    pub(crate) fn mapped_end(&self, address: u64) -> Option<u64> {
        let next = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(next.checked_sub(1)?)?;
        if address < range.end {
            return Some(range.end);
        }
        let most = range.end.saturating_add(MOST_GROWN).min(END);
        let end = self.ranges.get(next).map_or(most, |next| next.start.min(most));
        (range.kind == RangeKind::Heap && address < end).then_some(end)
    }

    /// Writable anonymous memory: heaps lie there. Without what is empty, or too large to be looked at.
    pub(crate) fn anonymous(&self) -> impl Iterator<Item = &Range> {
        let wanted = |range: &&Range| range.writable && range.kind == RangeKind::Anonymous;
        self.ranges.iter().filter(wanted)
    }

    /// Writable data of mapped files, and what follows it without a file (.bss).
    pub(crate) fn data(&self) -> impl Iterator<Item = (u64, u64)> {
        let before = std::iter::once(None).chain(self.ranges.iter().map(Some));
        let is_data = |(before, range): &(Option<&Range>, &Range)| {
            let is_bss = range.kind == RangeKind::Anonymous
                && before.is_some_and(|one| one.kind == RangeKind::File && one.end == range.start);
            range.writable && (range.kind == RangeKind::File || is_bss)
        };
        before.zip(&self.ranges).filter(is_data).map(|(_, range)| (range.start, range.end))
    }

    /// What `read` has read between two addresses, or had when it was asked first.
    pub(crate) fn data_once(
        &self,
        bounds: (u64, u64),
        read: impl FnOnce() -> Vec<(u64, Vec<u8>)>,
    ) -> DataPieces {
        if let Some(known) = self.data.borrow().pieces.get(&bounds) {
            return Rc::clone(known);
        }
        let pieces = Rc::new(read());
        let bytes: usize = pieces.iter().map(|(_, piece)| piece.len()).sum();
        let mut data = self.data.borrow_mut();
        if data.bytes + bytes <= MOST_DATA {
            data.bytes += bytes;
            data.pieces.insert(bounds, Rc::clone(&pieces));
        }
        pieces
    }

    /// Reads memory of one mapping, if all of it is present: else the process would get pages that it has not.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(bytes.len() as u64) else { return false };
        let is_mapped = self.mapped_end(address).is_some_and(|mapped| end <= mapped);
        if !is_mapped || !self.is_present(address, end) {
            return false;
        }
        self.read_bytes.set(self.read_bytes.get() + bytes.len() as u64);
        self.memory.read(address, bytes)
    }

    /// So many bytes at each of these addresses, where all of them are present and can be read: a few requests for many
    /// structures.
    pub(crate) fn read_each<const N: usize>(&self, addresses: &[u64]) -> Vec<Option<[u8; N]>> {
        self.read_each_if(addresses, |start, end| self.is_present(start, end))
    }

    /// As [`Space::read_each`] for addresses that are guesses: of pages that were not present it is not asked again.
    pub(crate) fn guess_each<const N: usize>(&self, addresses: &[u64]) -> Vec<Option<[u8; N]>> {
        self.read_each_if(addresses, |start, end| self.was_present(start, end))
    }

    /// As [`Space::read_each`] for ascending addresses: what lies close together is read at once.
    pub(crate) fn read_near<const N: usize>(&self, addresses: &[u64]) -> Vec<Option<[u8; N]>> {
        let mut found = vec![None; addresses.len()];
        let (mut bytes, mut apart, mut start) = (Vec::new(), Vec::new(), 0);
        while let Some(first) = addresses.get(start) {
            let mut end = first.saturating_add(N as u64);
            let is_near = |at: &&u64| {
                let near = **at <= end.saturating_add(GAP) && at.saturating_sub(*first) <= WINDOW;
                end = end.max(at.saturating_add(N as u64));
                near
            };
            let near: Vec<u64> = addresses[start..].iter().take_while(is_near).copied().collect();
            let last = near.last().unwrap_or(first).saturating_add(N as u64);
            bytes.resize(last.saturating_sub(*first) as usize, 0);
            if near.len() > 1 && self.read(*first, &mut bytes) {
                for (at, found) in near.iter().zip(&mut found[start..]) {
                    let offset = at.saturating_sub(*first) as usize;
                    *found = bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>().copied());
                }
            } else {
                apart.extend(start..start + near.len());
            }
            start += near.len().max(1);
        }
        let places: Vec<u64> = apart.iter().map(|index| addresses[*index]).collect();
        for (index, bytes) in apart.into_iter().zip(self.read_each::<N>(&places)) {
            found[index] = bytes;
        }
        found
    }

    fn read_each_if<const N: usize>(
        &self,
        addresses: &[u64],
        is_present: impl Fn(u64, u64) -> bool,
    ) -> Vec<Option<[u8; N]>> {
        let mut found = vec![None; addresses.len()];
        let mut wanted: Vec<usize> = (0..addresses.len()).collect();
        wanted.retain(|index| {
            let at = addresses[*index];
            let end = at.saturating_add(N as u64);
            self.range_at(at).is_some_and(|range| end <= range.end) && is_present(at, end)
        });
        let mut left = wanted.as_slice();
        let (mut places, mut bytes) = (Vec::new(), Vec::new());
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(AT_ONCE));
            places.clear();
            places.extend(now.iter().map(|index| addresses[*index]));
            bytes.resize(now.len() * N, 0);
            let read = self.memory.read_each(&places, &mut bytes).min(now.len());
            self.read_bytes.set(self.read_bytes.get() + (read * N) as u64);
            for (index, part) in now.iter().zip(bytes.as_chunks::<N>().0).take(read) {
                found[*index] = Some(*part);
            }
            // What cannot be read is passed over.
            left = if read == now.len() { later } else { &left[read + 1..] };
        }
        found
    }

    /// Words at addresses whose pages were read a moment ago; how many of them could be read before one that could not.
    pub(crate) fn words_again(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        self.read_bytes.set(self.read_bytes.get() + bytes.len() as u64);
        self.memory.read_each(addresses, bytes)
    }

    /// Reads from the file that is mapped there: for constants whose page need not be present.
    pub(crate) fn read_file(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.memory.read_file(address, bytes)
    }

    fn is_present(&self, start: u64, end: u64) -> bool {
        self.all_present(start, end, |known, page| {
            // The process may have got it since, or the kernel moved it then.
            let is_present = self.memory.present(page, page + PAGE).contains(page);
            if is_present {
                known.insert(page);
            }
            is_present
        })
    }

    /// Whether all pages were present when it was asked first.
    fn was_present(&self, start: u64, end: u64) -> bool {
        self.all_present(start, end, |_, _| false)
    }

    /// Whether all pages are present; `again` is asked for those that were not.
    fn all_present(&self, start: u64, end: u64, again: impl Fn(&mut Present, u64) -> bool) -> bool {
        let mut checked = self.checked.borrow_mut();
        let mut pages = (start / PAGE..end.div_ceil(PAGE)).map(|page| page * PAGE);
        pages.all(|page| {
            let first = page / CHECKED * CHECKED;
            if checked.len() >= MOST_CHECKED && !checked.contains_key(&first) {
                checked.clear();
            }
            let ask = || self.memory.present(first, first.saturating_add(CHECKED).min(END));
            let known = checked.entry(first).or_insert_with(ask);
            known.contains(page) || again(known, page)
        })
    }

    /// Fills `bytes` from constants of a mapped file, to the end of their mapping at most; how many there are. No page is
    /// touched that is not present.
    pub(crate) fn read_constant(&self, address: u64, bytes: &mut [u8]) -> usize {
        let Some(range) = self.range_at(address) else { return 0 };
        let Ok(room) = usize::try_from(range.end - address) else { return 0 };
        let length = bytes.len().min(room);
        let bytes = &mut bytes[..length];
        let is_read =
            self.read(address, bytes) || (!range.writable && self.memory.read_file(address, bytes));
        if is_read { length } else { 0 }
    }

    /// The mangled name of the class whose vtable has this address, by its symbol.
    pub(crate) fn vtable(&self, address: u64) -> Option<String> {
        self.memory.vtable(address)
    }

    /// The word of a structure at an offset. Addresses of structures come from the process and may be anything.
    pub(crate) fn field(&self, structure: u64, offset: u64) -> Option<u64> {
        self.word(structure.checked_add(offset)?)
    }

    pub(crate) fn word(&self, address: u64) -> Option<u64> {
        self.words(address).map(|[word]| word)
    }

    /// Several words in a row.
    pub(crate) fn words<const N: usize>(&self, address: u64) -> Option<[u64; N]> {
        words_by(|bytes| self.read(address, bytes))
    }

    /// A part of the address space to read through, with the pages that are present now.
    pub(crate) fn region(&self, start: u64, end: u64) -> Region<'_> {
        let first = start / PAGE * PAGE;
        let present = self.memory.present(first, end.next_multiple_of(PAGE));
        Region {
            space: self,
            first,
            end,
            present,
            window: Vec::new(),
            window_at: 0,
            filled: 0,
            most: WINDOW,
            widest: WINDOW,
            loads: 0,
        }
    }
}

/// Several little-endian words in a row, of bytes that `read` fills; `None` where it cannot.
pub(crate) fn words_by<const N: usize>(read: impl FnOnce(&mut [u8]) -> bool) -> Option<[u64; N]> {
    let mut bytes = [[0; 8]; N];
    read(bytes.as_flattened_mut()).then(|| bytes.map(u64::from_le_bytes))
}

/// The little-endian word at an offset.
pub(crate) fn word_of(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// A part of an address space that is read from its begin to its end. Pages that are not present are not read.
pub(crate) struct Region<'a> {
    space: &'a Space<'a>,
    first: u64,
    end: u64,
    present: Present,
    window: Vec<u8>,
    window_at: u64,
    /// Bytes of the window that were read.
    filled: usize,
    /// Bytes of the next window, at most: few behind a page that cannot be read.
    most: u64,
    /// Bytes of any window, at most.
    widest: u64,
    /// Windows that were read.
    loads: u64,
}

impl Region<'_> {
    /// Whether it goes from the one address to the other.
    pub(crate) fn holds(&self, start: u64, end: u64) -> bool {
        self.first <= start && end <= self.end
    }

    /// Whether the page of an address is present.
    pub(crate) fn is_present(&self, address: u64) -> bool {
        self.present.contains(address)
    }

    /// The first address from this one on whose page is present; the end of the region where there is none.
    pub(crate) fn next_present(&self, address: u64) -> u64 {
        self.present.next(address).map_or(self.end, |page| page.max(address))
    }

    /// Bytes of the pages that are present between two page boundaries.
    pub(crate) fn present_bytes(&self, start: u64, end: u64) -> u64 {
        self.present.bytes(start, end)
    }

    /// The pages that are present, with numbers.
    pub(crate) fn pages(&self) -> Numbered {
        Numbered::new(self.present.clone())
    }

    /// The word at an address that is a multiple of eight; `None` where its page is not present, or cannot be read.
    pub(crate) fn word(&mut self, address: u64) -> Option<u64> {
        let in_window = |at: u64, len: usize| {
            let fits = |offset: &u64| offset.saturating_add(8) <= len as u64;
            address.checked_sub(at).filter(fits)
        };
        if in_window(self.window_at, self.filled).is_none() {
            self.load(address)?;
        }
        let offset = in_window(self.window_at, self.filled)?;
        word_of(&self.window, usize::try_from(offset).ok()?)
    }

    /// Asks again whether the page of an address is present: while the kernel moves a page, it is not.
    pub(crate) fn ask_again(&mut self, address: u64) {
        let page = address / PAGE * PAGE;
        let is_inside = (self.first..self.end).contains(&page) && !self.is_present(page);
        if is_inside && self.space.memory.present(page, page + PAGE).contains(page) {
            self.present.insert(page);
            self.space.checked.borrow_mut().remove(&(page / CHECKED * CHECKED));
        }
    }

    /// Forgets what was read, so that it is read again.
    pub(crate) fn refresh(&mut self) {
        self.filled = 0;
    }

    /// Forgets what was read, and reads little at once until [`Region::widen`].
    pub(crate) fn narrow(&mut self) {
        (self.filled, self.most, self.widest) = (0, NARROW, NARROW);
    }

    /// Reads little the next time: what is far away is read next.
    pub(crate) fn skim(&mut self) {
        self.most = NARROW;
    }

    /// Reads more at once again.
    pub(crate) fn widen(&mut self) {
        self.widest = WINDOW;
    }

    /// How often it has read so far: what was read at once was there at one time.
    pub(crate) fn loads(&self) -> u64 {
        self.loads
    }

    /// Gives back the memory of what was read.
    pub(crate) fn release(&mut self) {
        (self.window, self.filled) = (Vec::new(), 0);
    }

    fn load(&mut self, address: u64) -> Option<()> {
        if address < self.first || address.checked_add(8)? > self.end {
            return None;
        }
        let start = address / PAGE * PAGE;
        let mapped = self.space.mapped_end(start)?;
        let most = self.end.min(mapped).min(start + self.most);
        let mut end = start;
        while end < most && self.is_present(end) {
            end += PAGE;
        }
        let end = end.min(self.end);
        let bytes = usize::try_from(end - start).ok()?;
        if self.window.len() < bytes {
            self.window.resize(bytes, 0);
        }
        (self.window_at, self.filled) = (start, 0);
        if bytes == 0 {
            return None;
        }
        if self.space.read(start, &mut self.window[..bytes]) {
            self.filled = bytes;
            self.most = self.widest.min(self.most * 2);
            self.loads += 1;
            return Some(());
        }
        if self.most > PAGE {
            self.most = PAGE;
            return self.load(address);
        }
        // What cannot be read is as good as absent, and is not tried again.
        self.present.remove(start);
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{Pieces, anonymous};

    /// A region that mappings share is read in all of them; a page that cannot be read costs no more than two pages.
    #[test]
    fn unreadable_pages() {
        let (at, pages) = (0x7f00_0000_0000, 256);
        let mut memory = Pieces::default();
        for page in (0..pages).filter(|page| page % 2 == 0) {
            memory.pieces.push((at + page * PAGE, vec![1; PAGE as usize]));
        }
        let ranges = (0..4).map(|part| anonymous(at + part * 64 * PAGE, 64 * PAGE));
        let space = Space::new(ranges.collect(), &memory);
        let mut region = space.region(at, at + pages * PAGE);
        let words = (at..at + pages * PAGE).step_by(16).filter_map(|at| region.word(at)).count();
        assert_eq!(words as u64, pages / 2 * PAGE / 16);
        assert!(space.read_bytes() <= 4 * pages * PAGE + 4 * WINDOW, "{}", space.read_bytes());
    }

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

    /// Memory whose pages are present when they are asked for a second time.
    struct Moved(Pieces, Cell<u32>);

    impl Memory for Moved {
        fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
            self.0.read(address, bytes)
        }

        fn present(&self, start: u64, end: u64) -> Present {
            self.1.set(self.1.get() + 1);
            if self.1.get() == 1 { Present::default() } else { self.0.present(start, end) }
        }
    }

    /// A page that was on the move is read when it is asked for again; one that is absent stays so.
    #[test]
    fn moved_pages() {
        let at = 0x7f00_0000_0000;
        let mut memory = Pieces::default();
        memory.pieces.push((at, vec![1; 2 * PAGE as usize]));
        memory.absent.push(at + PAGE);
        let memory = Moved(memory, Cell::new(0));
        let space = Space::new(vec![anonymous(at, 2 * PAGE)], &memory);
        let mut region = space.region(at, at + 2 * PAGE);
        assert_eq!(region.word(at), None);
        for page in [at, at + PAGE, at + 2 * PAGE] {
            region.ask_again(page);
        }
        assert_eq!(region.word(at), Some(0x0101_0101_0101_0101));
        assert_eq!((region.word(at + PAGE), region.present_bytes(at, at + 2 * PAGE)), (None, PAGE));
    }

    /// What is larger than any heap, or empty, is not looked at.
    #[test]
    fn reservations() {
        let memory = Pieces::default();
        let empty = Range { rss: 0, ..anonymous(1 << 20, PAGE) };
        let heap = Range { kind: RangeKind::Heap, ..anonymous(1 << 40, MOST_MAPPED + PAGE) };
        let many = (1..8).map(|at| anonymous(at << 42, MOST_MAPPED));
        let ranges = [empty, heap, anonymous(2 << 20, PAGE)].into_iter().chain(many);
        let space = Space::new(ranges.collect(), &memory);
        assert_eq!(space.anonymous().count(), 1 + 3);
        assert!(space.ranges.iter().all(|range| range.kind == RangeKind::Anonymous));
        assert!(
            space.note().is_some_and(|note| note.starts_with("1280 GiB")),
            "{:?}",
            space.note()
        );
    }

    /// Where holes cost time, what is mapped is looked at as far as it is resident, and a little more.
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
}
