//! What names a granule's memory: the slot's number, the generation, and words that hold both.
//!
//! All types are transparent: a word of a map can be read and written at once, as the number that it is.

use bytemuck::{Pod, Zeroable};

/// The number of a slot in `GRANULES`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct SlotNumber(u32);

impl SlotNumber {
    /// A granule that is known but has no slot.
    pub const NONE: Self = Self(u32::MAX);

    /// The slot with this number.
    #[inline(always)]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The index into `GRANULES`; outside of it for [`Self::NONE`].
    #[inline(always)]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Whether this is no slot.
    #[inline(always)]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == Self::NONE.0
    }

    /// Whether this is a slot.
    #[inline(always)]
    #[must_use]
    pub const fn is_some(self) -> bool {
        !self.is_none()
    }
}

/// Which granule of those that a slot serves one after the other; counts modulo 2²⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Generation(u32);

impl Generation {
    /// The bits that count.
    pub(crate) const MASK: u64 = 0xff_ffff;

    /// The generation with this number, modulo 2²⁴.
    #[inline(always)]
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number & Self::MASK as u32)
    }

    /// The number.
    #[inline(always)]
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }

    /// The generation after this one.
    #[inline(always)]
    #[must_use]
    pub const fn next(self) -> Self {
        Self::new(self.0.wrapping_add(1))
    }
}

/// A value of `INDEX`: which generation of which slot an id means. Of a granule without a slot: whether it is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct IndexWord(u64);

impl IndexWord {
    const CLOSED: u64 = 1 << 63;

    /// An open granule without a slot.
    pub const UNFOLLOWED: Self = Self(SlotNumber::NONE.0 as u64);
    /// A closed granule without a slot.
    pub const CLOSED_ID: Self = Self(Self::UNFOLLOWED.0 | Self::CLOSED);

    /// A granule in a slot.
    #[inline(always)]
    #[must_use]
    pub const fn new(slot: SlotNumber, generation: Generation) -> Self {
        Self(slot.0 as u64 | (generation.0 as u64 & Generation::MASK) << 32)
    }

    /// From a map.
    #[inline(always)]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// For a map.
    #[inline(always)]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The slot; [`SlotNumber::NONE`] for a granule without one.
    #[inline(always)]
    #[must_use]
    pub const fn slot(self) -> SlotNumber {
        SlotNumber(self.0 as u32)
    }

    /// The generation.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> Generation {
        Generation((self.0 >> 32 & Generation::MASK) as u32)
    }

    /// Whether this is a granule without a slot that is closed.
    #[inline(always)]
    #[must_use]
    pub const fn is_closed(self) -> bool {
        self.0 & Self::CLOSED != 0
    }

    /// The same granule, closed. Only for granules without a slot.
    #[inline(always)]
    #[must_use]
    pub const fn closed(self) -> Self {
        Self(self.0 | Self::CLOSED)
    }
}

/// [`Slot::parent_at`](crate::maps::Slot::parent_at): which generation of which slot a granule is nested in, if any.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct ParentWord(u64);

impl ParentWord {
    const SET: u64 = 1 << 63;

    /// No parent that is known.
    pub const NONE: Self = Self(0);

    /// The parent that an index word names.
    #[inline(always)]
    #[must_use]
    pub const fn new(parent: IndexWord) -> Self {
        Self(parent.0 | Self::SET)
    }

    /// From a map.
    #[inline(always)]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// For a map.
    #[inline(always)]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The parent, if there is one.
    #[inline(always)]
    #[must_use]
    pub const fn get(self) -> Option<IndexWord> {
        if self.0 & Self::SET == 0 { None } else { Some(IndexWord(self.0 & !Self::SET)) }
    }
}

/// [`Slot::pinned_objects`](crate::maps::Slot::pinned_objects): how many objects, and of which generation of the slot.
/// A program that was preempted before it could write the number finds that the slot has gone on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct PinnedWord(u64);

impl PinnedWord {
    const SHIFT: u32 = 40;
    const OBJECTS: u64 = (1 << Self::SHIFT) - 1;

    /// So many objects of this generation; live counts are below 2³².
    #[inline(always)]
    #[must_use]
    pub const fn new(generation: Generation, objects: u64) -> Self {
        Self((generation.0 as u64) << Self::SHIFT | objects & Self::OBJECTS)
    }

    /// From a map.
    #[inline(always)]
    #[must_use]
    pub const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// For a map.
    #[inline(always)]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }

    /// The number, if it is of this generation.
    #[inline(always)]
    #[must_use]
    pub const fn of(self, generation: Generation) -> Option<u64> {
        if self.0 >> Self::SHIFT == generation.0 as u64 {
            Some(self.0 & Self::OBJECTS)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Slot, generation and the closed flag do not overlap, and generations wrap.
    #[test]
    fn parts_of_words_are_apart() {
        let last = Generation::new(u32::MAX);
        assert_eq!((last.number(), last.next().number()), (0xff_ffff, 0));
        let word = IndexWord::new(SlotNumber::new(7), last);
        assert_eq!((word.slot().number(), word.generation()), (7, last));
        assert!(!word.is_closed() && !IndexWord::UNFOLLOWED.is_closed());
        assert!(IndexWord::CLOSED_ID.is_closed() && IndexWord::CLOSED_ID.slot().is_none());
        assert_eq!(IndexWord::UNFOLLOWED.closed(), IndexWord::CLOSED_ID);
    }

    /// A number of objects is only that of its own generation.
    #[test]
    fn pinned_objects_have_a_generation() {
        let last = Generation::new(u32::MAX);
        let most = u64::from(u32::MAX);
        assert_eq!(PinnedWord::new(last, most).of(last), Some(most));
        assert_eq!(PinnedWord::new(last, most).of(last.next()), None);
        assert_eq!(PinnedWord::default().of(last.next()), Some(0));
    }

    /// Slot 0 in generation 0 is a parent too.
    #[test]
    fn parents_are_known_from_none() {
        let first = IndexWord::new(SlotNumber::new(0), Generation::new(0));
        assert_eq!(ParentWord::new(first).get(), Some(first));
        assert_eq!(ParentWord::NONE.get(), None);
    }
}
