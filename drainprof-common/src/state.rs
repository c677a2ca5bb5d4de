//! The granule's state word: live count, flags and generation in one 64-bit word, so that one atomic
//! operation decides a close (a swap that sets [`CLOSED`]) or a late drain (fetch-sub that reaches zero with
//! [`CLOSED`] set).
//!
//! ```text
//! 63          40 39      32 31           0
//! │ generation  │  flags   │  live count  │
//! ```

use core::ops::BitOr;

use bytemuck::{Pod, Zeroable};

use crate::granule::Generation;

/// The granule's boundary was reached.
pub const CLOSED: Flags = Flags(1 << 32);
/// Something that the verdict needs was lost, or objects without ids that an earlier generation has left
/// are counted with this one's: the close is `unknown`.
pub const TAINTED: Flags = Flags(1 << 33);
/// The granule's open was not seen, and it may have had objects before that: the close is `unknown`.
pub const BEFORE: Flags = Flags(1 << 34);
/// Made by an alloc while the same thread's open was still in flight; that open adopts it.
pub const IN_FLIGHT: Flags = Flags(1 << 35);
/// With [`CLOSED`]: the close has handed the objects over, so their frees go on counting and are no late drains.
/// (An open in flight is only of interest while the granule is open, so that the two share a bit.)
pub const MIGRATED: Flags = IN_FLIGHT;
/// On a closed granule: an object was allocated in it after it was closed and empty; no late drain follows.
/// On an open granule: it is implicit, so the free of its last object closes it in the same instant.
pub const STRAGGLER: Flags = Flags(1 << 36);
/// No longer in the index: another generation has taken the id. The last free retires the slot.
pub const DETACHED: Flags = Flags(1 << 37);
/// The slot holds a granule (else it is unused).
pub const USED: Flags = Flags(1 << 38);
/// User space is about to retire the slot.
pub const RETIRING: Flags = Flags(1 << 39);
/// The state of a slot that a granule has left for another slot, which `parent_at` names. It stays for the granules
/// that are nested in it; nothing else leaves an empty slot out of the index.
pub const MOVED: Flags = CLOSED.and(STRAGGLER).and(DETACHED).and(MIGRATED);

const ALL: u64 = 0xff << 32;
const LIVE: u64 = 0xffff_ffff;
const GENERATION_SHIFT: u32 = 40;

/// Flags of a state word, at their bits in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Flags(u64);

impl Flags {
    /// All flags.
    pub const ALL: Self = Self(ALL);

    /// Both.
    #[inline(always)]
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These if `bit` is 1, none if it is 0; without a branch.
    #[inline(always)]
    #[must_use]
    pub const fn times(self, bit: u32) -> Self {
        Self(self.0 * bit as u64)
    }

    /// The bits in the word.
    #[inline(always)]
    #[must_use]
    pub const fn raw(self) -> u64 {
        self.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

/// A state word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub struct State(u64);

impl State {
    /// One generation, to be added to a word.
    pub const GENERATION_STEP: u64 = 1 << GENERATION_SHIFT;

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

    /// The state of a fresh granule.
    #[inline(always)]
    #[must_use]
    pub const fn fresh(generation: Generation, flags: Flags) -> Self {
        Self((generation.number() as u64) << GENERATION_SHIFT | flags.0 | USED.0)
    }

    /// Objects live in the granule.
    #[inline(always)]
    #[must_use]
    pub const fn live(self) -> u64 {
        self.0 & LIVE
    }

    /// The granule's generation.
    #[inline(always)]
    #[must_use]
    pub const fn generation(self) -> Generation {
        Generation::new((self.0 >> GENERATION_SHIFT) as u32)
    }

    /// Those of `flags` that are set.
    #[inline(always)]
    #[must_use]
    pub const fn only(self, flags: Flags) -> Flags {
        Flags(self.0 & flags.0)
    }

    /// Whether any of `flags` is set.
    #[inline(always)]
    #[must_use]
    pub const fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// Whether the granule is closed.
    #[inline(always)]
    #[must_use]
    pub const fn is_closed(self) -> bool {
        self.has(CLOSED)
    }

    /// Whether the slot holds a granule.
    #[inline(always)]
    #[must_use]
    pub const fn is_used(self) -> bool {
        self.has(USED)
    }

    /// With `flags` set.
    #[inline(always)]
    #[must_use]
    pub const fn with(self, flags: Flags) -> Self {
        Self(self.0 | flags.0)
    }

    /// With `flags` not set.
    #[inline(always)]
    #[must_use]
    pub const fn without(self, flags: Flags) -> Self {
        Self(self.0 & !flags.0)
    }

    /// With no object live.
    #[inline(always)]
    #[must_use]
    pub const fn emptied(self) -> Self {
        Self(self.0 & !LIVE)
    }

    /// With one more object live.
    #[inline(always)]
    #[must_use]
    pub const fn plus_one(self) -> Self {
        Self(self.0 + 1)
    }

    /// With one object less live.
    #[inline(always)]
    #[must_use]
    pub const fn minus_one(self) -> Self {
        Self(self.0 - 1)
    }

    /// The same in the next generation.
    #[inline(always)]
    #[must_use]
    pub const fn stepped(self) -> Self {
        Self(self.0.wrapping_add(Self::GENERATION_STEP))
    }

    /// Whether a free that found this state was the late drain: the last pin of a closed, pinned granule.
    ///
    /// A closed granule with live objects was pinned at its close, unless they came later ([`STRAGGLER`])
    /// or its close was unknown; so no "pinned" flag is needed, which could not be set in the same atomic
    /// operation as [`CLOSED`].
    #[inline(always)]
    #[must_use]
    pub const fn is_late_drain(self) -> bool {
        self.live() == 1 && self.was_judged()
    }

    /// Whether the objects live in the granule are its pins: the granule is closed, and was pinned at its close.
    /// (Objects that come after the close are no pins; there, they came after it was empty.)
    #[inline(always)]
    #[must_use]
    pub const fn has_pins(self) -> bool {
        self.live() != 0 && self.was_judged()
    }

    #[inline(always)]
    const fn was_judged(self) -> bool {
        self.only(CLOSED.and(STRAGGLER).and(TAINTED).and(BEFORE)).0 == CLOSED.0
    }

    /// Whether the granule's close has handed its objects over, and not freed or waited for them.
    #[inline(always)]
    #[must_use]
    pub const fn is_migrated(self) -> bool {
        self.only(CLOSED.and(MIGRATED)).0 == CLOSED.and(MIGRATED).0
    }

    /// Whether the granule has left the slot for another one.
    #[inline(always)]
    #[must_use]
    pub const fn is_moved(self) -> bool {
        self.only(MOVED).0 == MOVED.0 && self.live() == 0
    }

    /// The verdict on a granule whose state this was when [`CLOSED`] was set.
    ///
    /// `None`: it had been closed already, so this was an unmatched close.
    #[inline(always)]
    #[must_use]
    pub const fn decide(self) -> Option<Verdict> {
        if self.is_closed() {
            None
        } else if self.has(TAINTED.and(BEFORE)) {
            Some(Verdict::Unknown)
        } else if self.live() == 0 {
            Some(Verdict::Drainable)
        } else {
            Some(Verdict::Pinned)
        }
    }
}

/// The verdict of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// No object was live.
    Drainable = 1,
    /// At least one object was live.
    Pinned = 2,
    /// Cannot be decided.
    Unknown = 3,
}

/// The verdict of a close on a granule in which `live` objects are live, by the allocator's own count.
///
/// A count below zero is not a count: what is read is [`crate::spec::value::UNREAD`], or was read from fields
/// that were changing.
#[inline(always)]
#[must_use]
pub const fn verdict_of(live: u64) -> Verdict {
    if live == 0 {
        Verdict::Drainable
    } else if live >> 63 == 0 {
        Verdict::Pinned
    } else {
        Verdict::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(generation: u32, flags: Flags) -> State {
        State::fresh(Generation::new(generation), flags)
    }

    const NO_FLAGS: Flags = Flags(0);

    /// A slot that was left is closed and empty; one whose objects live on elsewhere is not taken for one.
    #[test]
    fn a_slot_that_was_left() {
        assert!(fresh(1, MOVED).is_moved());
        assert!(!fresh(1, MOVED).plus_one().is_moved());
        assert!(!fresh(1, CLOSED | STRAGGLER | MIGRATED).is_moved());
    }

    /// Only a closed granule has handed anything over, and what it has handed over is neither a pin nor a late drain.
    #[test]
    fn migrated_objects_are_no_pins() {
        let gone = fresh(1, CLOSED | STRAGGLER | MIGRATED).plus_one();
        assert!(gone.is_migrated());
        assert!(!gone.is_late_drain() && !gone.has_pins());
        assert!(!fresh(1, IN_FLIGHT).plus_one().is_migrated());
        assert!(!fresh(1, CLOSED | STRAGGLER).plus_one().is_migrated());
    }

    /// The three fields of the word do not overlap.
    #[test]
    fn fields_are_apart() {
        let word = State::from_raw(fresh(0xab_cdef, CLOSED | STRAGGLER).raw() + 7);
        assert_eq!(word.live(), 7);
        assert_eq!(word.generation(), Generation::new(0xab_cdef));
        assert_eq!(word.only(CLOSED | STRAGGLER | USED), CLOSED | STRAGGLER | USED);
        assert!(!word.has(TAINTED | BEFORE));
        assert_eq!(
            word.without(Flags::ALL).emptied(),
            State::fresh(word.generation(), NO_FLAGS).without(USED)
        );
    }

    /// The next generation changes nothing else, and generations wrap.
    #[test]
    fn generations_step() {
        let last = fresh(0xff_ffff, CLOSED).plus_one();
        assert_eq!(last.stepped().generation(), Generation::new(0));
        assert_eq!((last.stepped().live(), last.stepped().only(Flags::ALL)), (1, CLOSED | USED));
    }

    /// A close is decided by what was live before it, and only once.
    #[test]
    fn one_close_decides() {
        assert_eq!(fresh(1, NO_FLAGS).decide(), Some(Verdict::Drainable));
        assert_eq!(fresh(1, NO_FLAGS).plus_one().decide(), Some(Verdict::Pinned));
        assert_eq!(fresh(1, TAINTED).plus_one().decide(), Some(Verdict::Unknown));
        assert_eq!(fresh(1, BEFORE).decide(), Some(Verdict::Unknown));
        assert_eq!(fresh(1, CLOSED).decide(), None);
    }

    /// A count that was read decides as far as it is one.
    #[test]
    fn counts_below_zero_are_none() {
        for (live, verdict) in [
            (0, Verdict::Drainable),
            (1, Verdict::Pinned),
            (u64::MAX >> 1, Verdict::Pinned),
            (0u64.wrapping_sub(2), Verdict::Unknown),
            (crate::spec::value::UNREAD, Verdict::Unknown),
        ] {
            assert_eq!(verdict_of(live), verdict, "{live:#x}");
        }
    }

    /// Only the last free of a pinned, closed granule is a late drain.
    #[test]
    fn late_drain_is_the_last_free() {
        assert!(fresh(1, CLOSED).plus_one().is_late_drain());
        assert!(!fresh(1, CLOSED).plus_one().plus_one().is_late_drain());
        assert!(!fresh(1, NO_FLAGS).plus_one().is_late_drain());
        for flag in [STRAGGLER, TAINTED, BEFORE] {
            assert!(!fresh(1, CLOSED | flag).plus_one().is_late_drain());
        }
    }
}
