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

/// An extent, in as few bytes as it takes: there may be millions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub(super) address: u64,
    /// Where its description is.
    pub(super) description: u64,
    pages: u32,
    /// Where its bitmap begins among those of all.
    bitmap: u32,
    /// Live objects.
    live: u16,
    /// Where the object lies in the first page, if it is large.
    offset: u16,
    arena: u16,
    /// The size index.
    index: u8,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Slab,
    Large,
    Free,
}

impl Extent {
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE
    }

    pub(super) fn end(&self) -> u64 {
        self.address.saturating_add(self.bytes())
    }

    pub(super) fn live(&self) -> u64 {
        self.live.into()
    }

    pub(super) fn arena(&self) -> u64 {
        self.arena.into()
    }

    /// Bytes of an object in it: a large one has all of its extent but the padding.
    pub(super) fn size(&self, padding: u64) -> u64 {
        match self.state {
            State::Free => 0,
            State::Large if self.is_large() => self.bytes().saturating_sub(padding),
            _ => size_of(self.index.into()),
        }
    }

    /// Where its object lies, if it is large.
    pub(super) fn object(&self) -> u64 {
        self.address + u64::from(self.offset)
    }

    /// Whether its object is so large that it has an extent of its own.
    fn is_large(&self) -> bool {
        self.state == State::Large && size_of(self.index.into()) >= SMALLEST_LARGE
    }

    /// Words of its bitmap that are kept: where all regions are free, or none is, that says all.
    fn kept_words(&self) -> usize {
        let regions = self.bytes().checked_div(size_of(self.index.into())).unwrap_or_default();
        let is_partly = self.state == State::Slab && (1..regions).contains(&self.live());
        if is_partly { regions.min(MAX_REGIONS).div_ceil(64) as usize } else { 0 }
    }
}

/// Extents, and the bitmaps of the free regions of slabs.
#[derive(Default)]
pub(super) struct Extents {
    pub(super) all: Vec<Extent>,
    bitmaps: Vec<u64>,
}

impl Extents {
    /// Adds an extent with its description; whether there is memory for it.
    pub(super) fn push(
        &mut self,
        space: &Space<'_>,
        (extent, edata): (Extent, &[u8]),
        layout: &Layout,
    ) -> bool {
        let Ok(bitmap) = u32::try_from(self.bitmaps.len()) else { return false };
        let words = extent.kept_words();
        if !space.budget.keeps::<Extent>(1) || !space.budget.keeps::<u64>(words) {
            return false;
        }
        self.bitmaps.extend(bitmap_of(edata, layout).take(words));
        self.all.push(Extent { bitmap, ..extent });
        true
    }

    /// Whether a region of a slab is free.
    pub(super) fn is_free(&self, extent: &Extent, region: u64) -> bool {
        let words = extent.kept_words();
        let at = extent.bitmap as usize + (region / 64) as usize;
        let word = self.bitmaps.get(at).filter(|_| (region / 64) < words as u64);
        word.map_or(extent.live == 0, |word| word >> (region % 64) & 1 != 0)
    }

    /// What a large object has less than its extent, all of them: nothing, or the page in which it begins anywhere.
    pub(super) fn padding(&self) -> u64 {
        let is_padded = |one: &Extent| {
            let size = size_of(one.index.into());
            one.is_large() && (one.offset > 0 || one.bytes() == size + PAGE)
        };
        if self.all.iter().any(is_padded) { PAGE } else { 0 }
    }
}

/// Whether the tree's entry for the first page of an extent says what its description does.
pub(super) fn agrees(extent: &Extent, edata: &[u8], layout: &Layout, entry: u64) -> bool {
    let Some(bits) = word_of(edata, 0) else { return false };
    let is_state = match layout.leaf_state {
        Some(state) => state.of(entry) == layout.state.of(bits),
        None => LEAF_FLAGS.of(entry) == 0,
    };
    // Of what is free, index and slab are out of date.
    let is_same = LEAF_INDEX.of(entry) == layout.index.of(bits)
        && LEAF_SLAB.of(entry) == layout.slab.of(bits);
    is_state && (extent.state == State::Free || is_same)
}

fn bitmap_of<'a>(edata: &'a [u8], layout: &Layout) -> impl Iterator<Item = u64> + use<'a> {
    let first = layout.bitmap;
    (0..(MAX_REGIONS / 64) as usize)
        .map(move |at| word_of(edata, first + at * 8).unwrap_or_default())
}

/// The extent that a description is of; `None` where it makes no sense.
pub(super) fn extent(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<Extent> {
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
    // What costs most is asked last: nearly all that is checked is no description.
    let found = |state, live: u64| {
        is_heap()?;
        Some(Extent {
            address,
            description,
            pages: u32::try_from(bytes / PAGE).ok()?,
            bitmap: 0,
            live: u16::try_from(live).ok()?,
            offset: u16::try_from(object - address).ok()?,
            arena: u16::try_from(arena).ok()?,
            index: u8::try_from(index).ok()?,
            state,
        })
    };
    match (is_slab, state) {
        (true, ACTIVE) if object == address => {
            let regions = bytes.checked_div(size)?;
            let live = regions.checked_sub(free)?;
            let is_sane = bytes.is_multiple_of(size) && (1..=MAX_REGIONS).contains(&regions);
            is_sane.then_some(())?;
            let extent = found(State::Slab, live)?;
            (free_regions(edata, layout, regions) == free).then_some(extent)
        }
        // With a page more, in which the object begins anywhere. Sizes are those of classes, or whole pages (5.3.1).
        (false, ACTIVE) => {
            let smaller = index.checked_sub(1).map_or(0, size_of);
            let is_sane = size >= SMALLEST_LARGE && smaller < bytes && bytes <= size + PAGE;
            if is_sane { found(State::Large, 1) } else { None }
        }
        (_, 1..=3) if index >= NO_INDEX && object == address => found(State::Free, 0),
        _ => None,
    }
}

/// The extent of a small object that a sampler has given one of its own.
pub(super) fn sampled(
    space: &Space<'_>,
    edata: &[u8],
    description: u64,
    layout: &Layout,
) -> Option<Extent> {
    let bits = word_of(edata, 0)?;
    let index = layout.index.of(bits);
    (1..SMALLEST_LARGE).contains(&size_of(index)).then_some(())?;
    // As if it were of the smallest size that has an extent.
    let Bits(shift, _) = layout.index;
    let large = bits & !(0xff << shift) | SMALLEST_INDEX << shift;
    let mut edata = edata.to_vec();
    edata.get_mut(..8)?.copy_from_slice(&large.to_le_bytes());
    let extent = extent(space, &edata, description, layout)?;
    let index = u8::try_from(index).ok()?;
    (extent.state == State::Large).then_some(Extent { index, ..extent })
}

/// Bits that are set in a slab's bitmap.
fn free_regions(edata: &[u8], layout: &Layout, regions: u64) -> u64 {
    let words = bitmap_of(edata, layout).take(regions.div_ceil(64) as usize);
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
pub(super) fn without_overlaps(extents: &mut Vec<Extent>) {
    extents.sort_unstable_by_key(|extent| (extent.address, extent.description));
    extents.dedup_by(|extent, before| {
        let is_same = before.end() > extent.address;
        if is_same && before.state == State::Free && extent.state != State::Free {
            *before = *extent;
        }
        is_same
    });
}
