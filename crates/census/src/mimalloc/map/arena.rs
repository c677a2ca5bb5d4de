//! The arenas that pages are from.

use super::super::area::{Area, Page, SLICE};
use crate::space::{PAGE, Space, word_of};

/// Slices of an arena.
pub(super) const MAX_SLICES: u64 = 1 << 18;
/// One page of so many may be in use and free.
const MAX_TORN: usize = 16;
/// A bitmap's bits come in chunks, behind a header; others than that of free slices have one of 128 bytes.
const CHUNK_BITS: u64 = 512;
const CHUNK: u64 = CHUNK_BITS / 8;
const BITMAP_HEADERS: std::ops::RangeInclusive<u64> = 192..=4096;
/// Bytes of an arena's description that are read.
const BYTES: usize = 136;

/// Where an arena has what.
#[derive(Clone, Copy)]
pub(in crate::mimalloc) struct Layout {
    /// Of the description in the arena.
    pub(in crate::mimalloc) offset: u64,
    pub(in crate::mimalloc) slices: usize,
    pub(in crate::mimalloc) own: usize,
    /// The bitmap of free slices; the next one's address is behind.
    pub(in crate::mimalloc) free: usize,
    /// The first slices of so many are the allocator's.
    pub(in crate::mimalloc) chunk: Option<(u64, u64)>,
}

/// 3.0.1, to 3.1, 3.2, 3.3 and 3.4, 3.6.
pub(in crate::mimalloc) const LAYOUTS: [Layout; 5] = [
    Layout { offset: 0, slices: 32, own: 40, free: 64, chunk: None },
    Layout { offset: 0, slices: 32, own: 40, free: 80, chunk: None },
    Layout { offset: 0, slices: 40, own: 48, free: 88, chunk: None },
    Layout { offset: 0, slices: 40, own: 48, free: 104, chunk: None },
    Layout { offset: 512 << 10, slices: 48, own: 56, free: 112, chunk: Some((4096, 8)) },
];

/// The arena that begins at an address, with those of its pages that make sense; `None` where no layout makes sense, or more than one.
pub(super) fn arena(space: &Space<'_>, base: u64, pages: &[Page]) -> Option<Area> {
    let mut found = LAYOUTS.iter().filter_map(|layout| arena_by(space, base, pages, layout));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

fn arena_by(space: &Space<'_>, base: u64, pages: &[Page], layout: &Layout) -> Option<Area> {
    let at = base.checked_add(layout.offset)?;
    let (slices, own, bits) = header(space, base, layout)?;
    let is_free = |slice: u64| bits[(slice / 8) as usize] >> (slice % 8) & 1 != 0;
    let mut states = States(vec![State::Unknown; slices as usize]);
    states.set(0, own, State::Own)?;
    if let Some((every, first)) = layout.chunk {
        for start in (0..slices).step_by(every as usize).skip(1) {
            states.set(start, (start + first).min(slices), State::Own)?;
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
        states.set(start, end, State::Page)?;
        kept.push(page.clone());
    }
    (torn <= pages.len() / MAX_TORN).then_some(())?;
    for slice in (0..slices).filter(|slice| is_free(*slice)) {
        states.set(slice, slice + 1, State::Free)?;
    }
    for slice in 0..slices {
        if states.0[slice as usize] == State::Unknown
            && keeps(space, base + slice * SLICE, at, slice)
        {
            states.0[slice as usize] = State::Own;
        }
    }
    let stretches = |state| states.stretches(state, base);
    let (free, own) = (stretches(State::Free), stretches(State::Own));
    let unknown = stretches(State::Unknown);
    Some(Area { address: base, bytes: slices * SLICE, free, own, unknown, pages: kept })
}

/// Slices of an arena, those that are its own, and a bit for each that is free; `None` where they make no sense.
fn header(space: &Space<'_>, base: u64, layout: &Layout) -> Option<(u64, u64, Vec<u8>)> {
    let at = base.checked_add(layout.offset)?;
    let [bytes] = space.read_each::<BYTES>(&[at])[..] else { return None };
    let bytes = bytes?;
    let word = |at| word_of(&bytes, at);
    let (slices, own) = (word(layout.slices)?, word(layout.own)?);
    let (free, next) = (word(layout.free)?, word(layout.free + 8)?);
    let end = base.checked_add(slices.checked_mul(SLICE)?)?;
    let is_sane = (1..=MAX_SLICES).contains(&slices)
        && (1..slices).contains(&own)
        && (at..base + own * SLICE).contains(&free)
        && (free..base + own * SLICE).contains(&next)
        && free.is_multiple_of(CHUNK)
        && space.is_anonymous(base, end);
    // The bits are what lies behind the header, to the next bitmap.
    let chunks = slices.div_ceil(CHUNK_BITS);
    let header = next.checked_sub(free)?.checked_sub(chunks * CHUNK)?;
    if !is_sane || space.word(free)? != chunks || !BITMAP_HEADERS.contains(&header) {
        return None;
    }
    let mut bits = vec![0; (chunks * CHUNK) as usize];
    space.read(free + header, &mut bits).then_some((slices, own, bits))
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

/// What each slice of an arena is.
struct States(Vec<State>);

impl States {
    /// Says what slices are; `None` where that was known.
    fn set(&mut self, start: u64, end: u64, state: State) -> Option<()> {
        let part = self.0.get_mut(start as usize..end as usize)?;
        let is_new = part.iter().all(|one| *one == State::Unknown);
        part.fill(state);
        is_new.then_some(())
    }

    /// Stretches of slices in a state.
    fn stretches(&self, wanted: State, base: u64) -> Vec<(u64, u64)> {
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (state, start) in self.0.iter().zip((base..).step_by(SLICE as usize)) {
            match found.last_mut() {
                _ if *state != wanted => {}
                Some((_, end)) if *end == start => *end += SLICE,
                _ => found.push((start, start + SLICE)),
            }
        }
        found
    }
}
