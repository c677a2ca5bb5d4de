//! `mp_`: what glibc says of the mappings of single chunks, and of its settings. It is found by the address at which the
//! main heap begins.

use super::layout::{
    ATTEMPTS, HEAP_ALIGN, HUGE_PAGES_OF_HEAP, MAX_MMAPPED_MEM, MMAPPED_MEM, PARAMS, PARAMS_BEFORE,
    PARAMS_BYTES, ParamsLayout, SMALLEST, TCACHE_BINS, TCACHE_COUNT, TCACHE_MAX_BYTES,
    is_huge_page,
};
use crate::space::{PAGE, Space, half_of, word_of};

/// Lists of a cache, and chunks in one of them, at most.
const MAX_LISTS: u64 = 1024;
const MAX_COUNT: u64 = u16::MAX as u64;
/// Bytes of the largest chunk in a cache, at most.
const MAX_LARGEST: u64 = 1 << 23;

/// What `struct malloc_par` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Params {
    /// Where its `sbrk_base` is.
    at: u64,
    /// Chunks with a mapping of their own, and the bytes of these mappings.
    pub(super) mapped_chunks: u64,
    pub(super) mapped_bytes: u64,
    /// Chunks in one list of a thread's cache, at most; 0: no caches.
    pub(super) cached: u64,
    /// The main heap shrinks by multiples of this.
    pub(super) trim_unit: u64,
    /// Bytes of the huge pages that heaps consist of, or 0.
    huge_page: u64,
}

impl Params {
    /// The one whose `sbrk_base` is at `at`; `None` if none of the known layouts fits, or more than one. Its counts change
    /// one after the other.
    pub(super) fn read(space: &Space<'_>, at: u64) -> Option<Self> {
        (0..ATTEMPTS).find_map(|_| Self::once(space, at))
    }

    fn once(space: &Space<'_>, at: u64) -> Option<Self> {
        let mut bytes = [0; PARAMS_BYTES];
        if !space.read(at.checked_sub(PARAMS_BEFORE)?, &mut bytes) {
            return None;
        }
        let mut fitting = PARAMS.iter().filter_map(|layout| Self::of(&bytes, at, layout));
        let only = fitting.next()?;
        fitting.next().is_none().then_some(only)
    }

    /// As it is now.
    pub(super) fn again(&self, space: &Space<'_>) -> Option<Self> {
        Self::read(space, self.at)
    }

    fn of(bytes: &[u8], at: u64, layout: &ParamsLayout) -> Option<Self> {
        let before = |back: u64| word_of(bytes, (PARAMS_BEFORE - back) as usize);
        let behind = |offset: u64| word_of(bytes, (PARAMS_BEFORE + offset) as usize);
        let number =
            |index: u64| half_of(bytes, (PARAMS_BEFORE - layout.n_mmaps + index * 4) as usize);
        let (count, most, flag) = (number(0)?, number(2)?, number(3)?);
        let (mapped, most_mapped) = (before(MMAPPED_MEM)?, before(MAX_MMAPPED_MEM)?);
        let (thp, huge_page) = match layout.huge_pages {
            Some((thp, huge)) => (before(thp)?, before(huge)?),
            None => (0, 0),
        };
        let (lists, largest) = (behind(TCACHE_BINS)?, behind(TCACHE_MAX_BYTES)?);
        let cached = behind(TCACHE_COUNT)?;
        let is_sane = count <= most
            && flag <= 1
            && mapped <= most_mapped
            && mapped.is_multiple_of(PAGE)
            && (count == 0) == (mapped == 0)
            && count <= mapped / PAGE
            && is_huge_page(thp)
            && is_huge_page(huge_page)
            && lists <= MAX_LISTS
            && (largest == 0 || (SMALLEST..=MAX_LARGEST).contains(&largest))
            && cached <= MAX_COUNT;
        is_sane.then_some(Self {
            at,
            mapped_chunks: count,
            mapped_bytes: mapped,
            cached,
            trim_unit: thp.max(PAGE),
            huge_page,
        })
    }

    /// What threads' heaps can be aligned to.
    pub(super) fn heap_alignments(self) -> impl Iterator<Item = u64> {
        let huge = self.huge_page.saturating_mul(HUGE_PAGES_OF_HEAP);
        [HEAP_ALIGN, huge].into_iter().filter(|align| *align > 0)
    }
}
