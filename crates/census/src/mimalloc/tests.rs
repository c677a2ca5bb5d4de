mod map;

use proptest::prelude::*;

use super::{
    area::SLICE,
    segments::{Entry, Header, LAYOUTS},
    *,
};
use crate::{
    space::{PAGE, Range},
    testing::{Pieces, anonymous, are_apart, seeds},
};

const BASE: u64 = 0x7f00_0000_0000;
const COOKIE: u64 = 0x1234_5678_9abc_def0;
/// Bytes of a segment that are written.
const WRITTEN: u64 = 256 << 10;

type Row = (Header, Entry);

/// Writes the low bits of a word, and keeps the others.
fn part(memory: &mut Pieces, at: u64, bits: u32, value: u64) {
    let word = at / 8 * 8;
    let mut bytes = [0; 8];
    assert!(crate::space::Memory::read(memory, word, &mut bytes));
    let (shift, mask) = (at % 8 * 8, u64::MAX >> (64 - bits));
    let kept = u64::from_le_bytes(bytes) & !(mask << shift);
    memory.put(word, &[kept | (value & mask) << shift]);
}

/// What links are encoded with in the entry at an address.
fn keys(at: u64) -> [u64; 3] {
    [0x1111_2222_3333_4444, 0x5555_6666_7777_8888, at]
}

/// Writes a list of blocks; its head.
fn list(memory: &mut Pieces, blocks: &[u64], keys: Option<[u64; 3]>) -> u64 {
    for (at, block) in blocks.iter().enumerate() {
        let link = blocks.get(at + 1).copied().unwrap_or_default();
        memory.put(*block, &[keys.map_or(link, |keys| lists::encoded(link, keys))]);
    }
    blocks.first().copied().unwrap_or_default()
}

/// Writes an entry: slices, blocks that fit, blocks in use, and their size; ten blocks of a page were handed out once.
fn entry(memory: &mut Pieces, base: u64, slice: u64, layout: &Row, values: [u64; 4]) {
    let (header, layout) = layout;
    let [count, fit, used, size] = values;
    let at = base + header.array + slice * layout.bytes;
    let capacity = if used > 0 { fit.min(10) } else { 0 };
    let keys = layout.keys.map(|_| keys(at));
    let block = |index: u64| base + slice * SLICE + index * 64;
    let freed = |from: u64, to: u64| (from..to.min(capacity)).map(block).collect::<Vec<u64>>();
    let free = list(memory, &freed(used, 7), keys);
    let local = list(memory, &freed(used.max(7), 10), keys);
    part(memory, at, 32, count);
    part(memory, at + 10, 16, capacity);
    part(memory, at + 12, 16, fit);
    part(memory, at + layout.used, if layout.is_wide { 16 } else { 32 }, used);
    part(memory, at + layout.size, if layout.is_wide { 64 } else { 32 }, size);
    if size == 0 {
        return;
    }
    memory.put(at + layout.free, &[free]);
    memory.put(at + layout.local, &[local]);
    memory.put(at + layout.freed + 8, &[base]);
    if let (Some(at), Some([first, second, _])) = (layout.keys.map(|keys| at + keys), keys) {
        memory.put(at, &[first, second]);
    }
}

/// A page of 64-byte blocks with three in use, an empty one, a block that has a page to itself, and a free rest.
fn segment(memory: &mut Pieces, base: u64, row: &Row) {
    let header = &row.0;
    memory.pieces.push((base, vec![0; WRITTEN as usize]));
    let whole = header.bytes / SLICE;
    let fields = [
        (header.used, 3),
        (header.cookie, base ^ COOKIE),
        (header.slices, whole),
        (header.own, 1),
        (header.kind, 0),
        (header.entries, whole),
        (header.thread, 0x7000),
    ];
    for (at, value) in fields {
        memory.put(base + at, &[value]);
    }
    let rows = [
        (0, [1, 0, 0, 0]),
        (1, [1, 1000, 3, 64]),
        (2, [1, 1000, 0, 64]),
        (3, [2, 1, 1, 100_000]),
        (5, [whole - 5, 0, 0, 0]),
    ];
    for (slice, values) in rows {
        entry(memory, base, slice, row, values);
    }
}

fn memory(row: &Row) -> Pieces {
    let mut memory = Pieces::default();
    segment(&mut memory, BASE, row);
    memory
}

fn found(memory: &Pieces, bytes: u64) -> Option<Heap> {
    let space = Space::new(vec![anonymous(BASE, bytes)], memory);
    find(&space, &Taken::default()).map(|found| found.heap)
}

/// Every known layout is read; blocks that other threads have freed are taken off.
#[test]
fn layouts() {
    for (index, row) in LAYOUTS.iter().enumerate() {
        let (header, layout) = row;
        let mut memory = memory(row);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        let live = (heap.live_objects, heap.live_bytes, heap.unknown_bytes);
        assert_eq!(live, (4, 3 * 64 + 100_000, 0), "{index}");
        assert_eq!((heap.granules.full, heap.granules.held[0].objects_max), (1, Some(4)));
        assert_eq!(heap.mapped_bytes, header.bytes);
        // One was freed by another thread, and one waits in the heap's list.
        let (block, entry) = (BASE + SLICE + 128, BASE + header.array + layout.bytes);
        list(&mut memory, &[block], layout.keys.map(|_| keys(entry)));
        memory.put(entry + layout.freed, &[block | 2]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.cached_bytes), (2, 128), "{index}");
        // A list that leads out of its page.
        memory.put(block, &[BASE + 8]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.unknown_bytes), (1, SLICE), "{index}");
        // One page less than the segment says.
        memory.put(BASE + header.used, &[4]);
        assert!(found(&memory, header.bytes).is_none(), "{index}");
    }
}

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    for (index, row) in LAYOUTS.iter().enumerate() {
        let ranges = [anonymous(BASE, row.0.bytes)];
        seeds::check(&format!("mimalloc-2-{index}"), &memory(row), &ranges, "");
    }
}

/// The fields of a header and of an entry.
const HEADERS: [fn(&mut Header) -> &mut u64; 9] = [
    |one| &mut one.bytes,
    |one| &mut one.used,
    |one| &mut one.cookie,
    |one| &mut one.slices,
    |one| &mut one.own,
    |one| &mut one.kind,
    |one| &mut one.entries,
    |one| &mut one.thread,
    |one| &mut one.array,
];
const ENTRIES: [fn(&mut Entry) -> &mut u64; 6] = [
    |one| &mut one.bytes,
    |one| &mut one.used,
    |one| &mut one.size,
    |one| &mut one.free,
    |one| &mut one.local,
    |one| &mut one.freed,
];

/// Where one field lies elsewhere, nothing is read, or it is unknown.
#[test]
fn shifted() {
    for (header, layout) in &LAYOUTS {
        let mut moved = Vec::new();
        for field in HEADERS {
            let mut header = *header;
            *field(&mut header) += 8;
            moved.push((header, *layout));
        }
        for field in ENTRIES {
            let mut layout = *layout;
            *field(&mut layout) += 8;
            moved.push((*header, layout));
        }
        let keys = layout.keys.map(|keys| keys + 8);
        moved.extend(keys.map(|keys| (*header, Entry { keys: Some(keys), ..*layout })));
        for (index, row) in moved.iter().enumerate() {
            let mut memory = memory(row);
            for freed in [false, true] {
                let at = BASE + row.0.array + row.1.bytes;
                let block = BASE + SLICE + 128;
                if freed {
                    list(&mut memory, &[block], row.1.keys.map(|_| self::keys(at)));
                    memory.put(at + row.1.freed, &[block | 2]);
                }
                let heap = found(&memory, header.bytes);
                let is_whole = heap.as_ref().is_some_and(|heap| heap.unknown_bytes == 0);
                let right = if freed { 2 } else { 4 };
                let is_right = heap.as_ref().is_some_and(|heap| heap.live_objects == right);
                assert!(!is_whole || is_right, "{:x} {index}: {heap:?}", header.array);
            }
        }
    }
}

/// Where no page adds up that has a block in use, all of them are unknown; one whose blocks do not, alone.
#[test]
fn sums() {
    for row in &LAYOUTS {
        let (header, layout) = row;
        let mut memory = memory(row);
        // A free block is missing.
        let entry = BASE + header.array + layout.bytes;
        memory.put(entry + layout.local, &[0]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.unknown_bytes), (1, SLICE));
        // The other page with a block in use has none.
        let other = BASE + header.array + 3 * layout.bytes;
        part(&mut memory, other + layout.used, 16, 0);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.unknown_bytes), (0, 4 * SLICE));
        // It has one, and one that is free.
        part(&mut memory, other + layout.used, 16, 1);
        memory.put(other + layout.free, &[BASE + 3 * SLICE]);
        let heap = found(&memory, header.bytes).expect("there is a segment");
        assert_eq!((heap.live_objects, heap.unknown_bytes), (0, 4 * SLICE));
    }
}

/// Where enough free blocks were followed, and add up, the lists of other pages are not read.
#[test]
fn enough() {
    let row = &LAYOUTS[4];
    let mut memory = memory(row);
    entry(&mut memory, BASE, 2, row, [1, 1000, 4, 64]);
    let space = Space::new(vec![anonymous(BASE, row.0.bytes)], &memory);
    let read_bytes = |links| {
        let mut read = Read::default();
        segments::find(&space, &Taken::default(), &mut read);
        let before = space.read_bytes();
        lists::prove(&space, &mut read, links);
        assert_eq!(read.areas[0].pages.len(), 3, "{links}");
        space.read_bytes() - before
    };
    // The lists of both pages have blocks; the third has none.
    let all = [0, 7, 8, lists::ENOUGH_LINKS].map(read_bytes);
    assert_eq!(all, [PAGE, PAGE, 2 * PAGE, 2 * PAGE]);
}

/// A segment is committed in part; one that is known by its cookie, and does not validate, is unknown.
#[test]
fn parts() {
    let row = &LAYOUTS[4];
    let header = &row.0;
    let mut memory = memory(row);
    segment(&mut memory, BASE + header.bytes, row);
    let rest = Range {
        writable: false,
        ..anonymous(BASE + header.bytes + WRITTEN, header.bytes - WRITTEN)
    };
    let ranges = vec![anonymous(BASE, header.bytes + WRITTEN), rest];
    let heap = |memory: &Pieces| {
        let space = Space::new(ranges.clone(), memory);
        find(&space, &Taken::default()).expect("there are segments").heap
    };
    assert_eq!((heap(&memory).live_objects, heap(&memory).unknown_bytes), (8, 0));
    memory.put(BASE + header.bytes + header.own, &[2]);
    let heap = heap(&memory);
    assert_eq!((heap.live_objects, heap.unknown_bytes), (4, header.bytes));
}

proptest! {
    /// Where a field lies anywhere else, nothing is read, or it is unknown.
    #[test]
    fn moved(
        layout in 0..LAYOUTS.len(),
        (field, by, up) in (0..HEADERS.len() + ENTRIES.len(), 1..8u64, any::<bool>()),
    ) {
        let mut row = LAYOUTS[layout];
        let bytes = row.0.bytes;
        let at = match HEADERS.get(field) {
                Some(field) => field(&mut row.0),
                None => ENTRIES[field - HEADERS.len()](&mut row.1),
            };
            *at = if up { *at + by * 8 } else { at.saturating_sub(by * 8) };
        let (header, entry) = &row;
        let fields = [header.used, header.cookie, header.slices, header.own, header.kind];
        let fields = fields.into_iter().chain([header.entries, header.thread]).map(|at| (at, 8));
        if !(are_apart(fields.chain([(header.array, 0)]))) {
 return Ok(());
 }
        let (used, size) = if entry.is_wide { (2, 8) } else { (4, 4) };
        let fields = [(0, 8), (10, 4), (entry.used, used), (entry.size, size), (entry.free, 8)];
        let fields = fields.into_iter().chain([(entry.local, 8), (entry.freed, 16)]);
        let fields = fields.chain(entry.keys.map(|at| (at, 16)));
        if !(are_apart(fields) && entry.bytes > 0) {
 return Ok(());
 }
        let heap = found(&memory(&row), bytes);
        let is_whole = heap.as_ref().is_some_and(|heap| heap.unknown_bytes == 0);
        let is_right = heap.as_ref().is_some_and(|heap| heap.live_objects == 4);
        prop_assert!(!is_whole || is_right, "{heap:?}");
    }

    /// Whatever the structures say, lists in circles included, the census ends and counts no more than there is.
    #[test]
    fn hostile(
        layout in 0..LAYOUTS.len(),
        words in prop::collection::vec((0..8192u64, any::<u64>(), any::<bool>()), 0..40),
    ) {
        let row = &LAYOUTS[layout];
        let header = &row.0;
        let mut memory = memory(row);
        for (at, word, near) in words {
            let at = if near { at % 60 + header.used / 8 } else { at };
            memory.put(BASE + at * 8, &[if near { word % 1024 } else { BASE + word % WRITTEN }]);
        }
        if let Some(heap) = found(&memory, header.bytes) {
            prop_assert!(heap.live_bytes + heap.cached_bytes <= heap.mapped_bytes);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for row in &LAYOUTS {
        let ranges = [anonymous(BASE, row.0.bytes)];
        crate::testing::cut_short(&ranges, &memory(row));
    }
}
