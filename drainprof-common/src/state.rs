//! The granule's state word: live count, flags and generation in one 64-bit word, so that one atomic
//! operation decides a close (fetch-or of [`CLOSED`]) or a late drain (fetch-sub that reaches zero with
//! [`CLOSED`] set).
//!
//! ```text
//! 63          40 39      32 31           0
//! │ generation  │  flags   │  live count  │
//! ```

/// The granule's boundary was reached.
pub const CLOSED: u64 = 1 << 32;
/// Something that the verdict needs was lost, or objects without ids that an earlier generation has left
/// are counted with this one's: the close is `unknown`.
pub const TAINTED: u64 = 1 << 33;
/// The granule's open was not seen, and it may have had objects before that: the close is `unknown`.
pub const BEFORE: u64 = 1 << 34;
/// Made by an alloc while the same thread's open was still in flight; that open adopts it.
pub const IN_FLIGHT: u64 = 1 << 35;
/// With [`CLOSED`]: the close has handed the objects over, so their frees go on counting and are no late drains.
/// (An open in flight is only of interest while the granule is open, so that the two share a bit.)
pub const MIGRATED: u64 = IN_FLIGHT;
/// On a granule that is closed: an object was allocated in it after it was closed and empty; what follows is no late
/// drain. On one that is open: it is implicit, so that whoever takes its last object out closes it in the same instant.
pub const STRAGGLER: u64 = 1 << 36;
/// No longer in the index: another generation has taken the id. The last free retires the slot.
pub const DETACHED: u64 = 1 << 37;
/// The slot holds a granule (else it is unused).
pub const USED: u64 = 1 << 38;
/// User space is about to retire the slot.
pub const RETIRING: u64 = 1 << 39;

/// All flags.
pub const FLAGS: u64 = 0xff << 32;
/// The mask of the live count.
pub const LIVE: u64 = 0xffff_ffff;
/// The generation's first bit.
pub const GENERATION_SHIFT: u32 = 40;
/// The mask of a generation once shifted down.
pub const GENERATION_MASK: u64 = 0xff_ffff;

/// Objects live in the granule.
#[inline(always)]
#[must_use]
pub const fn live(word: u64) -> u64 {
    word & LIVE
}

/// The granule's generation, modulo 2²⁴.
#[inline(always)]
#[must_use]
pub const fn generation(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

/// The word of a fresh granule.
#[inline(always)]
#[must_use]
pub const fn fresh(generation: u32, flags: u64) -> u64 {
    ((generation as u64 & GENERATION_MASK) << GENERATION_SHIFT) | flags | USED
}

/// The verdict of a close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Verdict {
    /// No object was live.
    Drainable = 1,
    /// At least one object was live.
    Pinned = 2,
    /// Cannot be said.
    Unknown = 3,
}

/// The verdict on a granule whose state word was `before` when CLOSED was set.
///
/// `None`: it had been closed already, so this was an unmatched close.
#[inline(always)]
#[must_use]
pub const fn decide(before: u64) -> Option<Verdict> {
    if before & CLOSED != 0 {
        None
    } else if before & (TAINTED | BEFORE) != 0 {
        Some(Verdict::Unknown)
    } else if live(before) == 0 {
        Some(Verdict::Drainable)
    } else {
        Some(Verdict::Pinned)
    }
}

/// The verdict of a close on a granule in which `live` objects are live, by the allocator's own count.
///
/// A count below zero is none: what is read is [`crate::spec::value::UNREAD`], or was read from fields
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

/// Whether a free that found `before` was the late drain: the last pin of a closed, pinned granule.
///
/// A closed granule with live objects was pinned at its close, unless they came later ([`STRAGGLER`])
/// or its close was unknown; so no "pinned" flag is needed, which could not be set in the same atomic
/// operation as [`CLOSED`].
#[inline(always)]
#[must_use]
pub const fn is_late_drain(before: u64) -> bool {
    live(before) == 1 && before & (CLOSED | STRAGGLER | TAINTED | BEFORE) == CLOSED
}

/// Whether an object that was live in a granule whose state was `seen` is a pin of its: the granule is closed, and
/// was pinned at its close. (Objects that come after the close are none; there, they came after it was empty.)
#[inline(always)]
#[must_use]
pub const fn has_pins(seen: u64) -> bool {
    live(seen) != 0 && seen & (CLOSED | STRAGGLER | TAINTED | BEFORE) == CLOSED
}

/// Whether a granule's close has handed its objects over, and not freed or waited for them.
#[inline(always)]
#[must_use]
pub const fn is_migrated(seen: u64) -> bool {
    seen & (CLOSED | MIGRATED) == CLOSED | MIGRATED
}

/// What the state of a slot becomes that a granule has left for another one, which the slot's `parent_at` names. It
/// stays so for those that are nested in it; nothing else leaves an empty slot out of the index.
pub const MOVED: u64 = CLOSED | STRAGGLER | DETACHED | MIGRATED;

/// Whether the slot is one that its granule has left for another.
#[inline(always)]
#[must_use]
pub const fn is_moved(seen: u64) -> bool {
    seen & MOVED == MOVED && live(seen) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A slot that was left is closed and empty; one whose objects live on elsewhere is not taken for one.
    #[test]
    fn a_slot_that_was_left() {
        assert!(is_moved(fresh(1, MOVED)));
        assert!(!is_moved(fresh(1, MOVED) + 1));
        assert!(!is_moved(fresh(1, CLOSED | STRAGGLER | MIGRATED)));
    }

    /// Only a closed granule has handed anything over, and what it has handed over is neither a pin nor a late drain.
    #[test]
    fn migrated_objects_are_no_pins() {
        let gone = fresh(1, CLOSED | STRAGGLER | MIGRATED) + 1;
        assert!(is_migrated(gone));
        assert!(!is_late_drain(gone) && !has_pins(gone));
        assert!(!is_migrated(fresh(1, IN_FLIGHT) + 1));
        assert!(!is_migrated(fresh(1, CLOSED | STRAGGLER) + 1));
    }

    /// The three fields of the word do not overlap.
    #[test]
    fn fields_are_apart() {
        let word = fresh(0xab_cdef, CLOSED | STRAGGLER) + 7;
        assert_eq!(live(word), 7);
        assert_eq!(generation(word), 0xab_cdef);
        assert_eq!(word & (CLOSED | STRAGGLER | USED), CLOSED | STRAGGLER | USED);
        assert_eq!(word & (TAINTED | BEFORE), 0);
    }

    /// A close is decided by what was live before it, and only once.
    #[test]
    fn one_close_decides() {
        assert_eq!(decide(fresh(1, 0)), Some(Verdict::Drainable));
        assert_eq!(decide(fresh(1, 0) + 1), Some(Verdict::Pinned));
        assert_eq!(decide(fresh(1, TAINTED) + 1), Some(Verdict::Unknown));
        assert_eq!(decide(fresh(1, BEFORE)), Some(Verdict::Unknown));
        assert_eq!(decide(fresh(1, CLOSED)), None);
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
        assert!(is_late_drain(fresh(1, CLOSED) + 1));
        assert!(!is_late_drain(fresh(1, CLOSED) + 2));
        assert!(!is_late_drain(fresh(1, 0) + 1));
        for flag in [STRAGGLER, TAINTED, BEFORE] {
            assert!(!is_late_drain(fresh(1, CLOSED | flag) + 1));
        }
    }
}
