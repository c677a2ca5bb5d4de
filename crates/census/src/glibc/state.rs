//! `struct malloc_state`: what an arena says of itself, and whether that makes sense.

use super::{
    SMALLEST,
    layout::{BIN_HEADER, BINS, FASTBINS, Layout},
};
use crate::space::{PAGE, Region, Space, word_of};

/// Values of a lock, bits of the flags, and threads, at most.
const MAX_LOCK: u64 = 2;
const MAX_FLAGS: u64 = 7;
const MAX_THREADS: u64 = 1 << 22;
/// Where addresses end.
const END: u64 = 1 << 47;
/// Bins that may have changed while they were read.
const MAX_TORN: usize = 8;
/// Reads of `top` with the chunk that is there: it moves with each allocation that it serves.
const TOP_ATTEMPTS: u32 = 64;

/// An arena's structure, as it was read.
pub(super) struct State {
    pub(super) at: u64,
    pub(super) layout: &'static Layout,
    bytes: Vec<u8>,
}

impl State {
    pub(super) fn read(space: &Space<'_>, at: u64, layout: &'static Layout) -> Option<Self> {
        let mut bytes = vec![0; usize::try_from(layout.bytes).ok()?];
        space.read(at, &mut bytes).then_some(Self { at, layout, bytes })
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

    /// Its `top` now, and where that ends.
    pub(super) fn top(&self, space: &Space<'_>) -> Option<(u64, u64)> {
        let now = || space.field(self.at, self.layout.top);
        (0..TOP_ATTEMPTS).find_map(|_| {
            let top = now()?;
            let size = space.field(top, 8)?;
            let end = top.checked_add(size & !7)?;
            let is_one = top.is_multiple_of(16) && size & 7 == 1 && size > SMALLEST;
            (is_one && end.is_multiple_of(PAGE) && now() == Some(top)).then_some((top, end))
        })
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
        let (lock, layout) = (self.word(0), self.layout);
        let most = self.word(layout.max_system_mem);
        let rest = self.word(layout.last_remainder);
        let is_sane = lock & 0xffff_ffff <= MAX_LOCK
            && lock >> 32 <= MAX_FLAGS
            && (rest == 0 || rest.is_multiple_of(16) && rest < END)
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

    /// Each bin leads to itself if it is empty, else to chunks of the arena, which lead back; but for a few that change.
    fn bins_are_sane(&self, space: &Space<'_>, holds: &dyn Fn(u64) -> bool) -> bool {
        let is_torn = |index: &u64| {
            let offset = self.layout.bins + index * 16;
            let bin = (self.at + offset).wrapping_sub(BIN_HEADER);
            let (first, last) = (self.word(offset), self.word(offset + 8));
            if first == bin || last == bin {
                return first != last;
            }
            // What is swapped out does not contradict.
            let leads_back = |chunk, field| space.field(chunk, field).is_none_or(|to| to == bin);
            !(holds(first) && holds(last) && leads_back(first, 24) && leads_back(last, 16))
        };
        (0..BINS).filter(is_torn).take(MAX_TORN + 1).count() <= MAX_TORN
    }
}
