//! `struct malloc_state`: what an arena says of itself, and whether that makes sense.

use super::layout::{BIN_HEADER, BINS, FASTBINS, Layout, SMALLEST};
use crate::{
    region::Region,
    space::{PAGE, Space, word_of},
};

/// Reads of an arena that makes no sense: a busy process changes it while it is read.
const STATE_ATTEMPTS: u32 = 16;
/// Values of a lock, bits of the flags, and threads, at most.
const MAX_LOCK: u64 = 2;
const MAX_FLAGS: u64 = 7;
const MAX_THREADS: u64 = 1 << 22;
/// Where addresses end.
const END: u64 = 1 << 47;
/// Bins that may contradict: a thread that the kernel has interrupted leaves what it changes half done.
const MAX_TORN: u64 = 8;
/// Reads of a bin that does not lead back.
const BIN_ATTEMPTS: u32 = 8;
/// Reads of `top` with the chunk that is there: it moves with each allocation that it serves.
const TOP_ATTEMPTS: u32 = 64;
/// How many of these may find that it makes no sense, and has not moved.
const MAX_STOOD: u32 = 16;

/// What a bin is after some readings.
#[derive(PartialEq, Eq)]
enum Bin {
    Sane,
    /// It never led back, and changed between two readings.
    Moves,
    /// It never led back, and did not change.
    Contradicts,
}

/// An arena's structure, as it was read.
pub(super) struct State {
    pub(super) at: u64,
    pub(super) layout: &'static Layout,
    bytes: Vec<u8>,
}

impl State {
    /// `None` where what no change makes wrong is wrong.
    pub(super) fn read(space: &Space<'_>, at: u64, layout: &'static Layout) -> Option<Self> {
        let mut bytes = vec![0; usize::try_from(layout.bytes).ok()?];
        space.read(at, &mut bytes).then_some(())?;
        let state = Self { at, layout, bytes };
        let (lock, flags) = (state.word(0) & 0xffff_ffff, state.word(0) >> 32);
        let is_address = |word: u64| (PAGE..END).contains(&word) && word.is_multiple_of(8);
        let are_bins = (0..BINS * 2).all(|index| is_address(state.word(layout.bins + index * 8)));
        (lock <= MAX_LOCK && flags <= MAX_FLAGS && are_bins).then_some(state)
    }

    /// Readings of it, one after the other, until two are the same: a busy process changes it while it is read.
    pub(super) fn readings<'a>(
        space: &'a Space<'a>,
        at: u64,
        layout: &'static Layout,
    ) -> impl Iterator<Item = Self> + 'a {
        let (mut before, mut left) = (Vec::new(), STATE_ATTEMPTS);
        std::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let state = Self::read(space, at, layout).filter(|state| state.bytes != before)?;
            before.clone_from(&state.bytes);
            Some(state)
        })
    }

    fn word(&self, offset: u64) -> u64 {
        usize::try_from(offset).ok().and_then(|at| word_of(&self.bytes, at)).unwrap_or_default()
    }

    /// Whether a structure can be at an address, by words of a region: before all of it is read.
    pub(super) fn may_be(region: &mut Region<'_>, at: u64, layout: &Layout) -> bool {
        let mut word = |offset: u64| region.word(at.wrapping_add(offset)).unwrap_or_default();
        let (now, most) = (word(layout.system_mem), word(layout.max_system_mem));
        let next = word(layout.next);
        (1..=most).contains(&now)
            && most < END
            && next != 0
            && next.is_multiple_of(8)
            && word(layout.attached_threads) <= MAX_THREADS
    }

    /// Its last chunk, `top`, and where that ends.
    pub(super) fn top(&self, space: &Space<'_>) -> Option<(u64, u64)> {
        let now = || space.field(self.at, self.layout.top);
        let (mut end_before, mut stood) = (None, 0);
        for _ in 0..TOP_ATTEMPTS {
            let top = now()?;
            let last = last_chunk(space, top);
            let has_moved = now() != Some(top);
            stood += u32::from(!has_moved);
            match last {
                Some((last, end)) if last == top && !has_moved => return Some((last, end)),
                // A process that allocates without pause moves it faster than it is read: the end stays.
                Some((last, end)) if has_moved && end_before == Some(end) => {
                    return Some((last, end));
                }
                _ if stood > MAX_STOOD => break,
                _ => end_before = last.filter(|_| has_moved).map(|(_, end)| end),
            }
        }
        None
    }

    /// As [`Self::top`] where its page is swapped out: for the main arena, whose memory begins where the heap does.
    pub(super) fn absent_top(&self, space: &Space<'_>, heap: (u64, u64)) -> Option<(u64, u64)> {
        let (top, end) = (self.word(self.layout.top), heap.0.checked_add(self.system_mem())?);
        let is_top = top.is_multiple_of(16) && (heap.0..end).contains(&top) && end <= heap.1;
        (is_top && !Region::new(space, top, top + 1).is_present(top)).then_some((top, end))
    }

    /// What it has of the system now.
    pub(super) fn system_mem_now(&self, space: &Space<'_>) -> Option<u64> {
        space.field(self.at, self.layout.system_mem)
    }

    pub(super) fn next(&self) -> u64 {
        self.word(self.layout.next)
    }

    pub(super) fn next_free(&self) -> u64 {
        self.word(self.layout.next_free)
    }

    pub(super) fn attached_threads(&self) -> u64 {
        self.word(self.layout.attached_threads)
    }

    pub(super) fn system_mem(&self) -> u64 {
        self.word(self.layout.system_mem)
    }

    /// Whether all that it says of itself makes sense; `holds` says whether a chunk can be at an address.
    pub(super) fn is_sane(&self, space: &Space<'_>, holds: &dyn Fn(u64) -> bool) -> bool {
        let layout = self.layout;
        let most = self.word(layout.max_system_mem);
        let rest = self.word(layout.last_remainder);
        let is_sane = (rest == 0 || rest.is_multiple_of(16) && rest < END)
            && self.attached_threads() <= MAX_THREADS
            && (1..=most).contains(&self.system_mem())
            && most < END
            && self.next_free().is_multiple_of(8);
        is_sane && self.fastbins_are_sane(holds) && self.bins_are_sane(space, holds)
    }

    fn fastbins_are_sane(&self, holds: &dyn Fn(u64) -> bool) -> bool {
        let Some((used, first)) = self.layout.fastbins else { return true };
        let mut bins = (0..FASTBINS).map(|bin| self.word(first + bin * 8));
        self.word(used) & 0xffff_ffff <= 1 && bins.all(|chunk| chunk == 0 || holds(chunk))
    }

    /// Each bin leads to itself if it is empty, else to chunks of the arena, which lead back. Nearly none may contradict,
    /// and most must not have moved.
    fn bins_are_sane(&self, space: &Space<'_>, holds: &dyn Fn(u64) -> bool) -> bool {
        let (mut sane, mut contradict) = (0, 0);
        for index in 0..BINS {
            match self.bin(space, index, holds) {
                Bin::Sane => sane += 1,
                Bin::Moves => {}
                Bin::Contradicts => contradict += 1,
            }
            if contradict > MAX_TORN {
                return false;
            }
        }
        sane > BINS / 2
    }

    /// A bin as it was read with the structure, then read again.
    fn bin(&self, space: &Space<'_>, index: u64, holds: &dyn Fn(u64) -> bool) -> Bin {
        let offset = self.layout.bins + index * 16;
        let at = self.at.wrapping_add(offset);
        let bin = at.wrapping_sub(BIN_HEADER);
        // What is swapped out does not contradict.
        let leads_back = |chunk, field| space.field(chunk, field).is_none_or(|to| to == bin);
        let is_sane = |[first, last]: [u64; 2]| {
            if first == bin || last == bin {
                return first == last;
            }
            holds(first) && holds(last) && leads_back(first, 24) && leads_back(last, 16)
        };
        let mut words = [self.word(offset), self.word(offset + 8)];
        let mut moves = false;
        for _ in 0..BIN_ATTEMPTS {
            if is_sane(words) {
                return Bin::Sane;
            }
            let Some(now) = space.words(at) else { break };
            moves |= now != words;
            words = now;
        }
        if moves { Bin::Moves } else { Bin::Contradicts }
    }
}

/// The chunk that ends a page, as `top` does: the one at an address, or one that chunks in use lead to in the same page.
fn last_chunk(space: &Space<'_>, top: u64) -> Option<(u64, u64)> {
    if !top.is_multiple_of(16) {
        return None;
    }
    let mut bytes = vec![0; (PAGE - top % PAGE) as usize];
    space.read(top, &mut bytes).then_some(())?;
    let mut at = top;
    loop {
        let size = word_of(&bytes, usize::try_from(at - top).ok()?.checked_add(8)?)?;
        let end = at.checked_add(size & !7)?;
        if size & 2 != 0 || size & !7 < SMALLEST || !end.is_multiple_of(16) {
            return None;
        }
        if size & 7 == 1 && size > SMALLEST && end.is_multiple_of(PAGE) {
            return Some((at, end));
        }
        at = end;
    }
}
