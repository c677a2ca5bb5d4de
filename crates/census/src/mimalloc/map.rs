//! The pages of mimalloc 3, by its map of them.
//!
//! The library's data has the address of a map of two levels: a table with an entry for each 512 MiB of addresses, of
//! which the first part follows the table itself, and parts with an entry for each slice of 64 KiB: the page that it
//! belongs to. So the map is known by its first entry, and lists everything. A page says its block size, blocks in use,
//! where its blocks begin, and where its memory is from: an arena, or the system. An arena says which of its slices are
//! free, in a bitmap that lies before the next one. What the map lists is validated by what pages and arenas say of each
//! other. Source: `types.h`, `page-map.c`, `arena.c`, `bitmap.h`; of 3.6, what the library's code does.

pub(super) mod arena;
pub(super) mod page;

use std::collections::{BTreeMap, HashSet};

use arena::arena;
use page::{Listed, Origin, page};

use super::area::{Area, Page, Read, SLICE};
use crate::{
    found::{Taken, data_pieces},
    region::Region,
    space::{PAGE, Range, RangeKind, Space},
};

/// Slices of a part of the map.
const PART: u64 = 1 << 13;
/// Entries of the table: addresses have 30 to 48 bits.
const TABLES: std::ops::RangeInclusive<u64> = 2..=1 << 19;
/// Most data that is searched for the map, and slices that are listed.
const MAX_DATA: u64 = 64 << 20;
const MAX_LISTED: usize = 1 << 22;

/// Where the table has its entries, and its number of entries and its bytes in all if it says so.
struct Table {
    entries: u64,
    is_counted: bool,
}

/// 3.0 to 3.4, 3.6.
const TABLES_BY_VERSION: [Table; 2] =
    [Table { entries: 0, is_counted: false }, Table { entries: 80, is_counted: true }];

/// Adds what the map lists.
pub(super) fn find(space: &Space<'_>, taken: &Taken, read: &mut Read) {
    let Some((listed, is_whole)) = map(space, taken) else { return };
    if !space.budget.keeps::<([u8; page::BYTES], [(Page, Origin); 3])>(listed.len()) {
        return;
    }
    let descriptions: Vec<u64> = listed.iter().map(|one| one.description).collect();
    let descriptions = space.read_each::<{ page::BYTES }>(&descriptions);
    let by_layout = |layout| {
        let described = listed.iter().zip(&descriptions);
        let pages = described.map(|(one, bytes)| page(space, layout, one, bytes.as_ref()?));
        pages.collect::<Vec<Option<(Page, Origin)>>>()
    };
    let all = page::LAYOUTS.iter().map(by_layout);
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
            if let Some(area) = known {
                end = area.end();
                read.areas.push(area);
            } else {
                read.notes.push(format!(
                    "mimalloc: an arena at {base:x} makes no sense: of its memory, only pages are counted"
                ));
                self.alone.extend(pages);
            }
        }
        let arenas = read.areas.len();
        let inside = |areas: &[Area], at: u64| {
            areas.iter().position(|area| (area.address..area.end()).contains(&at))
        };
        for page in self.alone {
            if !space.budget.reads(0, 1 + arenas as u64 / 64) {
                break;
            }
            if inside(&read.areas[..arenas], page.address).is_some() {
                self.unknown.push((page.address, page.end()));
                continue;
            }
            let (address, bytes) = (page.address, page.bytes);
            read.areas.push(Area { address, bytes, pages: vec![page], ..Area::default() });
        }
        for (start, end) in self.unknown {
            if !space.budget.reads(0, 1 + arenas as u64 / 64) {
                break;
            }
            // An arena says of its own slices that they are neither free nor its own.
            let is_known = inside(&read.areas[..arenas], start).is_some();
            if !is_known && start < end && space.is_anonymous(start, end) {
                read.areas.push(Area::unknown(start, end));
            }
        }
    }
}

/// What the map lists, in ascending order, and whether that is all.
fn map(space: &Space<'_>, taken: &Taken) -> Option<(Vec<Listed>, bool)> {
    let (mut left, mut tried) = (MAX_DATA, HashSet::new());
    for bounds in space.data() {
        let mut found = None;
        left -= data_pieces(space, bounds, left, |_, piece| {
            if found.is_some() {
                return;
            }
            let words = piece.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
            let wanted = |word: &u64| {
                *word != 0
                    && word.is_multiple_of(PAGE)
                    && space.range_at(*word).is_some_and(is_anonymous)
                    && tried.insert(*word)
            };
            let tables = may_be_tables(space, words.filter(wanted).collect());
            let mut tables = tables.into_iter().filter_map(|word| table(space, word));
            found = tables.find_map(|table| list(space, taken, table));
        });
        if found.is_some() {
            return found;
        }
    }
    None
}

/// Those of these addresses where a table may be by its first entry.
fn may_be_tables(space: &Space<'_>, mut addresses: Vec<u64>) -> Vec<u64> {
    let firsts = TABLES_BY_VERSION.map(|table| {
        let places: Vec<u64> =
            addresses.iter().map(|address| address.saturating_add(table.entries)).collect();
        let firsts = space.guess_each::<8>(&places).into_iter().zip(places);
        let may_be = firsts.map(|(first, at)| {
            let bytes = first.and_then(|first| u64::from_le_bytes(first).checked_sub(at));
            bytes.is_some_and(|bytes| TABLES.contains(&(bytes / 8)))
        });
        may_be.collect::<Vec<bool>>()
    });
    let mut index = 0..;
    addresses.retain(|_| {
        let index = index.next().unwrap_or_default();
        firsts.iter().any(|may_be| may_be.get(index) == Some(&true))
    });
    addresses
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
    let mut region = Region::new(space, start, end);
    let mut at = start;
    while at < end {
        if !region.is_present(at) {
            // What is not whole words in front of a page, is in none that is present.
            at = region.next_present(at);
            continue;
        }
        let behind = (at / PAGE + 1).saturating_mul(PAGE).min(end);
        while at < behind {
            if let Some(word) = region.word(at).filter(|word| *word != 0) {
                each((at - start) / 8, word);
            }
            at += 8;
        }
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
                _ if !space.budget.keeps::<Listed>(1) => is_whole = false,
                _ => listed.push(Listed { description, first: slice, count: 1 }),
            }
        });
    }
    // All that it lists is heap.
    let in_heap = |at: u64| space.range_at(at).is_some_and(is_anonymous);
    let is_free = |one: &Listed| taken.end_of(one.start()).is_none();
    is_map &= listed.iter().all(|one| in_heap(one.description));
    listed.retain(|one| space.is_anonymous(one.start(), one.end()) && is_free(one));
    (is_map && !listed.is_empty()).then_some((listed, is_whole))
}
