//! Objects hold their granules: counted in by allocs, out by frees; the last one out of a closed granule
//! is its late drain.

use drainprof_common::{
    event::EventKind,
    hist,
    loss::Loss,
    maps::{Slot, place_of},
    state,
};

use super::{
    AGAIN, BEGIN,
    implicit::join,
    mode,
    slots::{self, Found, find},
};
use crate::{
    atomic, calls, config, emit, histogram,
    hit::now,
    losses,
    series::{self, bump},
};

/// How often a compare-and-swap against other CPUs' counts is tried.
const TRIES: usize = 32;

/// Counts an object in its granule: the index word, or [`AGAIN`]. [`BEGIN`] and bits of [`mode`] where its
/// open was not seen and the caller has to begin it: from here the stack would be too deep.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_hold(series: u32, id: u64, how: u32, rsp: u64) -> u64 {
    let has_open = how & mode::HAS_OPEN != 0;
    match find(series, id) {
        Found::Nothing | Found::Retiring => {}
        Found::Changing => return AGAIN,
        Found::Unfollowed(place) if place.word & place_of::CLOSED == 0 => {
            return place_of::UNFOLLOWED;
        }
        Found::Unfollowed(_) | Found::Left(_) => {
            if has_open && calls::open_in_flight(series, rsp) == 0 {
                after_close(series);
                return place_of::UNFOLLOWED;
            }
        }
        Found::Slot(place, slot, seen) => {
            if seen & (state::CLOSED | state::STRAGGLER) == state::STRAGGLER {
                return if join(slot, seen) { place.word } else { AGAIN };
            }
            if seen & state::CLOSED == 0 || (has_open && calls::open_in_flight(series, rsp) == 0) {
                return hold(series, slot, place.word);
            }
        }
    }
    // An open that has not returned, or none: with no `open` probe a granule's first use is its open,
    // unless it may be older than the attach.
    let how = if has_open && calls::open_in_flight(series, rsp) != 0 {
        mode::IN_FLIGHT
    } else if how & mode::FROM_START == 0 {
        mode::UNSEEN | mode::BEFORE
    } else if has_open {
        mode::UNSEEN
    } else {
        0
    };
    BEGIN | u64::from(how)
}

/// Counts an object in its granule if it is remembered and open: the index word.
#[inline(always)]
pub(super) fn hold_remembered(series: u32, id: u64) -> Option<u64> {
    let (place, slot, seen) = slots::remembered(series, id)?;
    if seen & state::CLOSED != 0 {
        return None;
    }
    if seen & state::STRAGGLER != 0 {
        return if join(slot, seen) { Some(place.word) } else { None };
    }
    match hold(series, slot, place.word) {
        AGAIN => None,
        word => Some(word),
    }
}

#[inline(always)]
fn hold(series: u32, slot: *mut Slot, word: u64) -> u64 {
    // SAFETY: map memory.
    let before = unsafe { atomic::add(&raw mut (*slot).state, 1) };
    if state::generation(before) != place_of::generation(word)
        || before & (state::USED | state::RETIRING) != state::USED
    {
        // The slot was used again in between: take the count back and look again. Where the granule was
        // closed and empty before our count, that is no late drain.
        let empty = before & state::CLOSED != 0 && state::live(before) == 0;
        granule_release(place_of::slot(word), slot, 0, u32::from(!empty));
        return AGAIN;
    }
    if before & state::CLOSED != 0 {
        if state::live(before) == 0 {
            // SAFETY: map memory.
            unsafe { atomic::or(&raw mut (*slot).state, state::STRAGGLER) };
        }
        after_close(series);
    }
    word & !place_of::CLOSED
}

#[inline(always)]
fn after_close(series: u32) {
    bump!(series, allocs_after_close);
    losses::count(Loss::AllocAfterClose);
}

/// Takes one object off a granule's live count. The caller holds a reference, which this gives up. With
/// `judge` 0 its going is no late drain.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_release(
    index: u32,
    slot: *mut Slot,
    size: u64,
    judge: u32,
) -> u32 {
    if slot.is_null() {
        return 0;
    }
    release(index, slot, size, judge);
    1
}

/// What an object's granule was as the object left it.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// The state, the object included.
    pub(crate) before: u64,
    /// When the granule was closed; means something if it is.
    pub(crate) closed_ns: u64,
    /// When it was opened; 0 where that was not seen.
    pub(crate) opened_ns: u64,
}

/// [`granule_release`] where it is worth a call less.
#[inline(always)]
pub(crate) fn release(index: u32, slot: *mut Slot, size: u64, judge: u32) -> Left {
    // SAFETY: map memory. What is told about a late drain is read while the reference is held: after it
    // another CPU may fill the slot anew.
    unsafe {
        let seen = atomic::load(&raw const (*slot).state);
        let series = (*slot).series;
        let mut closed_ns = (*slot).closed_ns;
        let opened_ns = (*slot).opened_ns;
        let was_closed = seen & state::CLOSED != 0;
        let mut bytes = (*slot).bytes;
        if size != 0 {
            atomic::sub(&raw mut (*slot).live_bytes, size);
        }
        let mut before = atomic::sub(&raw mut (*slot).state, 1);
        if state::live(before) == 1 && before & (state::CLOSED | state::DETACHED) != 0 {
            if seen & state::CLOSED == 0 {
                // It was closed in between. What its close has noted is only there as long as the slot serves
                // this generation, to which nothing refers any more: else the close was just now.
                (closed_ns, bytes) = noted(slot, before, bytes);
            }
            if judge == 0 {
                before |= state::STRAGGLER;
            }
            granule_drained(series, index, before, closed_ns, bytes);
        } else if before & state::CLOSED != 0 && !was_closed {
            // Other pins hold it still, so what its close has noted is there.
            closed_ns = now();
        }
        Left { before, closed_ns, opened_ns }
    }
}

/// When a generation was closed, and its bytes; now, and `bytes`, where its slot is another's by now.
#[inline(always)]
fn noted(slot: *mut Slot, before: u64, bytes: u64) -> (u64, u64) {
    // SAFETY: map memory.
    unsafe {
        let found =
            (atomic::load(&raw const (*slot).closed_ns), atomic::load(&raw const (*slot).bytes));
        let seen = atomic::load(&raw const (*slot).state);
        if state::generation(seen) == state::generation(before) { found } else { (now(), bytes) }
    }
}

/// The last object of a closed or abandoned granule has gone; `before` is the state that it left.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_drained(
    series: u32,
    index: u32,
    before: u64,
    closed_ns: u64,
    bytes: u64,
) -> u32 {
    if state::is_late_drain(before) {
        let at = now();
        bump!(series, late_drained);
        if let Some(state) = series::state(series) {
            // SAFETY: map memory.
            unsafe {
                atomic::sub(&raw mut (*state).retained_granules, 1);
                atomic::sub(&raw mut (*state).retained_bytes, bytes);
            }
        }
        histogram::add(series, hist::Of::PinDelay as u32, 0, at.saturating_sub(closed_ns));
        if config::events_wanted() != 0
            && let Some(slot) = slots::slot(index)
        {
            emit::granule(EventKind::LateDrain, series, at, |event| {
                // SAFETY: the record that `emit` has reserved, and map memory.
                unsafe {
                    (*event).granule = (*slot).id;
                    (*event).generation = state::generation(before);
                    (*event).bytes = bytes;
                    (*event).closed_ns = closed_ns;
                    (*event).opened_ns = (*slot).opened_ns;
                    (*event).place = (*slot).place;
                }
            });
        }
    }
    if before & state::DETACHED != 0 {
        slots::retire(index);
    } else if let Some(slot) = slots::slot(index) {
        // Whichever granule the slot serves by now: it is forgotten only if it is closed and empty.
        // SAFETY: map memory.
        slots::forget_if_scarce(series, unsafe { (*slot).id }, false);
    }
    0
}

/// Takes one object off the live count of a granule to which the caller holds no reference: 1, or 0
/// where this generation has no object, or (bulk) was closed, which has freed them all.
#[inline(always)]
pub(crate) fn take_off(index: u32, slot: *mut Slot, generation: u32, size: u64, how: u32) -> u32 {
    for _ in 0..TRIES {
        let taken = granule_take_off(index, slot, generation, size, how);
        if taken != BUSY {
            return taken;
        }
    }
    losses::count(Loss::AllocRaced);
    1
}

/// Instead of 0 or 1: another CPU changed the count in this instant.
const BUSY: u32 = 2;

/// One try of [`take_off`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_take_off(
    index: u32,
    slot: *mut Slot,
    generation: u32,
    size: u64,
    how: u32,
) -> u32 {
    if slot.is_null() {
        return 0;
    }
    // SAFETY: map memory.
    unsafe {
        let seen = atomic::load(&raw const (*slot).state);
        let freed_in_bulk = mode::is_bulk(how) && !state::is_migrated(seen);
        let gone = if freed_in_bulk { state::CLOSED } else { 0 };
        if state::generation(seen) != generation
            || state::live(seen) == 0
            || seen & (state::USED | gone) != state::USED
        {
            return 0;
        }
        let (series, closed_ns, bytes) = ((*slot).series, (*slot).closed_ns, (*slot).bytes);
        let last = state::live(seen) == 1;
        let by_object = how & mode::BY_OBJECT != 0;
        let mut next = seen - 1;
        if last && !by_object && seen & state::CLOSED == 0 {
            // What was taken over from an earlier generation has gone: from here the count is this one's.
            next &= !state::TAINTED;
        }
        if atomic::compare_swap(&raw mut (*slot).state, seen, next) != seen {
            return BUSY;
        }
        if last && !by_object {
            pay(series, slot);
        }
        if last && seen & (state::CLOSED | state::DETACHED) != 0 {
            // The slot may serve another granule already: its bytes are left alone.
            granule_drained(series, index, seen, closed_ns, bytes);
        } else if size != 0 {
            atomic::sub(&raw mut (*slot).live_bytes, size);
        }
    }
    1
}

/// Earlier generations, whose objects were counted with this one's, have drained.
#[inline(always)]
pub(super) fn pay(series: u32, slot: *mut Slot) {
    // SAFETY: map memory.
    unsafe {
        if (*slot).owed == 0 {
            return;
        }
        let owed = u64::from(atomic::swap_32(&raw mut (*slot).owed, 0));
        bump!(series, late_drained, owed);
        if let Some(state) = series::state(series) {
            atomic::sub(&raw mut (*state).retained_granules, owed);
        }
    }
}

/// Takes one object off the live count of a granule that is known by id only: 1, 0 where it has none,
/// or [`AGAIN`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_take_off_id(series: u32, id: u64, size: u64, how: u32) -> u64 {
    match find(series, id) {
        Found::Slot(place, slot, _) => {
            let generation = place_of::generation(place.word);
            u64::from(take_off(place_of::slot(place.word), slot, generation, size, how))
        }
        // Without a slot nothing can be said against it.
        Found::Unfollowed(_) => 1,
        Found::Nothing | Found::Left(_) | Found::Retiring => 0,
        Found::Changing => AGAIN,
    }
}
