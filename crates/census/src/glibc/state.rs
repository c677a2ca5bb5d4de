//! `struct malloc_state`: what an arena says of itself, and whether that makes sense.

use super::layout::{BIN_HEADER, BINS, FASTBINS, Layout};
use crate::space::{Space, word_of};

/// Values of a lock, bits of the flags, and threads, at most.
const MAX_LOCK: u64 = 2;
const MAX_FLAGS: u64 = 7;
const MAX_THREADS: u64 = 1 << 22;
/// Where addresses end.
const END: u64 = 1 << 47;

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

    pub(super) fn top(&self) -> u64 {
        self.word(self.layout.top)
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

    /// Each bin leads to itself if it is empty, else to chunks of the arena, which lead back.
    fn bins_are_sane(&self, space: &Space<'_>, holds: &dyn Fn(u64) -> bool) -> bool {
        (0..BINS).all(|index| {
            let offset = self.layout.bins + index * 16;
            let bin = (self.at + offset).wrapping_sub(BIN_HEADER);
            let (first, last) = (self.word(offset), self.word(offset + 8));
            if first == bin || last == bin {
                return first == last;
            }
            // What is swapped out does not contradict.
            let leads_back = |chunk, field| space.field(chunk, field).is_none_or(|to| to == bin);
            holds(first) && holds(last) && leads_back(first, 24) && leads_back(last, 16)
        })
    }
}
