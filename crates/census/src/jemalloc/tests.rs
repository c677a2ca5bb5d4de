use proptest::prelude::*;

use super::{
    extent::{Bits, Layout, size_of},
    *,
};
use crate::{
    budget::{Bounds, Budget},
    cxx::tests::{SESSION, add_classes},
    model::Heap,
    space::{Range, RangeKind},
    testing::{Pieces, anonymous, are_apart, seeds},
};

const DATA: u64 = 0x1000_0000;
/// Parts of the tree below the first.
const PARTS: u64 = 0x3000_0000;
const EDATAS: u64 = 0x7e00_0000_0000;
const SLABS: u64 = 0x7f00_0000_0000;
const COUNT: u64 = 8;
/// Behind the slabs, a large object with a page more, and dirty pages.
const LARGE: u64 = SLABS + COUNT * PAGE;
const LARGE_BYTES: u64 = 5 * PAGE;
const FREE: u64 = LARGE + LARGE_BYTES;
const FREE_BYTES: u64 = 2 * PAGE;
const END: u64 = FREE + FREE_BYTES;
/// Bytes of a part of the tree: where addresses have 48 bits, and 57.
const NARROW: u64 = 2 << 20;
const WIDE: u64 = 512 << 10;

/// What the tree says of an extent: description, size index, state, and whether it is a slab.
type Leaf = (u64, u64, u64, bool);

struct World {
    memory: Pieces,
    ranges: Vec<Range>,
    /// What the entry of each page is written with.
    leaf: Write,
    is_wide: bool,
}

fn new_leaf((description, index, state, is_slab): Leaf) -> [u64; 2] {
    [description | index << 48 | state << 2 | u64::from(is_slab), 0]
}

fn old_leaf((description, index, _, is_slab): Leaf) -> [u64; 2] {
    [description | index << 48 | u64::from(is_slab), 0]
}

fn new_wide_leaf((description, index, state, is_slab): Leaf) -> [u64; 2] {
    [description, index << 5 | state << 2 | u64::from(is_slab)]
}

fn old_wide_leaf((description, index, _, is_slab): Leaf) -> [u64; 2] {
    [description, index | u64::from(is_slab) << 32]
}

/// What an entry is written with.
type Write = fn(Leaf) -> [u64; 2];

const LEAVES: [[Write; 2]; 2] = [[new_leaf, old_leaf], [new_wide_leaf, old_wide_leaf]];

impl World {
    fn empty(leaf: Write, is_wide: bool) -> Self {
        let mut memory = Pieces::default();
        let part = if is_wide { WIDE } else { NARROW };
        let data = if is_wide { 256 << 10 } else { NARROW };
        memory.pieces.push((EDATAS, vec![0; 4096]));
        memory.pieces.push((SLABS, vec![0; (END - SLABS) as usize]));
        let ranges = vec![
            Range { kind: RangeKind::File, ..anonymous(DATA, data) },
            anonymous(PARTS, 2 * part),
            anonymous(EDATAS, 4096),
            anonymous(SLABS, END - SLABS),
        ];
        // The pages of the tree that lead there.
        let (root, middle, last) = if is_wide {
            (DATA + (SLABS >> 42) * 8, Some(PARTS + (SLABS >> 27 & 0x7fff) * 8), PARTS + part)
        } else {
            (DATA + (SLABS >> 30) * 8, None, PARTS)
        };
        let present: Vec<u64> = [Some(root), middle, Some(last)]
            .into_iter()
            .flatten()
            .map(|at| at / PAGE * PAGE)
            .collect();
        for (start, end) in [(DATA, DATA + data), (PARTS, PARTS + 2 * part)] {
            let mut at = start;
            for page in present.iter().filter(|page| (start..end).contains(*page)) {
                memory.pieces.push((*page, vec![0; PAGE as usize]));
                memory.untouched.push((at, *page));
                at = page + PAGE;
            }
            memory.untouched.push((at, end));
        }
        memory.put(root, &[PARTS]);
        if let Some(middle) = middle {
            memory.put(middle, &[last]);
        }
        Self { memory, ranges, leaf, is_wide }
    }

    /// Writes the description with a number, and the tree's entries for its pages.
    fn extent(
        &mut self,
        layout: &Layout,
        number: u64,
        address: u64,
        [bytes, index, state, free]: [u64; 4],
    ) {
        let at = EDATAS + number * EDATA as u64;
        let is_slab = free > 0;
        let put = |Bits(shift, _): Bits, value: u64| value << shift;
        let word = put(layout.slab, u64::from(is_slab))
            | put(layout.state, state)
            | put(layout.index, index)
            | put(layout.free, free)
            | put(layout.arena, 3);
        self.memory.put(at + layout.bitmap as u64, &[(1 << free) - 1]);
        self.memory.put(at + layout.size as u64, &[bytes | 5]);
        self.memory.put(at + layout.address as u64, &[address]);
        self.memory.put(at, &[word]);
        let first = address / PAGE;
        let last = first + bytes / PAGE - 1;
        for page in [first, last] {
            self.entry(page, (at, index, state, is_slab));
        }
    }

    fn entry(&mut self, page: u64, leaf: Leaf) {
        let [entry, more] = (self.leaf)(leaf);
        let number = page - SLABS / PAGE;
        if self.is_wide {
            self.memory.put(PARTS + WIDE + number * 16, &[entry, more]);
        } else {
            self.memory.put(PARTS + number * 8, &[entry]);
        }
    }

    fn found(&self) -> Option<Heap> {
        let space = Space::new(self.ranges.clone(), &self.memory);
        find(&space, &Taken::default()).map(|found| found.heap)
    }
}

/// Slabs of a page with 64 regions of 64 bytes, of which 60 are free; a large object; and dirty pages.
fn world(layout: &Layout, leaf: Write, is_wide: bool) -> World {
    let mut world = World::empty(leaf, is_wide);
    for slab in 0..COUNT {
        world.extent(layout, slab, SLABS + slab * PAGE, [PAGE, 4, 0, 60]);
    }
    world.extent(layout, COUNT, LARGE + 0x140, [LARGE_BYTES, 36, 0, 0]);
    world.extent(layout, COUNT + 1, FREE, [FREE_BYTES, 232, 1, 0]);
    world
}

const LIVE: u64 = COUNT * 4 + 1;
const LIVE_BYTES: u64 = COUNT * 4 * 64 + LARGE_BYTES - PAGE;

/// Each layout is read in each kind of tree; what two counts of free regions do not agree on is unknown, as is an extent
/// of which the tree says something else, or all where no tree is found.
#[test]
fn layouts() {
    for (is_wide, leaves) in [false, true].into_iter().zip(LEAVES) {
        for (layout, leaf) in LAYOUTS.iter().zip(leaves) {
            let mut world = world(layout, leaf, is_wide);
            let heap = world.found().expect("there are slabs");
            assert_eq!((heap.live_objects, heap.live_bytes), (LIVE, LIVE_BYTES));
            assert_eq!((heap.mapped_bytes, heap.unknown_bytes), (END - SLABS, 0));
            assert_eq!(
                (heap.granules.held[0].objects_max, heap.granules.held[0].granules),
                (Some(4), 8)
            );
            assert_eq!((heap.arenas.len(), heap.arenas[0].number), (1, 3));
            // One free region more than the bitmap says.
            world.memory.put(EDATAS + 64, &[0]);
            let heap = world.found().expect("there are slabs");
            assert_eq!((heap.live_objects, heap.unknown_bytes), (LIVE - 4, PAGE));
            // The tree says that a slab has another size.
            world.entry(SLABS / PAGE + 1, (EDATAS + EDATA as u64, 5, 0, true));
            let heap = world.found().expect("there are slabs");
            assert_eq!((heap.live_objects, heap.unknown_bytes), (LIVE - 8, 2 * PAGE));
            // Nothing leads to the tree.
            world.ranges.remove(0);
            let heap = world.found().expect("there are slabs");
            assert_eq!((heap.live_objects, heap.unknown_bytes), (0, (COUNT - 1) * PAGE));
        }
    }
}

/// Seeds of the fuzz target `heaps`: 5.3 and 5.1, each with addresses of 48 bits and 57; classes; slabs with more free
/// regions than there are; a piece of memory full of descriptions of extents that are not there.
#[test]
fn as_seeds() {
    for (is_wide, leaves) in [false, true].into_iter().zip(LEAVES) {
        let width = if is_wide { "57" } else { "48" };
        for ((layout, leaf), version) in LAYOUTS.iter().zip(leaves).zip(["5.3", "5.1"]) {
            let mut world = world(layout, leaf, is_wide);
            let name = format!("jemalloc-{version}-{width}");
            seeds::check(&name, &world.memory, &world.ranges, "");
            if is_wide {
                continue;
            }
            world.extent(layout, 0, SLABS, [PAGE, 4, 0, 63]);
            let bits = world.memory.word(EDATAS) | 0x3ff << layout.free.0;
            world.memory.put(EDATAS, &[bits]);
            let name = format!("more-free-than-regions-{version}");
            seeds::check(&name, &world.memory, &world.ranges, "");
        }
    }
    // A root that leads to one part from each of its entries.
    let repeated = world(&LAYOUTS[0], new_leaf, false);
    let root = (DATA + (SLABS >> 30) * 8) / PAGE * PAGE;
    let fill = format!("fill {root:x} 200 8 {PARTS:x} 0\n");
    seeds::check("parts-repeated", &repeated.memory, &repeated.ranges, &fill);
    let world = with_classes();
    seeds::check("jemalloc-classes", &world.memory, &world.ranges, "");
    for is_listed in [false, true] {
        many_extents(is_listed);
    }
}

/// A seed with extents of a page each, of which the tree knows, or does not: what is kept of each must not cost more than
/// it has.
fn many_extents(is_listed: bool) {
    const EXTENTS: u64 = 1 << 14;
    let (at, step) = (EDATAS + (1 << 30), EDATA as u64);
    let mut world = world(&LAYOUTS[0], new_leaf, false);
    world.memory.pieces.push((at, vec![0; (EXTENTS * step) as usize]));
    world.ranges.extend([anonymous(at, EXTENTS * step)]);
    let mut fill = format!("fill {at:x} {EXTENTS:x} {step:x}");
    for offset in (0..step).step_by(8) {
        let pair = match world.memory.word(EDATAS + offset) {
            _ if offset == LAYOUTS[0].address as u64 => format!(" {END:x} 1000"),
            value => format!(" {value:x} 0"),
        };
        fill += &pair;
    }
    if is_listed {
        world.ranges.push(anonymous(END, EXTENTS * PAGE));
        world.memory.pieces.push((PARTS + PAGE, vec![0; (EXTENTS * 8) as usize]));
        let ([entry, _], first) = ((world.leaf)((at, 4, 0, true)), (END - SLABS) / PAGE * 8);
        let entries = format!("\nfill {:x} {EXTENTS:x} 8 {entry:x} {step:x}", PARTS + first);
        fill += &entries;
    }
    let name = if is_listed { "extents-listed" } else { "extents" };
    seeds::check(name, &world.memory, &world.ranges, &(fill + "\n"));
}

/// Descriptions of another layout that no tree has do not matter; nor do those of the tree that make sense in both.
#[test]
fn other_layout() {
    let mut world = world(&LAYOUTS[0], new_leaf, false);
    for slab in 0..COUNT {
        let at = EDATAS + (COUNT + 4 + slab) * EDATA as u64;
        world.memory.put(at, &[1 << 12 | 4 << 18 | 60 << 26, SLABS + slab * PAGE, PAGE]);
        world.memory.put(at + 64, &[(1 << 60) - 1]);
    }
    assert_eq!(world.found().map(|heap| (heap.live_objects, heap.unknown_bytes)), Some((LIVE, 0)));
}

/// The fields of a description, by bits and by bytes.
const BITS: [fn(&mut Layout) -> &mut Bits; 4] =
    [|one| &mut one.slab, |one| &mut one.state, |one| &mut one.index, |one| &mut one.free];
const WORDS: [fn(&mut Layout) -> &mut usize; 3] =
    [|one| &mut one.address, |one| &mut one.size, |one| &mut one.bitmap];

/// Where one field lies elsewhere, nothing is read, or it is unknown.
#[test]
fn shifted() {
    for (is_wide, leaves) in [false, true].into_iter().zip(LEAVES) {
        for (layout, leaf) in LAYOUTS.iter().zip(leaves) {
            let mut moved = Vec::new();
            for (field, by) in BITS.iter().flat_map(|field| [(field, 1), (field, 8)]) {
                let mut layout = *layout;
                field(&mut layout).0 += by;
                moved.push(layout);
            }
            for field in WORDS {
                let mut layout = *layout;
                *field(&mut layout) += 8;
                moved.push(layout);
            }
            for (index, layout) in moved.iter().enumerate() {
                let heap = world(layout, leaf, is_wide).found();
                assert!(is_doubted_or_right(heap.as_ref()), "{index}: {heap:?}");
            }
        }
    }
}

/// Where the tree's entries have one field elsewhere, or its parts are, nothing is read, or it is unknown.
#[test]
fn shifted_tree() {
    let leaves: [Write; 7] = [
        |(at, index, state, slab)| [at | index << 49 | state << 2 | u64::from(slab), 0],
        |(at, index, state, slab)| [at | index << 56 | state << 2 | u64::from(slab), 0],
        |(at, index, state, slab)| [at | index << 48 | state << 3 | u64::from(slab), 0],
        |(at, index, state, slab)| [at | index << 48 | state << 2 | u64::from(slab) << 1, 0],
        |(at, index, state, slab)| [(at + 128) | index << 48 | state << 2 | u64::from(slab), 0],
        |(at, index, state, slab)| [at << 8 | index << 48 | state << 2 | u64::from(slab), 0],
        |_| [0, 0],
    ];
    for (index, leaf) in leaves.into_iter().enumerate() {
        let heap = world(&LAYOUTS[0], leaf, false).found();
        assert!(is_doubted_or_right(heap.as_ref()), "{index}: {heap:?}");
    }
    for (at, by) in [(DATA + (SLABS >> 30) * 8, 8), (PARTS, 8), (PARTS, 16)] {
        let mut world = world(&LAYOUTS[0], new_leaf, false);
        let space = Space::new(world.ranges.clone(), &world.memory);
        let words: [u64; 20] = space.words(at).expect("it is written");
        world.memory.put(at, &vec![0; by as usize / 8]);
        world.memory.put(at + by, &words);
        let heap = world.found();
        assert!(is_doubted_or_right(heap.as_ref()), "{at:x}: {heap:?}");
    }
}

fn is_doubted_or_right(heap: Option<&Heap>) -> bool {
    heap.is_none_or(|heap| {
        heap.unknown_bytes > 0 || (heap.live_objects, heap.live_bytes) == (LIVE, LIVE_BYTES)
    })
}

/// A world with objects of a class, and one that a sampler has given an extent of its own.
fn with_classes() -> World {
    let mut world = world(&LAYOUTS[1], old_leaf, false);
    world.extent(&LAYOUTS[1], COUNT, LARGE + 0x140, [LARGE_BYTES, 36, 0, 0]);
    let file = add_classes(&mut world.memory);
    world.ranges.push(file);
    for at in [SLABS + 60 * 64, SLABS + 61 * 64, SLABS + PAGE + 63 * 64, LARGE + 0x140] {
        world.memory.put(at, &[SESSION]);
    }
    world
}

/// Classes of what is live; a small object that a sampler has given an extent of its own.
#[test]
fn objects() {
    let mut world = with_classes();
    let heap = world.found().expect("there are slabs");
    assert_eq!((heap.live_objects, heap.granules.full), (LIVE, 1));
    let [one] = heap.types.as_slice() else { panic!("{:?}", heap.types) };
    assert_eq!((one.name.as_str(), one.objects, one.arenas), ("Session", 4, 3));
    assert_eq!((one.arenas_alone, one.alone_bytes), (1, LARGE_BYTES));
    world.extent(&LAYOUTS[1], COUNT, LARGE, [LARGE_BYTES, 8, 0, 0]);
    let heap = world.found().expect("there are slabs");
    assert_eq!((heap.live_objects, heap.live_bytes), (LIVE, COUNT * 4 * 64 + 128));
}

proptest! {
    /// Where a field lies anywhere else, nothing is read, or it is unknown.
    #[test]
    fn moved(
        (index, is_wide) in (0..LAYOUTS.len(), any::<bool>()),
        (field, by, up) in (0..BITS.len() + WORDS.len(), 1..=6u8, any::<bool>()),
    ) {
        let mut layout = LAYOUTS[index];
        if let Some(field) = BITS.get(field) {
                let (Bits(at, _), by) = (field(&mut layout), u32::from(by));
                *at = if up { *at + by } else { at.saturating_sub(by) };
            } else {
                let (at, by) = (WORDS[field - BITS.len()](&mut layout), usize::from(by) * 8);
                *at = if up { *at + by } else { at.saturating_sub(by) };
            }
        let bits = BITS.map(|field| *field(&mut layout)).into_iter().chain([layout.arena]);
        let words = [(0, 8), (layout.address, 8), (layout.size, 8), (layout.bitmap, 64)];
        if !(are_apart(bits.map(|Bits(at, bits)| (at.into(), bits.into())))) {
 return Ok(());
 }
        if !(are_apart(words.map(|(at, bytes)| (at as u64, bytes)))) {
 return Ok(());
 }
        let heap = world(&layout, LEAVES[usize::from(is_wide)][index], is_wide).found();
        prop_assert!(is_doubted_or_right(heap.as_ref()), "{layout:?}: {heap:?}");
    }

    /// Whatever the structures say, extents do not overlap, and the census ends.
    #[test]
    fn hostile(
        (index, is_wide) in (0..LAYOUTS.len(), any::<bool>()),
        words in prop::collection::vec((0..2u8, 0..512u64, any::<u64>(), 0..4u8), 0..60),
    ) {
        let mut world = world(&LAYOUTS[index], LEAVES[usize::from(is_wide)][index], is_wide);
        for (place, at, word, kind) in words {
            let place = match (place, is_wide) {
                (0, _) => EDATAS,
                (_, true) => PARTS + WIDE,
                _ => PARTS,
            };
            let word = match kind {
                0 => word,
                1 => SLABS + word % (END - SLABS),
                2 => (EDATAS + word % 4096) | (word & (0xff << 48)),
                _ => word % (1 << 38),
            };
            world.memory.put(place + at % 256 * 8, &[word]);
        }
        if let Some(heap) = world.found() {
            prop_assert!(heap.mapped_bytes <= END - SLABS + 4096);
            prop_assert!(heap.live_bytes <= heap.mapped_bytes);
        }
    }
}

/// The classes of jemalloc's own table.
#[test]
fn size_classes() {
    for (index, size) in
        [(0, 8), (1, 16), (4, 64), (5, 80), (8, 128), (9, 160), (12, 256), (28, 4096), (36, 16384)]
    {
        assert_eq!(size_of(index), size, "{index}");
    }
    assert!((0..=255).all(|index| size_of(index) < u64::MAX / 2));
}

/// What was not read for want of a budget is unknown.
#[test]
fn cut_short() {
    for (is_wide, leaves) in [false, true].into_iter().zip(LEAVES) {
        for (layout, leaf) in LAYOUTS.iter().zip(leaves) {
            let world = world(layout, leaf, is_wide);
            crate::testing::cut_short(&world.ranges, &world.memory);
        }
    }
}

/// 8 MiB of descriptions, all of which a tree lists: they take as much as is allowed, and no more, and 96 bytes each are
/// enough; where there is less than they need, not all are counted.
#[test]
fn many_extents_are_bounded() {
    const MANY: u64 = 65_536;
    let mut memory = Pieces::default();
    let (descriptions, slabs) = (MANY * EDATA as u64, MANY * PAGE);
    memory.pieces.push((DATA, vec![0; NARROW as usize]));
    memory.pieces.push((PARTS, vec![0; NARROW as usize]));
    memory.pieces.push((EDATAS, vec![0; descriptions as usize]));
    memory.untouched.push((SLABS, SLABS + slabs));
    memory.put(DATA + (SLABS >> 30) * 8, &[PARTS]);
    for number in 0..MANY {
        let (at, page) = (EDATAS + number * EDATA as u64, SLABS + number * PAGE);
        memory.put(at, &[1 << 12 | 4 << 20, page, PAGE]);
        memory.put(PARTS + number * 8, &new_leaf((at, 4, 0, true))[..1]);
    }
    let ranges = [
        Range { kind: RangeKind::File, ..anonymous(DATA, NARROW) },
        anonymous(PARTS, NARROW),
        anonymous(EDATAS, descriptions),
        Range { rss: PAGE, ..anonymous(SLABS, slabs) },
    ];
    let all = Bounds::of(crate::space::resident(&ranges));
    for (kept, is_enough) in
        [(all.kept, true), (96 * MANY, true), (2 << 20, false), (1 << 20, false)]
    {
        let budget = Budget::new(Bounds { kept, ..all }, None);
        let space = Space::within(ranges.to_vec(), &memory, budget);
        let found = find(&space, &Taken::default());
        let objects = found.map_or(0, |found| found.heap.live_objects);
        assert_eq!(objects == MANY * 64, is_enough, "{objects}");
        assert_eq!(space.budget.is_over(), !is_enough);
        let (read, most_kept) = (space.read_bytes(), space.budget.most_kept());
        assert!(most_kept <= kept && read <= all.read, "{most_kept} {read}");
    }
}
