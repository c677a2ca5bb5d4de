//! What opens and closes make of a granule: its next state, its verdict and the counts. The kernel side swaps and adds.
//!
//! It has two roads. The full one (`granule/open.rs`, `granule/close.rs`) knows every case; the short one
//! (`granule/quick.rs`) does what granules mostly do, and leaves all else to the full one. The tests hold the two against
//! each other on every state that the short one takes.

use crate::{
    counter,
    maps::Counter,
    mode::Mode,
    state::{CLOSED, Flags, IN_FLIGHT, MIGRATED, STRAGGLER, State, USED, Verdict, verdict_of},
};

/// The flags of a generation that begins.
#[inline(always)]
#[must_use]
pub const fn begun(mode: Mode) -> Flags {
    USED.and(IN_FLIGHT.times(mode.bit(Mode::IN_FLIGHT)))
        .and(STRAGGLER.times(mode.bit(Mode::IMPLICIT)))
}

/// Whether a closed slot serves its id's next generation: nothing refers to it, or what does goes along.
#[inline(always)]
#[must_use]
pub const fn goes_on(seen: State, mode: Mode) -> bool {
    // Objects that were handed over refer to it even where a close frees them otherwise.
    let freed = mode.is_bulk() && !seen.is_migrated();
    seen.live() == 0 || freed || !mode.has(Mode::BY_OBJECT)
}

/// The state that the next generation of an id gives the slot of its last one, which left `seen`; `mine`: whether the slot
/// [`goes_on`] with it, else it is left to its objects.
///
/// No function: with one `granule_begin` takes more stack than Linux 6.1 has left for it.
#[macro_export]
macro_rules! claimed {
    ($seen:expr, $mode:expr, $mine:expr) => {{
        use $crate::{
            mode::Mode,
            state::{BEFORE, DETACHED, Flags, TAINTED},
            transition::begun,
        };
        let kept = if $mode.is_bulk() { $seen.emptied() } else { $seen };
        let mut flags = begun($mode);
        if $mode.is_implicit() {
            flags = flags | BEFORE.times($mode.bit(Mode::BEFORE));
        }
        if kept.live() != 0 {
            // The frees of the two generations cannot be distinguished until none of their objects is left.
            flags = flags | TAINTED;
        }
        if $mine {
            kept.without(Flags::ALL).stepped().with(flags)
        } else {
            $seen.with(DETACHED)
        }
    }};
}

/// The same on the short road, for an open; `None`: the full road is asked.
#[inline(always)]
#[must_use]
pub const fn reopened(seen: State) -> Option<State> {
    if seen.is_closed() && seen.live() == 0 {
        Some(seen.without(Flags::ALL).stepped().with(USED))
    } else {
        None
    }
}

/// Whether the late drain of a generation that is taken over has to wait for the objects of the next one.
#[inline(always)]
#[must_use]
pub const fn defers_drain(seen: State, mode: Mode) -> bool {
    seen.has_pins() && mode.is_judged()
}

/// The flags that a close sets.
#[inline(always)]
#[must_use]
pub const fn closing(mode: Mode) -> Flags {
    let mut flags = if mode.is_judged() { CLOSED } else { CLOSED.and(STRAGGLER) };
    if mode.has(Mode::MIGRATE) {
        flags = flags.and(STRAGGLER).and(MIGRATED);
    }
    flags
}

/// The same on the short road, for a close that the live count in the target's memory decides.
pub const CLOSING_BY_COUNT: Flags = CLOSED.and(STRAGGLER);

/// The verdict of such a close, and the objects that are live: 0 where what was read is no count.
#[inline(always)]
#[must_use]
pub const fn judged_by(live: u64) -> (Verdict, u64) {
    match verdict_of(live) {
        Verdict::Pinned => (Verdict::Pinned, live),
        other => (other, 0),
    }
}

/// Counts the verdict of a close of kind `drain` with `add`, for both roads.
#[inline(always)]
pub fn count_verdict(verdict: Verdict, live: u64, bytes: u64, mut add: impl FnMut(Counter, u64)) {
    match verdict {
        Verdict::Drainable => add(counter!(drainable), 1),
        Verdict::Pinned => {
            add(counter!(pinned), 1);
            add(counter!(pinned_objects), live);
            add(counter!(pinned_bytes), bytes);
        }
        Verdict::Unknown => add(counter!(unknown), 1),
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{
        granule::Generation,
        maps::Totals,
        spec::{Kind, flags},
        state::{DETACHED, MOVED, RETIRING},
    };

    /// Every combination of flags, with none, one and many objects live, in generations that wrap and do not.
    fn states() -> impl Iterator<Item = State> {
        let flags = (0..256u64).map(|flags| flags << 32);
        let lives = [0, 1, 2, u64::from(u32::MAX)];
        let words = flags.flat_map(move |flags| lives.map(|live| flags | live));
        words.flat_map(|word| {
            [0, 7, 0xff_ffff].map(|generation| {
                let plain = State::fresh(Generation::new(generation), CLOSED).without(Flags::ALL);
                State::from_raw(plain.raw() | word)
            })
        })
    }

    /// Those in which the short road can meet a slot: it remembers slots that are in their id's service.
    fn in_service() -> impl Iterator<Item = State> {
        states().filter(|state| state.only(USED | RETIRING | DETACHED) == USED)
    }

    /// Every mode of a probe and its target, but for granules that no call opens or closes.
    fn modes() -> impl Iterator<Item = Mode> {
        let bits =
            [flags::BY_OBJECT, flags::HAS_OPEN, flags::BOUNDARY, flags::HAS_BYTES, flags::NESTED];
        [Kind::Drain, Kind::Bulk, Kind::Slab].into_iter().flat_map(move |kind| {
            (0..64u32).map(move |chosen| {
                let set = (0..bits.len()).filter(|at| chosen >> at & 1 != 0);
                let mode = Mode::of(set.fold(0, |all, at| all | bits[at]), kind as u32);
                if chosen >> 5 & 1 != 0 { mode | Mode::FROM_START } else { mode }
            })
        })
    }

    /// An open on the short road leaves what the full road would: the same state, no object to be taken over, none to be
    /// freed, and no late drain to wait for. What the full road would do otherwise, the short one refuses.
    #[test]
    fn both_roads_open_alike() {
        let mut taken = 0;
        for mode in modes().map(|mode| mode | Mode::BY_OPEN) {
            for seen in in_service() {
                let Some(next) = reopened(seen) else {
                    assert!(!seen.is_closed() || seen.live() != 0);
                    continue;
                };
                assert!(goes_on(seen, mode));
                assert_eq!(claimed!(seen, mode, true), next, "{seen:?} {mode:?}");
                assert!(seen.live() == 0 && !defers_drain(seen, mode));
                assert_eq!((next.live(), next.only(Flags::ALL)), (0, USED));
                assert_eq!(next.generation(), seen.generation().next());
                taken += 1;
            }
        }
        assert!(taken > 1_000, "{taken}");
    }

    /// A close on the short road sets the flags that the full road would, and judges alike: there nothing is waited for,
    /// no member is freed, and no free that follows is a late drain.
    #[test]
    fn both_roads_close_alike() {
        let of_short_road =
            |mode: &Mode| mode.is_drain() && mode.has(Mode::BOUNDARY) && !mode.has(Mode::MIGRATE);
        for mode in modes().filter(of_short_road) {
            assert_eq!(closing(mode), CLOSING_BY_COUNT);
            assert!(!mode.is_judged() && !mode.is_bulk());
            for seen in in_service().filter(|seen| !seen.is_closed()) {
                let left = seen.with(closing(mode));
                assert_eq!(left, seen.with(CLOSING_BY_COUNT));
                assert!(left.is_closed() && !left.has_pins() && !left.is_late_drain());
                assert_eq!(left.is_moved(), left.only(MOVED) == MOVED && left.live() == 0);
            }
        }
    }

    /// A verdict is counted once, and only pins add objects and bytes.
    #[test]
    fn verdicts_are_counted_once() {
        let counted = |read: u64, bytes: u64| {
            let (verdict, live) = judged_by(read);
            let mut totals = Totals::default();
            let words: &mut [u64] = bytemuck::cast_slice_mut(core::slice::from_mut(&mut totals));
            count_verdict(verdict, live, bytes, |counter, value| words[counter.index()] += value);
            totals
        };
        let one = |field: fn(&mut Totals) -> &mut u64| {
            let mut totals = Totals::default();
            *field(&mut totals) = 1;
            totals
        };
        assert_eq!(counted(0, 64), one(|totals| &mut totals.drainable));
        let pinned =
            Totals { pinned_objects: 3, pinned_bytes: 64, ..one(|totals| &mut totals.pinned) };
        assert_eq!(counted(3, 64), pinned);
        for read in [u64::MAX, 1 << 63, crate::spec::value::UNREAD] {
            assert_eq!(counted(read, 64), one(|totals| &mut totals.unknown));
        }
    }

    /// The counters' numbers are those of the fields, in their order.
    #[test]
    fn counters_are_fields() {
        let numbers: Vec<usize> =
            [counter!(opened), counter!(drainable)].map(Counter::index).into();
        let mut totals = Totals::default();
        (totals.opened, totals.drainable) = (1, 2);
        let words: &[u64] = bytemuck::cast_slice(core::slice::from_ref(&totals));
        assert_eq!(numbers.into_iter().map(|at| words[at]).collect::<Vec<_>>(), [1, 2]);
    }
}
