//! The address space of a process as walkers see it.

use std::{cell::RefCell, collections::HashMap, rc::Rc};

use crate::{budget::Budget, huge::Huge, model::MapCell, present::Present};
pub(crate) use crate::{
    memory::{Memory, Range, RangeKind},
    present::PAGE,
};

/// Bytes of a mapping that is read, at most: reservations, shadow memory and the like are larger.
const MAX_MAPPING_BYTES: u64 = 256 << 30;
/// Bytes of all of them.
const MAX_MAPPED_BYTES: u64 = 1 << 40;
/// Where it costs time to find that pages are not present, mapped bytes for each one of a mapping that is resident, …
const MAX_MAPPED_PER_RESIDENT: u64 = 8;
/// … and bytes of all mappings that are larger.
const MAX_SPARSE_BYTES: u64 = 4 << 30;
/// Bytes of which it is asked at once which pages are present, how often that is remembered, and where addresses end.
const CHECKED_BYTES: u64 = 2 << 20;
const MAX_CHECKED_BLOCKS: usize = 1024;
const ADDRESS_END: u64 = (1 << 47) - PAGE;
/// Bytes by which `[heap]` can grow while a process is read, at most.
const MAX_GROWN_BYTES: u64 = 1 << 30;
/// Structures that are read at once: as many parts as the kernel takes.
const PARTS_AT_ONCE: usize = 1024;
/// Mappings that one stretch of memory consists of, at most: huge pages are advised of parts.
const MAX_TOUCHING: usize = 4096;
/// Bytes of data that are kept.
const MAX_DATA_BYTES: usize = 8 << 20;
/// Bytes between structures that are read at once with them.
const MAX_GAP_BYTES: u64 = 1 << 10;
/// Bytes of structures that are read at once with those between them, at most.
const MAX_NEAR_BYTES: u64 = 256 << 10;

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
    /// What may be read, and kept of it.
    pub(crate) budget: Budget,
    /// Bytes of mappings that are not read, though something is in them.
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
    /// With what a process of this size may take.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn new(ranges: Vec<Range>, memory: &'a dyn Memory) -> Self {
        let bounds = crate::budget::Bounds::of(resident(&ranges));
        Self::within(ranges, memory, Budget::new(bounds, None))
    }

    pub(crate) fn within(mut ranges: Vec<Range>, memory: &'a dyn Memory, budget: Budget) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_unstable_by_key(|range| range.start);
        let (mut left, mut too_large) = (MAX_MAPPED_BYTES, 0u64);
        let mut sparse = if memory.skips_holes() { u64::MAX } else { MAX_SPARSE_BYTES };
        for range in &mut ranges {
            if !range.kind.may_be_heap() {
                continue;
            }
            let bytes = range.end - range.start;
            let cost =
                if bytes > range.rss.saturating_mul(MAX_MAPPED_PER_RESIDENT) { bytes } else { 0 };
            if range.rss > 0 && bytes <= MAX_MAPPING_BYTES.min(left) && cost <= sparse {
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
            budget,
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
        if self.wants_map && self.budget.keeps::<MapCell>(1) {
            map.push(MapCell { address, granules: 1, bytes, objects, live_bytes });
        }
    }

    /// Finds which pages of anonymous memory are huge, where there are any; whether that is known of all of them.
    pub(crate) fn find_huge(&mut self) -> bool {
        let mut pages = Present::default();
        let ranges = self.ranges.iter().filter(|range| range.kind.may_be_heap() && range.huge > 0);
        for range in ranges {
            let Some(found) = self.memory.huge(range.start, range.end) else { return false };
            pages.append(found);
        }
        self.huge = RefCell::new(Huge::of(pages));
        true
    }

    /// Whether all pages between two addresses are guard pages; `None` where that is not known.
    pub(crate) fn guarded(&self, start: u64, end: u64) -> Option<bool> {
        if self.budget.reads(0, 1) { self.memory.guarded(start, end) } else { None }
    }

    /// What is not read, in a sentence.
    pub(crate) fn note(&self) -> Option<String> {
        (self.too_large > 0)
            .then(|| format!("{} GiB of mappings were not read: too large", self.too_large >> 30))
    }

    /// Bytes that were read so far.
    pub(crate) fn read_bytes(&self) -> u64 {
        self.budget.read_bytes()
    }

    /// The mapping that an address lies in.
    pub(crate) fn range_at(&self, address: u64) -> Option<&Range> {
        let next = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(next.checked_sub(1)?)?;
        (address < range.end).then_some(range)
    }

    /// The mappings in which heaps may be.
    pub(crate) fn heaps(&self) -> impl Iterator<Item = &Range> {
        self.ranges.iter().filter(|range| range.is_heap())
    }

    /// Whether all between two addresses is mapped anonymously, in mappings that touch each other; accessible or not.
    pub(crate) fn is_anonymous(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        for _ in 0..MAX_TOUCHING {
            match self.range_at(at) {
                Some(range) if range.kind == RangeKind::Anonymous => at = range.end,
                _ => return false,
            }
            if at >= end {
                return true;
            }
        }
        false
    }

    /// The end of the mapping that an address lies in. What `brk` moves may have grown since the mappings were read: what
    /// is present behind it, up to the next mapping, is its.
    pub(crate) fn mapped_end(&self, address: u64) -> Option<u64> {
        let next = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(next.checked_sub(1)?)?;
        if address < range.end {
            return Some(range.end);
        }
        let most = range.end.saturating_add(MAX_GROWN_BYTES).min(ADDRESS_END);
        let end = self.ranges.get(next).map_or(most, |next| next.start.min(most));
        (range.kind == RangeKind::Heap && address < end).then_some(end)
    }

    /// Writable anonymous memory: heaps lie there. Without what is empty, or too large to be read.
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
        if data.bytes + bytes <= MAX_DATA_BYTES && self.budget.keeps_bytes(bytes as u64) {
            data.bytes += bytes;
            data.pieces.insert(bounds, Rc::clone(&pieces));
        }
        pieces
    }

    /// Reads memory of one mapping, if all of it is present: else the process would get pages that it has not.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(end) = address.checked_add(bytes.len() as u64) else { return false };
        let is_mapped = self.mapped_end(address).is_some_and(|mapped| end <= mapped);
        is_mapped
            && !self.budget.is_over()
            && self.is_present(address, end)
            && self.budget.reads(bytes.len() as u64, 1)
            && self.memory.read(address, bytes)
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
                let near = **at <= end.saturating_add(MAX_GAP_BYTES)
                    && at.saturating_sub(*first) <= MAX_NEAR_BYTES;
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
            let is_mapped = self.range_at(at).is_some_and(|range| end <= range.end);
            is_mapped && !self.budget.is_over() && is_present(at, end)
        });
        let mut left = wanted.as_slice();
        let (mut places, mut bytes, mut most) = (Vec::new(), Vec::new(), PARTS_AT_ONCE);
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(most));
            if !self.budget.reads((now.len() * N) as u64, now.len() as u64) {
                break;
            }
            places.clear();
            places.extend(now.iter().map(|index| addresses[*index]));
            bytes.resize(now.len() * N, 0);
            let read = self.memory.read_each(&places, &mut bytes).min(now.len());
            for (index, part) in now.iter().zip(bytes.as_chunks::<N>().0).take(read) {
                found[*index] = Some(*part);
            }
            // What cannot be read is passed over. Where there is much of that, little is asked for at once: all of a
            // request costs, also what follows the first that cannot be read.
            let is_whole = read == now.len();
            most = if is_whole { (most * 2).min(PARTS_AT_ONCE) } else { (most / 2).max(1) };
            left = if is_whole { later } else { &left[read + 1..] };
        }
        found
    }

    /// Words at addresses whose pages were read a moment ago; how many of them could be read before one that could not.
    pub(crate) fn words_again(&self, addresses: &[u64], bytes: &mut [u8]) -> usize {
        let may_read = self.budget.reads(bytes.len() as u64, addresses.len() as u64);
        if may_read { self.memory.read_each(addresses, bytes) } else { 0 }
    }

    /// Reads from the file that is mapped there: for constants whose page need not be present.
    pub(crate) fn read_file(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.memory.read_file(address, bytes)
    }

    /// The pages that are present now, as far as it may be asked still.
    pub(crate) fn present_now(&self, start: u64, end: u64) -> Present {
        if self.budget.asks() { self.memory.present(start, end) } else { Present::default() }
    }

    /// Forgets whether the page of an address was present.
    pub(crate) fn ask_again(&self, address: u64) {
        self.checked.borrow_mut().remove(&(address / CHECKED_BYTES * CHECKED_BYTES));
    }

    fn is_present(&self, start: u64, end: u64) -> bool {
        self.all_present(start, end, |known, page| {
            // The process may have got it since, or the kernel moved it then.
            let is_present = self.present_now(page, page + PAGE).contains(page);
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
            let first = page / CHECKED_BYTES * CHECKED_BYTES;
            if checked.len() >= MAX_CHECKED_BLOCKS && !checked.contains_key(&first) {
                checked.clear();
            }
            let ask =
                || self.present_now(first, first.saturating_add(CHECKED_BYTES).min(ADDRESS_END));
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
        // Its file is searched.
        if self.budget.look() { self.memory.vtable(address) } else { None }
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
}

/// Resident bytes of all mappings.
pub(crate) fn resident(ranges: &[Range]) -> u64 {
    ranges.iter().fold(0, |sum, range| sum.saturating_add(range.rss))
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

/// The little-endian number of 32 bits at an offset.
pub(crate) fn half_of(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?).into())
}

#[cfg(test)]
mod tests;
