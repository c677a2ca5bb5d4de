//! The pages of mimalloc 3, by its map of them.
//!
//! The library's data has the address of a map of two levels: a table with an entry for each 512 MiB of addresses, of
//! which the first part follows the table itself, and parts with an entry for each slice of 64 KiB: the page that it
//! belongs to. So the map is known by its first entry, and lists everything. A page says its block size, blocks in use,
//! where its blocks begin, and where its memory is from: an arena, or the system. An arena says which of its slices are
//! free, in a bitmap that lies before the next one. What the map lists is validated by what pages and arenas say of each
//! other. Source: `types.h`, `page-map.c`, `arena.c`, `bitmap.h`; of 3.6, what the library's code does.

use std::collections::{BTreeMap, HashSet};

use super::{Area, Page, Read, SLICE, is_list, is_mapped};
use crate::{
    found::{Taken, pieces},
    space::{PAGE, Range, RangeKind, Space, word_of},
};

/// Slices of a part of the map.
const PART: u64 = 1 << 13;
/// Entries of the table: addresses have 30 to 48 bits.
const TABLES: std::ops::RangeInclusive<u64> = 2..=1 << 19;
/// Most data that is searched for the map, slices that are listed, and slices of one block.
const MAX_DATA: u64 = 64 << 20;
const MAX_LISTED: usize = 1 << 22;
const MAX_SLICES: u64 = 1 << 24;
/// Slices of an arena.
const MAX_ARENA: u64 = 1 << 18;
/// One page of so many may be in use and free.
const MAX_TORN: usize = 16;
/// Slices of a page that the map lists, at most.
const MAX_RUN: u64 = 63;
/// A bitmap's bits come in chunks, behind a header; others than that of free slices have one of 128 bytes.
const CHUNK_BITS: u64 = 512;
const CHUNK: u64 = CHUNK_BITS / 8;
const BITMAP_HEADERS: std::ops::RangeInclusive<u64> = 192..=4096;
/// Keys are random numbers, which are larger than this.
const FEWEST_KEYS: u64 = 1 << 16;
/// Bytes of a page's description that are read.
const PAGE_BYTES: usize = 136;
const ARENA_BYTES: usize = 136;

/// Where the table has its entries, and its number of entries and its bytes in all if it says so.
struct Table {
    entries: u64,
    is_counted: bool,
}

/// 3.0 to 3.4, 3.6.
const TABLES_BY_VERSION: [Table; 2] =
    [Table { entries: 0, is_counted: false }, Table { entries: 80, is_counted: true }];

/// How a page says where its blocks begin.
#[derive(Clone, Copy)]
enum Start {
    Address,
    /// Words of 8 bytes from the description on, 32 bits.
    Words,
    /// Bytes from the description on.
    Bytes,
}

/// Where a page has what.
struct PageLayout {
    /// 16 bits each.
    used: usize,
    capacity: usize,
    reserved: usize,
    size: usize,
    freed: usize,
    start: Start,
    /// Where its memory is from: arena and slice, or address and bytes; behind them the kind.
    memory: usize,
    /// Kinds of memory: the system's first one, of three, and an arena's.
    system: u64,
    arena: u64,
    keys: Option<usize>,
}

const OLD: PageLayout = PageLayout {
    used: 16,
    capacity: 18,
    reserved: 20,
    size: 40,
    freed: 32,
    start: Start::Address,
    memory: 96,
    system: 4,
    arena: 7,
    keys: None,
};
/// 3.0 to 3.3, 3.4, 3.6, then with encoded links: 3.2 and 3.3, 3.4.
const PAGES: [PageLayout; 5] = [
    OLD,
    PageLayout { start: Start::Words, memory: 88, ..OLD },
    PageLayout {
        used: 40,
        capacity: 56,
        reserved: 58,
        size: 32,
        freed: 64,
        start: Start::Bytes,
        memory: 104,
        system: 3,
        arena: 6,
        keys: None,
    },
    PageLayout { memory: 112, keys: Some(56), ..OLD },
    PageLayout { start: Start::Words, memory: 104, keys: Some(56), ..OLD },
];

/// Where an arena has what.
struct ArenaLayout {
    /// Of the description in the arena.
    offset: u64,
    slices: usize,
    own: usize,
    /// The bitmap of free slices; the next one's address is behind.
    free: usize,
    /// The first slices of so many are the allocator's.
    chunk: Option<(u64, u64)>,
}

/// 3.0.1, to 3.1, 3.2, 3.3 and 3.4, 3.6.
const ARENAS: [ArenaLayout; 5] = [
    ArenaLayout { offset: 0, slices: 32, own: 40, free: 64, chunk: None },
    ArenaLayout { offset: 0, slices: 32, own: 40, free: 80, chunk: None },
    ArenaLayout { offset: 0, slices: 40, own: 48, free: 88, chunk: None },
    ArenaLayout { offset: 0, slices: 40, own: 48, free: 104, chunk: None },
    ArenaLayout { offset: 512 << 10, slices: 48, own: 56, free: 112, chunk: Some((4096, 8)) },
];

/// A page as the map lists it: its description, its first slice, and how many follow.
#[derive(Clone, Copy, Debug)]
struct Listed {
    description: u64,
    first: u64,
    count: u64,
}

impl Listed {
    fn start(&self) -> u64 {
        self.first * SLICE
    }

    fn end(&self) -> u64 {
        (self.first + self.count) * SLICE
    }
}

/// Memory of a page: where its arena is and its slice there, if it is from one.
struct Origin {
    start: u64,
    end: u64,
    arena: Option<(u64, u64)>,
}

/// Adds what the map lists.
pub(super) fn find(space: &Space<'_>, taken: &Taken, read: &mut Read) {
    let Some((listed, is_whole)) = map(space, taken) else { return };
    let by_layout = |layout| {
        let pages = listed.iter().map(|one| page(space, layout, one));
        pages.collect::<Vec<Option<(Page, Origin)>>>()
    };
    let all = PAGES.iter().map(by_layout);
    let mut fitting = all.filter(|pages| pages.iter().any(Option::is_some));
    let (pages, others) = (fitting.next(), fitting.next());
    let pages = match (pages, others) {
        (Some(pages), None) => pages,
        (pages, _) => {
            let what = if pages.is_none() { "no known layout" } else { "more than one layout" };
            read.notes.push(format!(
                "mimalloc: {} pages are listed, which make sense in {what}",
                listed.len()
            ));
            listed.iter().map(|_| None).collect()
        }
    };
    let mut areas = Areas::default();
    let mut end = 0;
    for (one, page) in listed.iter().zip(pages) {
        match page {
            // Lists ascend: what overlaps makes no sense.
            Some((page, origin)) if origin.start >= end => {
                end = origin.end;
                areas.page(page, &origin);
            }
            _ => areas.unknown.push((one.start().max(end), one.end())),
        }
    }
    if !is_whole {
        read.notes.push("mimalloc: its map lists more pages than were read".to_owned());
    }
    areas.finish(space, read);
}

/// Pages by arena, and others.
#[derive(Default)]
struct Areas {
    arenas: BTreeMap<u64, Vec<Page>>,
    alone: Vec<Page>,
    unknown: Vec<(u64, u64)>,
}

impl Areas {
    fn page(&mut self, page: Page, origin: &Origin) {
        // The arena begins where its first slice would be.
        let base = origin.arena.and_then(|(_, slice)| origin.start.checked_sub(slice * SLICE));
        match base {
            Some(base) => self.arenas.entry(base).or_default().push(page),
            None => self.alone.push(page),
        }
    }

    fn finish(mut self, space: &Space<'_>, read: &mut Read) {
        let mut end = 0;
        for (base, pages) in std::mem::take(&mut self.arenas) {
            let known = arena(space, base, &pages).filter(|area| area.address >= end);
            match known {
                Some(area) => {
                    end = area.end();
                    read.areas.push(area);
                }
                None => {
                    read.notes.push(format!(
                        "mimalloc: an arena at {base:x} makes no sense: of its memory, only pages are counted"
                    ));
                    self.alone.extend(pages);
                }
            }
        }
        let arenas = read.areas.len();
        let inside = |areas: &[Area], at: u64| {
            areas.iter().position(|area| (area.address..area.end()).contains(&at))
        };
        for page in self.alone {
            if inside(&read.areas[..arenas], page.address).is_some() {
                self.unknown.push((page.address, page.address + page.bytes));
                continue;
            }
            let (address, bytes) = (page.address, page.bytes);
            read.areas.push(Area { address, bytes, pages: vec![page], ..Area::default() });
        }
        for (start, end) in self.unknown {
            match inside(&read.areas[..arenas], start) {
                // An arena has told already that these slices are neither free nor its own.
                Some(_) => {}
                None if is_mapped(space, start, end) && start < end => {
                    read.areas.push(Area::unknown(start, end));
                }
                None => {}
            }
        }
    }
}

/// What the map lists, in ascending order, and whether that is all.
fn map(space: &Space<'_>, taken: &Taken) -> Option<(Vec<Listed>, bool)> {
    let (mut left, mut tried) = (MAX_DATA, HashSet::new());
    for (index, range) in space.ranges.iter().enumerate() {
        // The data of an object, or what follows it without a file (.bss).
        let before = index.checked_sub(1).and_then(|before| space.ranges.get(before));
        let follows =
            before.is_some_and(|one| one.kind == RangeKind::File && one.end == range.start);
        let is_data =
            range.kind == RangeKind::File || (range.kind == RangeKind::Anonymous && follows);
        if !range.writable || !is_data {
            continue;
        }
        let mut found = None;
        left -= pieces(space, (range.start, range.end), &Taken::default(), left, |piece| {
            for at in (0..piece.len().saturating_sub(7)).step_by(8) {
                let word = word_of(piece, at).unwrap_or_default();
                if found.is_none() && word != 0 && word.is_multiple_of(PAGE) && tried.insert(word) {
                    found = table(space, word).and_then(|table| list(space, taken, table));
                }
            }
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Where the entries of the table at an address are, and where the first part is, which is where they end.
fn table(space: &Space<'_>, address: u64) -> Option<(u64, u64)> {
    let range = space.range_at(address).filter(|range| is_anonymous(range))?;
    TABLES_BY_VERSION.iter().find_map(|table| {
        let entries = address + table.entries;
        let first = space.word(entries)?;
        let bytes = first.checked_sub(entries)?;
        let is_sane = TABLES.contains(&(bytes / 8)) && first.is_multiple_of(PAGE);
        let is_table = if table.is_counted {
            let [count, all] = space.words(address)?;
            count == bytes / 8 && all == bytes + table.entries
        } else {
            (bytes / 8).is_power_of_two()
        };
        (is_sane && is_table && first < range.end).then_some((entries, first))
    })
}

fn is_anonymous(range: &Range) -> bool {
    range.writable && range.kind == RangeKind::Anonymous
}

/// The words of a stretch that are not 0, by number, as far as they are present.
fn entries(space: &Space<'_>, start: u64, end: u64, mut each: impl FnMut(u64, u64)) {
    let mut region = space.region(start, end);
    let mut at = start;
    while at < end {
        if !region.is_present(at) {
            // What is not whole words in front of a page, is in none that is present.
            at = region.next_present(at);
            continue;
        }
        if let Some(word) = region.word(at).filter(|word| *word != 0) {
            each((at - start) / 8, word);
        }
        at += 8;
    }
}

/// The pages of a map, and whether these are all.
fn list(
    space: &Space<'_>,
    taken: &Taken,
    (table, first): (u64, u64),
) -> Option<(Vec<Listed>, bool)> {
    let (mut parts, mut is_map) = (Vec::new(), true);
    entries(space, table, first, |number, part| parts.push((number, part)));
    let (mut listed, mut slices, mut is_whole) = (Vec::<Listed>::new(), 0, true);
    // The first part lists low addresses, where nothing is.
    for (number, part) in parts.into_iter().skip_while(|(number, _)| *number == 0) {
        let end = part.saturating_add(PART * 8);
        is_map &= part.is_multiple_of(8)
            && space.range_at(part).is_some_and(|range| is_anonymous(range) && end <= range.end);
        if !is_map {
            return None;
        }
        entries(space, part, end, |slice, description| {
            slices += 1;
            if slices > MAX_LISTED {
                is_whole = false;
                return;
            }
            let slice = number * PART + slice;
            is_map &= description.is_multiple_of(8);
            match listed.last_mut() {
                Some(last)
                    if last.description == description && last.first + last.count == slice =>
                {
                    last.count += 1;
                }
                _ => listed.push(Listed { description, first: slice, count: 1 }),
            }
        });
    }
    // All that it lists is heap.
    let in_heap = |at: u64| space.range_at(at).is_some_and(|range| is_anonymous(range));
    let is_free = |one: &Listed| taken.end_of(one.start()).is_none();
    is_map &= listed.iter().all(|one| in_heap(one.description));
    listed.retain(|one| is_mapped(space, one.start(), one.end()) && is_free(one));
    (is_map && !listed.is_empty()).then_some((listed, is_whole))
}

/// The page that is listed, and its memory; `None` where it makes no sense.
fn page(space: &Space<'_>, layout: &PageLayout, listed: &Listed) -> Option<(Page, Origin)> {
    let [bytes] = space.read_each::<PAGE_BYTES>(&[listed.description])[..] else { return None };
    let bytes = bytes?;
    let word = |at| word_of(&bytes, at);
    let half = |at: usize| word(at / 8 * 8).map(|word| word >> (at % 8 * 8) & 0xffff);
    let [used, capacity, reserved] =
        [half(layout.used)?, half(layout.capacity)?, half(layout.reserved)?];
    let (size, freed, start) = (word(layout.size)?, word(layout.freed)?, word(48)?);
    let start = match layout.start {
        Start::Address => start,
        Start::Words => listed.description.checked_add((start & 0xffff_ffff) * 8)?,
        Start::Bytes => listed.description.checked_add(start)?,
    };
    let all = reserved.checked_mul(size)?;
    let end = start.checked_add(all)?;
    let origin = origin(layout, listed, [word(layout.memory)?, word(layout.memory + 8)?], {
        word(layout.memory + 16)? & 0xffff_ffff
    })?;
    let keys = match layout.keys.map(|at| Some([word(at)?, word(at + 8)?])) {
        Some(keys) => {
            let [first, second] = keys?;
            (first > FEWEST_KEYS && second > FEWEST_KEYS).then_some(())?;
            Some([first, second, listed.description])
        }
        None => None,
    };
    // The blocks begin in the first slice, or behind what aligns them.
    let slices = (start % SLICE + all).div_ceil(SLICE);
    let is_page = size > 0
        && size.is_multiple_of(8)
        && used <= capacity
        && capacity <= reserved
        && reserved > 0
        && origin.start <= start
        && end <= origin.end
        && (listed.count >= slices || listed.count >= MAX_RUN || listed.count + 1 == slices)
        && is_list(freed, start, end)
        && is_mapped(space, origin.start, origin.end);
    let (address, bytes) = (origin.start, origin.end - origin.start);
    let page = Page { address, bytes, size, reserved, used, freed, waiting: 0, keys };
    is_page.then_some((page, origin))
}

/// Where a page's memory is from, if that holds what is listed.
fn origin(
    layout: &PageLayout,
    listed: &Listed,
    [memory, size]: [u64; 2],
    kind: u64,
) -> Option<Origin> {
    let origin = if kind == layout.arena {
        let (slice, count) = (size & 0xffff_ffff, size >> 32);
        (slice < MAX_ARENA && count < MAX_SLICES && memory.is_multiple_of(SLICE)).then_some(())?;
        // The description of an arena lies in its first slices.
        let begin = |offset: u64| memory.checked_sub(offset)?.checked_add(slice * SLICE);
        let start = ARENAS.iter().find_map(|arena| {
            let start = begin(arena.offset)?;
            (start..start.saturating_add(count * SLICE)).contains(&listed.start()).then_some(start)
        })?;
        let end = start.checked_add(count * SLICE)?;
        Origin { start, end, arena: Some((memory, slice)) }
    } else if (layout.system..layout.system + 3).contains(&kind) {
        (memory.is_multiple_of(PAGE) && size.div_ceil(SLICE) <= MAX_SLICES).then_some(())?;
        Origin { start: memory, end: memory.checked_add(size)?, arena: None }
    } else {
        return None;
    };
    let holds =
        origin.start <= listed.start() && listed.end() <= origin.end.next_multiple_of(SLICE);
    holds.then_some(origin)
}

/// The arena that begins at an address, with those of its pages that make sense; `None` where no layout makes sense, or more than one.
fn arena(space: &Space<'_>, base: u64, pages: &[Page]) -> Option<Area> {
    let mut found = ARENAS.iter().filter_map(|layout| arena_by(space, base, pages, layout));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn arena_by(space: &Space<'_>, base: u64, pages: &[Page], layout: &ArenaLayout) -> Option<Area> {
    let at = base.checked_add(layout.offset)?;
    let [bytes] = space.read_each::<ARENA_BYTES>(&[at])[..] else { return None };
    let bytes = bytes?;
    let word = |at| word_of(&bytes, at);
    let (slices, own) = (word(layout.slices)?, word(layout.own)?);
    let (free, next) = (word(layout.free)?, word(layout.free + 8)?);
    let end = base.checked_add(slices.checked_mul(SLICE)?)?;
    let is_sane = (1..=MAX_ARENA).contains(&slices)
        && (1..slices).contains(&own)
        && (at..base + own * SLICE).contains(&free)
        && (free..base + own * SLICE).contains(&next)
        && free.is_multiple_of(CHUNK)
        && is_mapped(space, base, end);
    // The bits are what lies behind the header, to the next bitmap.
    let chunks = slices.div_ceil(CHUNK_BITS);
    let header = next.checked_sub(free)?.checked_sub(chunks * CHUNK)?;
    if !is_sane || space.word(free)? != chunks || !BITMAP_HEADERS.contains(&header) {
        return None;
    }
    let mut bits = vec![0; (chunks * CHUNK) as usize];
    space.read(free + header, &mut bits).then_some(())?;
    let is_free = |slice: u64| bits[(slice / 8) as usize] >> (slice % 8) & 1 != 0;
    let mut states = vec![State::Unknown; slices as usize];
    let mut set = |start: u64, end: u64, state: State| {
        let part = states.get_mut(start as usize..end as usize)?;
        let is_new = part.iter().all(|one| *one == State::Unknown);
        part.fill(state);
        is_new.then_some(())
    };
    set(0, own, State::Own)?;
    if let Some((every, first)) = layout.chunk {
        for start in (0..slices).step_by(every as usize).skip(1) {
            set(start, (start + first).min(slices), State::Own)?;
        }
    }
    let (mut kept, mut torn) = (Vec::new(), 0);
    for page in pages {
        let start = (page.address - base) / SLICE;
        let end = start + page.bytes.div_ceil(SLICE);
        if (start..end.min(slices)).any(is_free) {
            // The map still lists pages that have been given back; others come and go while they are read.
            torn += usize::from(page.used > 0);
            continue;
        }
        set(start, end, State::Page)?;
        kept.push(page.clone());
    }
    (torn <= pages.len() / MAX_TORN).then_some(())?;
    for slice in (0..slices).filter(|slice| is_free(*slice)) {
        set(slice, slice + 1, State::Free)?;
    }
    let is_own = |slice: u64| keeps(space, base + slice * SLICE, at, slice);
    for slice in 0..slices {
        if states[slice as usize] == State::Unknown && is_own(slice) {
            states[slice as usize] = State::Own;
        }
    }
    let (address, bytes) = (base, end - base);
    let stretches = |state| stretches(&states, state, base);
    let (free, own) = (stretches(State::Free), stretches(State::Own));
    Some(Area { address, bytes, free, own, unknown: stretches(State::Unknown), pages: kept })
}

/// Whether the allocator keeps small things of its own in a slice: it says which one it is.
fn keeps(space: &Space<'_>, at: u64, arena: u64, slice: u64) -> bool {
    // Where it is guarded, the first page of the slice cannot be accessed.
    [at, at + PAGE].into_iter().any(|at| {
        let own = space.words::<3>(at);
        own.is_some_and(|[_, memory, place]| memory == arena && place & 0xffff_ffff == slice)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Unknown,
    Own,
    Page,
    Free,
}

/// Stretches of slices in a state.
fn stretches(states: &[State], wanted: State, base: u64) -> Vec<(u64, u64)> {
    let mut found: Vec<(u64, u64)> = Vec::new();
    for (state, start) in states.iter().zip((base..).step_by(SLICE as usize)) {
        match found.last_mut() {
            _ if *state != wanted => {}
            Some((_, end)) if *end == start => *end += SLICE,
            _ => found.push((start, start + SLICE)),
        }
    }
    found
}
