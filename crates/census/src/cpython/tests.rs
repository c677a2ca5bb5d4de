use proptest::prelude::*;

use super::*;
use crate::{
    space::{PAGE, Range, RangeKind},
    testing::{Pieces, anonymous, seeds},
};

const BASE: u64 = 0x7f00_0000_0000;
/// Data of the program, at a low address as in programs that are not position-independent: variables, types, what the
/// interpreter says of itself.
const DATA: u64 = 0x80_0000;
const DATA_BYTES: u64 = 12 << 10;
const VARIABLES: u64 = DATA + 0x500;
const TYPE: u64 = DATA + 0x1000;
const POINT: u64 = DATA + 0x1200;
const TEXT: u64 = DATA + 0x1400;
const NAMES: u64 = DATA + 0x1600;
const RUNTIME: u64 = DATA + 0x2000;
/// The list of arenas.
const HEAP: u64 = 0x5500_0000_0000;
const HEAP_BYTES: u64 = 4096;
const ARENAS: u64 = 2;
/// Pools of each arena that were ever used, and of these the first is free.
const CARVED: u64 = 10;
const USED: u64 = CARVED - 1;
const HEADER: u64 = pools::HEADER;

/// Where variables are, from that of the list: its length, unused entries, entries with free pools, number of arenas.
const ORDERS: [[i64; 4]; 3] = [[8, 16, 24, 552], [-8, -16, -24, -552], [-16, -8, 8, -32]];

#[derive(Clone, Copy)]
struct Kind {
    pool: u64,
    /// Pools of an arena.
    pools: u64,
    order: [i64; 4],
    /// The upper half of a reference count.
    flags: u64,
}

const KINDS: [Kind; 4] = [
    // 3.9, as a compiler orders variables; 3.11, as another one does; 3.12 and later; for huge pages (3.15).
    Kind { pool: 4 << 10, pools: 64, order: ORDERS[1], flags: 0 },
    Kind { pool: 16 << 10, pools: 64, order: ORDERS[2], flags: 0 },
    Kind { pool: 16 << 10, pools: 64, order: ORDERS[0], flags: 0 },
    Kind { pool: 16 << 10, pools: 128, order: ORDERS[0], flags: 4 << 48 },
];

impl Kind {
    fn arena(self) -> u64 {
        self.pool * self.pools
    }

    /// Pools of 64-byte blocks, each but the first of an arena with three in use, and one free.
    fn memory(self) -> Pieces {
        let mut memory = Pieces::default();
        memory.pieces.push((BASE, vec![0; (ARENAS * self.arena()) as usize]));
        memory.pieces.push((DATA, vec![0; DATA_BYTES as usize]));
        memory.pieces.push((HEAP, vec![0; HEAP_BYTES as usize]));
        let variable = |by: i64| VARIABLES.wrapping_add_signed(by);
        let [length, unused, usable, number] = self.order;
        memory.put(VARIABLES, &[HEAP]);
        memory.put(variable(unused), &[HEAP + 48 * ARENAS]);
        memory.put(variable(usable), &[HEAP]);
        memory.put(variable(length), &[16]);
        memory.put(variable(number), &[ARENAS]);
        types(&mut memory);
        for arena in 0..ARENAS {
            let first = BASE + arena * self.arena();
            let counts = (self.pools - USED) | self.pools << 32;
            memory
                .put(HEAP + arena * 48, &[first, first + CARVED * self.pool, counts, first, 0, 0]);
            memory.put(first + 32, &[arena | 0xffff << 32, 0]);
            for pool in 1..CARVED {
                self.pool(&mut memory, first + pool * self.pool, arena);
            }
        }
        memory
    }

    fn pool(self, memory: &mut Pieces, at: u64, arena: u64) {
        let free = at + HEADER + 64;
        memory.put(at, &[3, free, 0, 0]);
        memory.put(at + 32, &[arena | 3 << 32, (HEADER + 4 * 64) | (self.pool - 64) << 32]);
        // A string, a free block, an object behind a header of the collector, and what looks like an object and is none:
        // its count is an address.
        memory.put(at + HEADER, &[1 | self.flags, TEXT]);
        memory.put(free, &[0]);
        memory.put(at + HEADER + 128, &[at, at, 7 | self.flags, POINT]);
        memory.put(at + HEADER + 192, &[DATA + 64, TEXT]);
    }

    fn space(self, memory: &Pieces) -> Space<'_> {
        let range = |kind, start, bytes| Range { kind, ..anonymous(start, bytes) };
        let ranges = vec![
            anonymous(BASE, ARENAS * self.arena()),
            range(RangeKind::File, DATA, DATA_BYTES),
            range(RangeKind::Heap, HEAP, HEAP_BYTES),
        ];
        Space::new(ranges, memory)
    }

    fn find(self, memory: &Pieces) -> Option<Found> {
        find(&self.space(memory), &Taken::default())
    }
}

fn types(memory: &mut Pieces) {
    let names = ["type", "Point", "str"];
    for (index, name) in (0..).zip(names) {
        memory.write(NAMES + index * 16, name.as_bytes());
    }
    let flags = [1 << 31 | 1 << 14 | 1 << 12, 1 << 14 | 1 << 12, 1 << 12];
    let places = [TYPE, POINT, TEXT];
    for (index, (at, flags)) in (0..).zip(places.into_iter().zip(flags)) {
        memory.put(at, &[1, TYPE, 0, NAMES + index * 16, 32, 0]);
        memory.put(at + 168, &[flags]);
    }
}

fn objects(found: &Found, name: &str) -> u64 {
    let one = found.heap.types.iter().find(|one| one.name == name);
    one.map_or(0, |one| one.objects)
}

/// Whether everything was read, and rightly.
fn is_right(found: &Found, kind: Kind) -> bool {
    let heap = &found.heap;
    let live = ARENAS * USED * 3;
    found.notes.is_empty()
        && heap.unknown_bytes == 0
        && (heap.live_objects, heap.live_bytes) == (live, live * 64)
        && heap.mapped_bytes == ARENAS * kind.arena()
        && heap.arenas.len() as u64 == ARENAS
        && heap.granules.empty == ARENAS
        && heap.classes.iter().map(|class| (class.size, class.granules)).collect::<Vec<_>>()
            == [(64, Some(ARENAS * USED))]
}

/// Whether types are right: none is seen that is not there.
fn types_are_right(found: &Found) -> bool {
    let pools = ARENAS * USED;
    let sum: u64 = found.heap.types.iter().map(|one| one.objects).sum();
    (objects(found, "Point"), objects(found, "str"), sum) == (pools, pools, pools * 3)
}

/// Each kind is read whole.
#[test]
fn kinds() {
    for kind in KINDS {
        let found = kind.find(&kind.memory()).expect("there are pools");
        assert!(is_right(&found, kind), "{:?} {:?}", found.heap, found.notes);
        assert!(types_are_right(&found), "{:?}", found.heap.types);
        assert_eq!(
            found.taken.iter().map(|(start, end)| end - start).sum::<u64>(),
            2 * kind.arena()
        );
    }
}

/// Seeds of the fuzz target `heaps`: each kind, and an interpreter that says its offsets.
#[test]
fn as_seeds() {
    for (kind, version) in KINDS.into_iter().zip(["3.9", "3.11", "3.12", "3.15"]) {
        let memory = kind.memory();
        let ranges = kind.space(&memory).ranges;
        seeds::check(&format!("cpython-{version}"), &memory, &ranges, "");
    }
    let mut memory = KINDS[2].memory();
    memory.put(RUNTIME, &runtime(0x030d_00f0, false, 41, &[88]));
    let ranges = KINDS[2].space(&memory).ranges;
    seeds::check("cpython-3.13", &memory, &ranges, "");
}

/// Moves the fields of a structure from the one at an index on by 8 bytes.
fn shift(memory: &mut Pieces, at: u64, field: u64, fields: u64) {
    let (_, piece) = memory
        .pieces
        .iter_mut()
        .find(|(start, piece)| (*start..*start + piece.len() as u64).contains(&at))
        .expect("the address is in a piece");
    let start = (at % PAGE + (at / PAGE * PAGE - piece_start(at))) as usize;
    let (from, to) = (start + field as usize * 8, start + fields as usize * 8);
    piece.copy_within(from..to - 8, from + 8);
    piece[from..from + 8].fill(0);
}

fn piece_start(at: u64) -> u64 {
    [BASE, HEAP, DATA].into_iter().find(|start| at >= *start && at - start < 1 << 32).unwrap_or(0)
}

/// A layout with one field moved, for each field: it is read rightly, or refused, or what was not read is unknown.
#[test]
fn shifted() {
    let mut refused = 0;
    for kind in KINDS {
        let pools: Vec<u64> = (0..ARENAS)
            .flat_map(|arena| (1..CARVED).map(move |pool| (arena, pool)))
            .map(|(arena, pool)| BASE + arena * kind.arena() + pool * kind.pool)
            .collect();
        let entries: Vec<u64> = (0..ARENAS).map(|arena| HEAP + arena * 48).collect();
        let structures: [(&[u64], u64); 4] =
            [(&pools, 6), (&pools[..1], 6), (&entries, 6), (&entries[..1], 6)];
        for (places, fields) in structures {
            for field in 0..fields {
                let mut memory = kind.memory();
                for at in places {
                    shift(&mut memory, *at, field, fields);
                }
                let Some(found) = kind.find(&memory) else {
                    refused += 1;
                    continue;
                };
                let is_told = found.heap.unknown_bytes > 0 && !found.notes.is_empty();
                refused += u64::from(is_told);
                assert!(is_told || is_right(&found, kind), "{field} of {fields}: {:?}", found.heap);
            }
        }
        // Variables, each alone.
        for by in kind.order.into_iter().chain([0]) {
            let mut memory = kind.memory();
            let at = VARIABLES.wrapping_add_signed(by);
            let word = kind.space(&memory).word(at).expect("it is there");
            memory.put(at, &[0, word]);
            let found = kind.find(&memory).expect("there are pools");
            let is_told = found.heap.unknown_bytes > 0 && !found.notes.is_empty();
            assert!(is_told || is_right(&found, kind), "variable at {by}: {:?}", found.heap);
        }
        // Types: their fields.
        for field in 1..22 {
            let mut memory = kind.memory();
            for at in [TYPE, POINT, TEXT] {
                shift(&mut memory, at, field, 23);
            }
            let found = kind.find(&memory).expect("there are pools");
            assert!(is_right(&found, kind));
            let none = objects(&found, "Point") == 0 && objects(&found, "str") == 0;
            assert!(none || types_are_right(&found), "field {field}: {:?}", found.heap.types);
        }
    }
    assert!(refused > 20, "{refused}");
}

/// What is listed and does not validate is unknown, by its bytes: a pool whose header is broken or not in memory, one whose
/// list of free blocks is broken, and free pools that are not there.
#[test]
fn unknown() {
    type Break = fn(&mut Pieces, u64);
    let kind = KINDS[2];
    let pool = BASE + 2 * kind.pool;
    let breaks: [Break; 5] = [
        |memory, pool| memory.put(pool + 40, &[0]),
        |memory, pool| memory.put(pool + 32, &[1 | 3 << 32]),
        |memory, pool| memory.absent.push(pool),
        |memory, pool| memory.put(pool + HEADER + 64, &[pool + HEADER + 64]),
        |memory, _| memory.put(HEAP + 16, &[(64 - USED + 1) | 64 << 32]),
    ];
    for (index, damage) in breaks.into_iter().enumerate() {
        let mut memory = kind.memory();
        damage(&mut memory, pool);
        let found = kind.find(&memory).expect("there are pools");
        assert_eq!(found.heap.unknown_bytes, kind.pool, "{index}");
        assert_eq!(found.notes.len(), 1, "{index}: {:?}", found.notes);
        assert_eq!(found.heap.mapped_bytes, ARENAS * kind.arena());
    }
    // An arena that the list has and no memory; a number that does not fit; no list.
    let breaks: [Break; 3] = [
        |memory, _| memory.put(HEAP + 96, &[BASE - (1 << 20), BASE, 64 << 32, 0]),
        |memory, _| memory.put(VARIABLES + 552, &[ARENAS + 1]),
        |memory, _| memory.put(VARIABLES, &[0, 16, 0, 0]),
    ];
    for damage in breaks {
        let mut memory = kind.memory();
        damage(&mut memory, pool);
        let found = kind.find(&memory).expect("there are pools");
        assert_eq!(found.heap.unknown_bytes, ARENAS * (kind.pools - USED) * kind.pool);
        assert!(found.notes[0].contains("list of arenas was not found"), "{:?}", found.notes);
    }
}

/// Pages that the last block of a pool ends in need not be present. Blocks that begin in an absent page are not counted
/// by type.
#[test]
fn absent_pages() {
    let kind = KINDS[2];
    let mut memory = kind.memory();
    let at = BASE + 2 * kind.pool;
    // Blocks of 512 bytes: eight begin in the first page, and two free ones, or one that is in use, in the second.
    let (free, unused) = (at + HEADER + 8 * 512, HEADER + 10 * 512);
    memory.put(at, &[8, free, 0, 0]);
    memory.put(at + 32, &[31 << 32, unused | (kind.pool - 512) << 32]);
    memory.put(free, &[free + 512]);
    memory.absent.push(at + PAGE);
    let found = kind.find(&memory).expect("there are pools");
    assert_eq!(found.heap.unknown_bytes, 0, "{:?}", found.notes);
    assert_eq!(objects(&found, "(not in memory)"), 8, "the list of free blocks is not there");
    memory.put(at, &[9, 0, 0, 0]);
    memory.put(at + 40, &[(HEADER + 9 * 512) | (kind.pool - 512) << 32]);
    let found = kind.find(&memory).expect("there are pools");
    assert_eq!(objects(&found, "(not in memory)"), 1);
}

/// What an interpreter says of itself, with members in front of those of objects and types, and between them.
fn runtime(version: u64, is_free_threaded: bool, front: usize, between: &[u64]) -> Vec<u64> {
    let object: u64 = if is_free_threaded { 32 } else { 16 };
    let mut words = vec![runtime::COOKIE, version, u64::from(is_free_threaded)];
    words.extend((0..front).map(|index| 500 + index as u64 * 8));
    words.extend([object, object - 8, 424, object + 8]);
    words.extend(between);
    words.extend([object + 152, 24, 24, 16, 40, 24, 16, 48, 32, 16, 24]);
    words
}

/// The offsets that the interpreter says are used, whichever version it is; without them types are not read; a
/// free-threaded one has none.
#[test]
fn says_offsets() {
    let kind = KINDS[2];
    for (version, front, between) in [
        (0x030d_00f0, 41, [88].as_slice()),
        (0x030e_0af0, 47, &[88]),
        (0x030f_02f0, 55, &[88]),
        // One that might come.
        (0x0310_00f0, 60, &[32, 288, 88]),
    ] {
        let mut memory = kind.memory();
        memory.put(RUNTIME, &runtime(version, false, front, between));
        let found = kind.find(&memory).expect("there are pools");
        assert!(is_right(&found, kind) && types_are_right(&found), "{:?}", found.notes);
    }
    // A type of another layout: its name is at no known offset.
    let mut memory = kind.memory();
    memory.put(RUNTIME, &runtime(0x0310_00f0, false, 60, &[1, 2, 3, 4, 5, 6, 7]));
    let found = kind.find(&memory).expect("there are pools");
    assert!(found.heap.types.is_empty() && found.heap.unknown_bytes == 0);
    assert!(found.notes[0].contains("CPython 3.16"), "{:?}", found.notes);
    let mut memory = Pieces::default();
    memory.pieces.push((DATA, vec![0; DATA_BYTES as usize]));
    memory.put(RUNTIME, &runtime(0x030e_00f0, true, 44, &[104]));
    let space = |memory: &Pieces| {
        let range = Range { kind: RangeKind::File, ..anonymous(DATA, DATA_BYTES) };
        find(&Space::new(vec![range], memory), &Taken::default())
    };
    let found = space(&memory).expect("there is a note");
    assert!(found.notes[0].starts_with("CPython 3.14, free-threaded"), "{:?}", found.notes);
    assert_eq!((found.heap.mapped_bytes, found.taken.len()), (0, 0));
    memory.put(RUNTIME, &[runtime::COOKIE, 7]);
    assert!(space(&memory).is_none());
}

/// An interpreter of its own has its list in a heap; pools of no list are unknown.
#[test]
fn second_interpreter() {
    let kind = KINDS[2];
    let other = BASE + (1 << 32);
    let mut memory = kind.memory();
    memory.pieces.push((other, vec![0; kind.arena() as usize]));
    for pool in 0..CARVED {
        kind.pool(&mut memory, other + pool * kind.pool, 0);
    }
    let with = |memory: &Pieces| {
        let mut ranges = kind.space(memory).ranges;
        ranges.push(anonymous(other, kind.arena()));
        find(&Space::new(ranges, memory), &Taken::default()).expect("there are pools")
    };
    let found = with(&memory);
    assert_eq!(found.heap.unknown_bytes, CARVED * kind.pool);
    assert!(found.notes[0].contains("10 pools were not read"), "{:?}", found.notes);
    let (list, variables) = (HEAP + 0x400, HEAP + 0x800);
    let counts = (kind.pools - CARVED) | kind.pools << 32;
    memory.put(list, &[other, other + CARVED * kind.pool, counts, 0, 0, 0]);
    memory.put(variables, &[list, 16, list + 48, list]);
    memory.put(variables + 552, &[1]);
    let found = with(&memory);
    assert_eq!((found.heap.unknown_bytes, found.notes.len()), (0, 0), "{:?}", found.notes);
    assert_eq!(found.heap.live_objects, 3 * (ARENAS * USED + CARVED));
    assert_eq!(found.heap.arenas.last().map(|arena| arena.number), Some(ARENAS));
}

proptest! {
    /// Whatever stands in pools, lists and types, the census ends and counts no more than there is room for.
    #[test]
    fn hostile(words in prop::collection::vec((0..3u8, any::<u16>(), any::<u64>(), 0..5u8), 0..100)) {
        let kind = KINDS[0];
        let mut memory = kind.memory();
        let bytes = ARENAS * kind.arena();
        for (place, at, word, what) in words {
            let at = u64::from(at) * 8;
            let at = match place {
                0 => BASE + at % bytes,
                1 => DATA + at % DATA_BYTES,
                _ => HEAP + at % HEAP_BYTES,
            };
            let word = match what {
                0 => word,
                1 => BASE + word % bytes,
                2 => DATA + word % DATA_BYTES / 8 * 8,
                3 => HEAP + word % HEAP_BYTES / 8 * 8,
                _ => 16 << (word % 8),
            };
            memory.put(at, &[word]);
        }
        if let Some(found) = kind.find(&memory) {
            let heap = found.heap;
            prop_assert!(heap.live_bytes <= bytes);
            prop_assert!(heap.resident_bytes <= 2 * bytes);
            let right = ARENAS * USED * 3;
            prop_assert!(heap.unknown_bytes > 0 || !found.notes.is_empty() || heap.live_objects <= right + 3 * kind.pools * ARENAS);
        }
    }

    /// A list, a pool or a type with fields moved by any number of words is no reason for another number.
    #[test]
    fn moved(place in 0..3u8, number in 0..ARENAS * USED, field in 0..6u64, kind in 0..KINDS.len(), times in 1..4u32) {
        let kind = KINDS[kind];
        let mut memory = kind.memory();
        let (arena, pool) = (number / USED, number % USED + 1);
        for _ in 0..times {
            match place {
                0 => shift(&mut memory, BASE + arena * kind.arena() + pool * kind.pool, field, 6),
                1 => shift(&mut memory, HEAP + arena * 48, field, 6),
                _ => shift(&mut memory, VARIABLES - 552, field + 66, 138),
            }
        }
        if let Some(found) = kind.find(&memory) {
            let is_told = found.heap.unknown_bytes > 0 && !found.notes.is_empty();
            prop_assert!(is_told || is_right(&found, kind), "{:?} {:?}", found.heap, found.notes);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for kind in KINDS {
        let mut memory = kind.memory();
        types(&mut memory);
        let ranges = kind.space(&memory).ranges;
        crate::testing::cut_short(&ranges, &memory);
    }
}
