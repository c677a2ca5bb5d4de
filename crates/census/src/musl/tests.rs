use proptest::prelude::*;

use super::{
    context::{AREA_HEADER, META, SLOTS},
    *,
};
use crate::{
    space::{Range, RangeKind},
    testing::{Pieces, anonymous, seeds},
};

const DATA: u64 = 0x7f00_0000_0000;
const CONTEXT: u64 = DATA + 512;
const AREAS: u64 = 0x7e00_0000_0000;
const GROUPS: u64 = 0x7d00_0000_0000;
const GROUP_PAGES: u64 = 8;
const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;

struct World {
    memory: Pieces,
    ranges: Vec<Range>,
    /// Descriptions that were made.
    metas: u64,
    shift: u64,
    usage: [u64; 48],
}

impl World {
    fn new(shift: u64) -> Self {
        let mut memory = Pieces::default();
        memory.pieces.push((DATA, vec![0; PAGE as usize]));
        memory.pieces.push((AREAS, vec![0; PAGE as usize]));
        memory.pieces.push((GROUPS, vec![0; (GROUP_PAGES * PAGE) as usize]));
        let data = Range { kind: RangeKind::File, ..anonymous(DATA, PAGE) };
        let ranges = vec![data, anonymous(AREAS, PAGE), anonymous(GROUPS, GROUP_PAGES * PAGE)];
        memory.put(AREAS, &[SECRET, 0, SLOTS]);
        Self { memory, ranges, metas: 0, shift, usage: [0; 48] }
    }

    /// A group, with the slots that are free as bits.
    fn group(&mut self, at: u64, (class, last): (u64, u64), free: u64, pages: u64, given: bool) {
        let meta = AREAS + AREA_HEADER + self.metas * META;
        let bits = last | u64::from(!given) << 5 | class << 6 | pages << 12;
        self.memory.put(meta, &[0, 0, at, free & 0xf | (free & !0xf) << 32, bits]);
        self.memory.put(at, &[meta, last]);
        self.metas += 1;
        if class < 48 && !given {
            self.usage[class as usize] += last + 1;
        }
    }

    fn context(&mut self) {
        let at = CONTEXT + self.shift;
        if self.shift > 0 {
            self.memory.put(CONTEXT + 8, &[PAGE]);
        }
        self.memory.put(CONTEXT, &[SECRET]);
        self.memory.put(at + 8, &[1, 0, AREAS + AREA_HEADER + self.metas * META]);
        self.memory.put(at + 32, &[SLOTS - self.metas, 0, 1, AREAS, AREAS, 0]);
        self.memory.put(at + 464, &self.usage);
        self.memory.put(at + 920, &[u64::MAX]);
    }
}

/// A group of 15 slots of 256 bytes; in one of them a group of 7 slots of 32; an object of three pages; an object in the
/// loader's data; a free description.
fn world(shift: u64) -> World {
    let mut world = World::new(shift);
    // Class 11: 15 units of 16 bytes.
    world.group(GROUPS, (11, 14), 0b101_0000_0000_0110, 1, false);
    world.group(GROUPS + 16 + 3 * 240, (1, 5), 0b11_0001, 0, false);
    world.group(GROUPS + 4 * PAGE, (63, 0), 0, 3, false);
    world.group(DATA + 2048, (3, 0), 0, 0, true);
    world.metas += 1;
    world.context();
    world
}

fn found(world: &World) -> Option<Found> {
    find(&Space::new(world.ranges.clone(), &world.memory), &Taken::default())
}

/// Slots in use are objects, but for one that holds a group; what is free and what is mapped is reported.
#[test]
fn groups_and_slots() {
    for shift in [0, 8] {
        let Found { heap, notes, taken, .. } = found(&world(shift)).expect("there is a context");
        // 15 - 4 free - 1 with a group, 6 - 3 free, one alone, one of the loader's.
        assert_eq!(heap.live_objects, 10 + 3 + 1 + 1);
        assert_eq!(heap.live_bytes, 10 * 240 + 3 * 32 + 3 * PAGE - 16 + 64);
        assert_eq!(heap.free_bytes, 4 * 240 + 3 * 32);
        assert_eq!((heap.mapped_alone_bytes, heap.mapped_bytes), (3 * PAGE, 5 * PAGE));
        assert_eq!((heap.unknown_bytes, notes), (0, Vec::new()));
        assert_eq!((heap.allocator.as_str(), heap.trimmable_bytes), ("musl", None));
        assert_eq!(taken.len(), 3);
        let held: u64 = heap.granules.held.iter().map(|held| held.granules).sum();
        assert_eq!((held + heap.granules.full, heap.granules.empty), (4, 0));
    }
}

/// Seeds of the fuzz target `heaps`.
#[test]
fn as_seeds() {
    for shift in [0, 8] {
        let World { memory, ranges, .. } = world(shift);
        seeds::check(&format!("musl-{shift}"), &memory, &ranges, "");
    }
}

/// A group that does not lead back, or lies in no slot in use, is unknown; so is what the counts have more or less.
#[test]
fn contradictions() {
    let meta = |index: u64| AREAS + AREA_HEADER + index * META;
    let usage = CONTEXT + 464 + 11 * 8;
    let bits = |class: u64, pages: u64| 0b10_1110 | class << 6 | pages << 12;
    let changes: [(u64, u64); 8] = [
        (GROUPS, 0),
        (GROUPS, meta(1)),
        // Slots that are both available and freed, or more than there are.
        (meta(0) + 24, 1 | 1 << 32),
        (meta(0) + 24, 1 << 15),
        // A class with larger slots, more pages than are mapped, a neighbour that does not lead back.
        (meta(0) + 32, bits(12, 1)),
        (meta(0) + 32, bits(11, 64)),
        (meta(0), meta(1)),
        (usage, 30),
    ];
    for (at, word) in changes {
        let mut world = world(0);
        world.memory.put(at, &[word]);
        let Found { heap, notes, .. } = found(&world).unwrap();
        assert!(heap.unknown_bytes >= 960 && !notes.is_empty(), "{at:x} {word:x}: {heap:?}");
    }
    // The slot that held a group is free.
    let mut world = world(0);
    world.memory.put(meta(0) + 24, &[0b1000]);
    let Found { heap, notes, .. } = found(&world).unwrap();
    assert!(heap.unknown_bytes > 0 && !notes.is_empty(), "{heap:?}");
}

/// Moves what stands in a structure from a field on by 8 bytes, up or down.
fn shift(world: &mut World, (start, bytes): (u64, u64), field: u64, up: bool) {
    let space = Space::new(world.ranges.clone(), &world.memory);
    let words = (start..start + bytes).step_by(8);
    let all: Vec<u64> = words.map(|at| space.word(at).expect("it is there")).collect();
    let at = (field / 8) as usize;
    let mut words = all.clone();
    if up {
        words.insert(at, 0);
    } else if at > 0 {
        words.remove(at - 1);
        words.push(0);
    }
    words.truncate(all.len());
    world.memory.put(start, &words);
}

/// Each field of the context and of the area's head, 8 bytes up and 8 bytes down: there is no heap, or it is whole.
#[test]
fn each_field() {
    let context = [0u64, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 464, 848, 880, 912, 920];
    let area = [0, 8, 16, 24];
    let fields = context.map(|field| (CONTEXT, field, 928)).into_iter();
    for (start, field, bytes) in fields.chain(area.map(|field| (AREAS, field, AREA))) {
        for up in [true, false] {
            let mut world = world(0);
            shift(&mut world, (start, bytes), field, up);
            if let Some(Found { heap, notes, .. }) = found(&world) {
                assert!(
                    heap.live_objects == 15 || !notes.is_empty(),
                    "{start:x} {field} {up} {heap:?}"
                );
            }
        }
    }
}

/// Another secret in an area: it is no context.
#[test]
fn secret() {
    let mut world = world(0);
    world.memory.put(AREAS, &[SECRET + 1]);
    assert!(found(&world).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(128),
        ..ProptestConfig::default()
    })]

    /// A structure with a field moved by any number of words: there is no heap, or it is whole, or it is said that it is not.
    #[test]
    fn moved(
        shift_of_all in 0..2u64,
        (in_context, field, up, times) in (any::<bool>(), 0..928u64, any::<bool>(), 1..4u8),
    ) {
        let mut world = world(shift_of_all * 8);
        // All descriptions behind the head of an area move with it.
        let (structure, field) =
            if in_context { ((CONTEXT, 928), field) } else { ((AREAS, AREA), field % 32) };
            for _ in 0..times {
                shift(&mut world, structure, field, up);
            }
        if let Some(Found { heap, notes, .. }) = found(&world) {
            prop_assert!(heap.live_objects == 15 || !notes.is_empty(), "{heap:?}");
        }
    }

    /// Whatever the structures say, the census ends, and counts no more than there is.
    #[test]
    fn hostile(words in prop::collection::vec((0..3usize, 0..512u64, any::<u64>(), 0..4u8), 0..12)) {
        let mut world = world(0);
        for (place, at, word, kind) in words {
            let start = [CONTEXT, AREAS, GROUPS][place];
            let at = if place == 0 { at % 116 } else { at % 32 };
            let word = match kind {
                0 => word,
                1 => word % 4096,
                2 => AREAS + AREA_HEADER + word % SLOTS * META,
                _ => GROUPS + word % (GROUP_PAGES * PAGE) / 16 * 16,
            };
            world.memory.put(start + at * 8, &[word]);
        }
        let space = Space::new(world.ranges.clone(), &world.memory);
        if let Some(Found { heap, .. }) = find(&space, &Taken::default()) {
            let all = (GROUP_PAGES + 2) * PAGE;
            prop_assert!(heap.mapped_bytes <= all, "{heap:?}");
            prop_assert!(heap.resident_bytes <= heap.mapped_bytes, "{heap:?}");
            prop_assert!(heap.live_bytes <= all, "{heap:?}");
            prop_assert!(space.read_bytes() < 1 << 30);
        }
    }
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for shift in [0, 8] {
        let world = world(shift);
        crate::testing::cut_short(&world.ranges, &world.memory);
    }
}
