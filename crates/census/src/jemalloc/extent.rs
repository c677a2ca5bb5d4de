//! Extents by their descriptions: runs of pages, slabs with regions of one size, or large objects.

use crate::space::{PAGE, RangeKind, Space, word_of};

/// Bytes of a description.
pub(super) const EDATA: usize = 128;
/// A slab has at most so many regions.
pub(super) const MAX_REGIONS: u64 = 512;
/// The smallest object that has an extent of its own.
const SMALLEST_LARGE: u64 = 16 << 10;
const SMALLEST_INDEX: u64 = 36;
/// Size indices from here on are those of free extents.
const NO_INDEX: u64 = 232;
const ACTIVE: u64 = 0;

/// Bits of a word: the first one, and how many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bits(pub(super) u32, pub(super) u32);

impl Bits {
    pub(super) fn of(self, word: u64) -> u64 {
        word.checked_shr(self.0).unwrap_or_default() & ((1 << self.1) - 1)
    }
}

/// Where a description has what: bits of its first word, and bytes from its begin on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Of the description, bytes.
    pub(super) alignment: usize,
    pub(super) arena: Bits,
    pub(super) slab: Bits,
    pub(super) state: Bits,
    /// The size index, and the number of free regions.
    pub(super) index: Bits,
    pub(super) free: Bits,
    /// Bits from here on are 0.
    pub(super) unused: u32,
    pub(super) address: usize,
    /// The low bits are something else.
    pub(super) size: usize,
    /// The bitmap of free regions.
    pub(super) bitmap: usize,
    /// What the tree's entry says of the state.
    pub(super) leaf_state: Option<Bits>,
}

/// What differs between versions: 5.3, and 5.1 and 5.2.
const NEW: Layout = Layout {
    alignment: 128,
    arena: Bits(0, 12),
    slab: Bits(12, 1),
    state: Bits(17, 3),
    index: Bits(20, 8),
    free: Bits(28, 10),
    unused: 48,
    address: 8,
    size: 16,
    bitmap: 64,
    leaf_state: Some(Bits(2, 3)),
};
pub(super) const LAYOUTS: [Layout; 2] = [
    NEW,
    Layout {
        alignment: 64,
        state: Bits(16, 2),
        index: Bits(18, 8),
        free: Bits(26, 10),
        unused: 64,
        leaf_state: None,
        ..NEW
    },
];
/// The size index and whether it is a slab in an entry of the tree; the bits between are the state, or 0.
const LEAF_INDEX: Bits = Bits(48, 8);
const LEAF_SLAB: Bits = Bits(0, 1);
const LEAF_FLAGS: Bits = Bits(1, 5);

/// An extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Where its description is.
    pub(super) description: u64,
    pub(super) arena: u64,
    pub(super) bytes: u64,
    /// Bytes of an object in it.
    pub(super) size: u64,
    pub(super) live: u64,
    /// Where its object lies, if it is large.
    pub(super) object: u64,
    /// The regions of a slab that are free.
    pub(super) free: [u64; (MAX_REGIONS / 64) as usize],
    pub(super) state: State,
    /// The first word of the description.
    bits: u64,
}

pub(super) type Extents = Vec<(u64, Extent)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Slab,
    Large,
    Free,
}

impl Extent {
    /// Whether the tree's entry for its first page says the same.
    pub(super) fn agrees(&self, layout: &Layout, entry: u64) -> bool {
        let state = layout.leaf_state.map(|bits| bits.of(entry));
        let is_state = match state {
            Some(state) => state == layout.state.of(self.bits),
            None => LEAF_FLAGS.of(entry) == 0,
        };
        // Of what is free, index and slab are out of date.
        let is_same = LEAF_INDEX.of(entry) == layout.index.of(self.bits)
            && LEAF_SLAB.of(entry) == layout.slab.of(self.bits);
        is_state && (self.state == State::Free || is_same)
    }
}

/// The extent that a description is of; `None` where it makes no sense.
pub(super) fn extent(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<(u64, Extent)> {
    let word = |at| word_of(edata, at);
    let (bits, object, size_word) = (word(0)?, word(layout.address)?, word(layout.size)?);
    let (bytes, address) = (size_word & !(PAGE - 1), object & !(PAGE - 1));
    let unused = bits.checked_shr(layout.unused).unwrap_or_default();
    if address == 0 || bytes == 0 || unused != 0 {
        return None;
    }
    let is_heap = || {
        let range = space.range_at(address)?;
        let is_inside = address.checked_add(bytes).is_some_and(|end| end <= range.end);
        (range.kind == RangeKind::Anonymous && is_inside).then_some(())
    };
    let (is_slab, state) = (layout.slab.of(bits) != 0, layout.state.of(bits));
    let (index, free) = (layout.index.of(bits), layout.free.of(bits));
    let (arena, size) = (layout.arena.of(bits), size_of(index));
    // What costs most is asked last: nearly all that is looked at is no description.
    let found = |state, live, size| {
        is_heap()?;
        let free = std::array::from_fn(|at| word(layout.bitmap + at * 8).unwrap_or_default());
        let extent = Extent { description, arena, bytes, size, live, object, free, state, bits };
        Some((address, extent))
    };
    match (is_slab, state) {
        (true, ACTIVE) if object == address => {
            let regions = bytes.checked_div(size)?;
            let live = regions.checked_sub(free)?;
            let is_sane = bytes.is_multiple_of(size) && (1..=MAX_REGIONS).contains(&regions);
            is_sane.then_some(())?;
            let (address, extent) = found(State::Slab, live, size)?;
            (free_regions(&extent.free, regions) == free).then_some((address, extent))
        }
        // With a page more, in which the object begins anywhere. Sizes are those of classes, or whole pages (5.3.1).
        (false, ACTIVE) => {
            let smaller = index.checked_sub(1).map_or(0, size_of);
            let is_sane = size >= SMALLEST_LARGE && smaller < bytes && bytes <= size + PAGE;
            if is_sane { found(State::Large, 1, size) } else { None }
        }
        (_, 1..=3) if index >= NO_INDEX && object == address => found(State::Free, 0, 0),
        _ => None,
    }
}

/// The extent of a small object that a sampler has given one of its own.
pub(super) fn sampled(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<(u64, Extent)> {
    let bits = word_of(edata, 0)?;
    let size = size_of(layout.index.of(bits));
    (1..SMALLEST_LARGE).contains(&size).then_some(())?;
    // As if it were of the smallest size that has an extent.
    let Bits(shift, _) = layout.index;
    let large = bits & !(0xff << shift) | SMALLEST_INDEX << shift;
    let mut edata = edata.to_vec();
    edata.get_mut(..8)?.copy_from_slice(&large.to_le_bytes());
    let (address, extent) = extent(space, &edata, description, layout)?;
    (extent.state == State::Large).then_some((address, Extent { size, bits, ..extent }))
}

/// Bits that are set in a slab's bitmap.
fn free_regions(bitmap: &[u64], regions: u64) -> u64 {
    let words = bitmap.iter().take(regions.div_ceil(64) as usize);
    words.map(|word| u64::from(word.count_ones())).sum()
}

/// Bytes of an object with this size index; 0 where there is no such object.
pub(super) const fn size_of(index: u64) -> u64 {
    match index {
        0 => 8,
        1..=4 => index * 16,
        5..NO_INDEX => {
            let (group, step) = ((index - 5) / 4, (index - 5) % 4);
            (64 << group) + ((step + 1) << (group + 4))
        }
        _ => 0,
    }
}

/// Extents in ascending order; where two overlap, one is out of date: what is in use counts.
pub(super) fn without_overlaps(mut extents: Extents) -> Extents {
    extents.sort_unstable_by_key(|(address, extent)| (*address, extent.description));
    extents.dedup_by(|(address, extent), (before, other)| {
        let is_same = *before + other.bytes > *address;
        if is_same && other.state == State::Free && extent.state != State::Free {
            (*before, *other) = (*address, *extent);
        }
        is_same
    });
    extents
}

/// What a large object has: all of its extent, or all but the page in which it begins anywhere.
pub(super) fn set_sizes(extents: &mut [(u64, Extent)]) {
    let large = |one: &Extent| one.state == State::Large && one.size >= SMALLEST_LARGE;
    let is_padded = extents.iter().any(|(address, one)| {
        large(one) && (one.object != *address || one.bytes == one.size + PAGE)
    });
    let more = if is_padded { PAGE } else { 0 };
    for (_, one) in extents.iter_mut().filter(|(_, one)| large(one)) {
        one.size = one.bytes.saturating_sub(more);
    }
}
