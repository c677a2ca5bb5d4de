//! A granule reaches its boundary, or is reset.

use drainprof_common::{
    event::EventKind,
    hist,
    loss::Loss,
    maps::{NO_SLOT, Slot, Totals, cursor, place_of},
    state::{self, Verdict},
};

use super::{
    AGAIN, EEXIST, NOTHING, mode,
    open::granule_begin,
    slots::{self, Found, GENERATION_STEP, find, forget_if_scarce},
};
use crate::{
    atomic, config, emit,
    histogram::{self, histogram_add},
    hit::now,
    losses, maps, series,
};

const BPF_NOEXIST: u64 = 1;

/// What a close finds out about its granule.
#[derive(Clone, Copy)]
struct Closed {
    verdict: Verdict,
    generation: u32,
    live: u64,
    live_bytes: u64,
    bytes: u64,
    opened_ns: u64,
    place: u64,
}

/// Closes; what happened is all in the counters. `live` and `bytes` are what the probe has read (or the
/// profile's constant). 0, or [`AGAIN`].
#[allow(
    clippy::too_many_lines,
    reason = "one decision over all that an id can be; parts would be calls, or take half of it as arguments"
)]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_close(
    series: u32,
    id: u64,
    how: u32,
    live: u64,
    bytes: u64,
) -> u64 {
    let Some(totals) = series::totals(series) else { return NOTHING };
    let at = now();
    let boundary = how & mode::BOUNDARY != 0;
    let has_open = how & mode::HAS_OPEN != 0;
    let from_start = how & mode::FROM_START != 0;
    // Without opens each close is a boundary: of a generation that was never used, if the last one is
    // closed already.
    let unused = Closed {
        verdict: if boundary { state::verdict_of(live) } else { Verdict::Drainable },
        generation: 0,
        live: if boundary && live >> 63 == 0 { live } else { 0 },
        live_bytes: 0,
        bytes,
        opened_ns: 0,
        place: 0,
    };
    let mut closed = unused;
    let mut index = NO_SLOT;
    // Opens that only this close shows.
    let mut opened = 0u64;
    let mut earlier = 0u64;
    let found = match slots::remembered(series, id) {
        Some((place, slot, seen)) => Found::Slot(place, slot, seen),
        None => find(series, id),
    };
    match found {
        Found::Changing => return AGAIN,
        Found::Nothing => {
            // Remember that it is closed, so that a second close is recognised.
            let word = place_of::CLOSED | place_of::UNFOLLOWED;
            match maps::INDEX.insert(slots::key(series, id), word, BPF_NOEXIST) {
                Ok(()) => series::level(cursor::INDEX, true),
                Err(EEXIST) => return AGAIN,
                Err(_) => losses::count(Loss::GranuleIndexFull),
            }
            // Older than the attach; or never used, which only an observation from the start can tell.
            if has_open || !from_start {
                earlier = 1;
            } else {
                opened = 1;
            }
            if !boundary && !from_start {
                closed.verdict = Verdict::Unknown;
            }
        }
        Found::Unfollowed(found) => {
            if found.word & place_of::CLOSED == 0 {
                if !found.change(found.word | place_of::CLOSED) {
                    return AGAIN;
                }
                series::closed(series);
                if !boundary {
                    closed.verdict = Verdict::Unknown;
                }
            } else if has_open {
                return unmatched(totals);
            } else {
                opened = 1;
            }
        }
        Found::Retiring | Found::Left(_) => {
            if has_open {
                return unmatched(totals);
            }
            opened = 1;
        }
        Found::Slot(found, slot, seen) => {
            let generation = place_of::generation(found.word);
            closed.generation = generation.wrapping_add(1);
            index = place_of::slot(found.word);
            let decided = if seen & state::CLOSED != 0 {
                None
            } else {
                match close_slot(slot, seen, how, at, bytes) {
                    Some((before, known)) => state::decide(before).map(|_| (before, known)),
                    None => return AGAIN,
                }
            };
            match decided {
                Some((before, decided)) => {
                    settle(series, totals, slot, how, before, &decided, at);
                    forget_if_scarce(series, id, has_open);
                    closed = decided;
                    if boundary {
                        (closed.verdict, closed.live) = (unused.verdict, unused.live);
                    }
                }
                None if has_open => return unmatched(totals),
                None => opened = 1,
            }
        }
    }
    count(totals, how, &closed, opened, earlier);
    if config::events_wanted() != 0 {
        emit::granule(EventKind::Close, series, at, |event| {
            // SAFETY: the record that `emit` has reserved.
            unsafe {
                (*event).granule = id;
                let judged = mode::is_drain(how) && how & mode::MIGRATE == 0;
                (*event).verdict = if judged { closed.verdict as u32 } else { 0 };
                (*event).generation = closed.generation;
                (*event).live = closed.live;
                (*event).live_bytes = closed.live_bytes;
                (*event).bytes = closed.bytes;
                (*event).opened_ns = closed.opened_ns;
                (*event).closed_ns = at;
                (*event).place = closed.place;
                (*event).slot = index;
            }
        });
    }
    0
}

#[inline(always)]
fn unmatched(totals: *mut Totals) -> u64 {
    // SAFETY: this CPU's counters.
    unsafe { atomic::add(&raw mut (*totals).unmatched_closes, 1) };
    losses::count(Loss::UnmatchedClose);
    0
}

#[inline(always)]
fn count(totals: *mut Totals, how: u32, closed: &Closed, opened: u64, earlier: u64) {
    // SAFETY: this CPU's counters.
    unsafe {
        if opened != 0 {
            atomic::add(&raw mut (*totals).opened, 1);
        }
        if earlier != 0 {
            atomic::add(&raw mut (*totals).opened_before, 1);
        }
        if how & mode::MIGRATE != 0 {
            // Neither a verdict nor an end of what it held.
            atomic::add(&raw mut (*totals).migrated, 1);
            return;
        }
        if !mode::is_drain(how) {
            atomic::add(&raw mut (*totals).closed_plain, 1);
        } else if closed.verdict == Verdict::Drainable {
            atomic::add(&raw mut (*totals).drainable, 1);
        } else if closed.verdict == Verdict::Pinned {
            atomic::add(&raw mut (*totals).pinned, 1);
            atomic::add(&raw mut (*totals).pinned_objects, closed.live);
            atomic::add(&raw mut (*totals).pinned_bytes, closed.bytes);
        } else {
            atomic::add(&raw mut (*totals).unknown, 1);
        }
        atomic::add(&raw mut (*totals).closed_bytes, closed.bytes);
    }
}

/// Sets the flag that decides the close: the state before, and what is known of the granule.
/// `None`: the slot serves another generation by now, or (bulk) its count has changed.
#[inline(always)]
fn close_slot(slot: *mut Slot, seen: u64, how: u32, at: u64, bytes: u64) -> Option<(u64, Closed)> {
    let generation = state::generation(seen);
    // SAFETY: map memory. Everything is read and written before the flag is set: whoever sees the flag,
    // and finds that it was the late drain, reads the time and the bytes; and once it is empty another
    // CPU may fill the slot anew.
    unsafe {
        (*slot).closed_ns = at;
        if how & mode::HAS_BYTES != 0 || (*slot).bytes == 0 {
            (*slot).bytes = bytes;
        }
        let inherited = (*slot).pinned_objects;
        let mut known = Closed {
            verdict: Verdict::Unknown,
            generation,
            live: 0,
            live_bytes: (*slot).live_bytes,
            bytes: (*slot).bytes,
            opened_ns: (*slot).opened_ns,
            place: (*slot).place,
        };
        let migrates = how & mode::MIGRATE != 0;
        let mut bits =
            if mode::is_judged(how) { state::CLOSED } else { state::CLOSED | state::STRAGGLER };
        if migrates {
            bits |= state::STRAGGLER | state::MIGRATED;
        }
        let before = if mode::is_bulk(how) && !migrates {
            // Its members go in the same instant: a new generation may begin right after.
            let next = (seen & !(state::LIVE | state::MIGRATED)) | bits;
            if atomic::compare_swap(&raw mut (*slot).state, seen, next) != seen {
                return None;
            }
            seen
        } else {
            slots::mark(slot, generation, bits)?
        };
        if let Some(verdict) = state::decide(before) {
            known.live = state::live(before);
            known.verdict = verdict;
            (*slot).pinned_objects = known.live;
            if is_shared(how, before) && known.live > inherited {
                // More than what it took over from its last generation: at least one is its own.
                known.verdict = Verdict::Pinned;
            }
        }
        Some((before, known))
    }
}

/// Whether objects of an earlier generation, which have no ids, are counted with this one's.
#[inline(always)]
fn is_shared(how: u32, before: u64) -> bool {
    how & mode::BY_OBJECT == 0 && before & (state::TAINTED | state::BEFORE) == state::TAINTED
}

/// What follows from the close of a followed granule.
#[inline(always)]
fn settle(
    series: u32,
    totals: *mut Totals,
    slot: *mut Slot,
    how: u32,
    before: u64,
    closed: &Closed,
    at: u64,
) {
    series::closed(series);
    if how & mode::MIGRATE != 0 {
        // SAFETY: this CPU's counters.
        unsafe { atomic::add(&raw mut (*totals).migrated_objects, state::live(before)) };
    } else if mode::is_bulk(how) {
        // SAFETY: map memory, this CPU's counters.
        unsafe { count_members(totals, slot, before) };
    } else if mode::is_judged(how) && closed.verdict == Verdict::Pinned {
        if is_shared(how, before) {
            // It has drained when the count is zero. Bytes are retained only where the next open could tell.
            // SAFETY: map memory.
            unsafe { atomic::add_32(&raw mut (*slot).owed, 1) };
            retain(series, 0);
        } else {
            retain(series, closed.bytes);
        }
    }
    if closed.opened_ns != 0 {
        let age = at.saturating_sub(closed.opened_ns);
        histogram::add(series, hist::Of::Lifetime as u32, closed.place, age);
    }
}

#[inline(always)]
fn retain(series: u32, bytes: u64) {
    if let Some(state) = series::state(series) {
        // SAFETY: map memory.
        unsafe {
            atomic::add(&raw mut (*state).retained_granules, 1);
            atomic::add(&raw mut (*state).retained_bytes, bytes);
        }
    }
}

/// The close or reset of a bulk granule frees its members.
#[inline(always)]
unsafe fn count_members(totals: *mut Totals, slot: *mut Slot, before: u64) {
    // SAFETY: map memory, this CPU's counters.
    unsafe {
        let bytes = atomic::swap(&raw mut (*slot).live_bytes, 0);
        atomic::add(&raw mut (*totals).freed_in_bulk, state::live(before));
        atomic::add(&raw mut (*totals).freed_bytes, bytes);
    }
}

/// A reset that is no close: the members go and the granule lives on. 0, or [`AGAIN`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_reset(
    series: u32,
    id: u64,
    how: u32,
    bytes: u64,
    place: u64,
) -> u64 {
    let (slot, seen) = match find(series, id) {
        Found::Nothing => {
            // Now it is known to be empty, whatever it held before.
            let word = granule_begin(series, id, how | mode::UNSEEN, bytes, place);
            return word & AGAIN;
        }
        Found::Changing => return AGAIN,
        Found::Slot(_, slot, seen) if seen & state::CLOSED == 0 => (slot, seen),
        Found::Slot(..) | Found::Unfollowed(_) | Found::Left(_) | Found::Retiring => return 0,
    };
    let Some(totals) = series::totals(series) else { return 0 };
    let at = now();
    // SAFETY: map memory.
    unsafe {
        // A new generation: members that are still in `OBJECTS` are recognised as gone.
        let next = (seen & !(state::LIVE | state::BEFORE)).wrapping_add(GENERATION_STEP);
        if atomic::compare_swap(&raw mut (*slot).state, seen, next) != seen {
            return AGAIN;
        }
        let opened_ns = (*slot).opened_ns;
        (*slot).opened_ns = at;
        if how & mode::HAS_BYTES != 0 {
            (*slot).bytes = bytes;
        }
        count_members(totals, slot, seen);
        if opened_ns != 0 {
            let age = at.saturating_sub(opened_ns);
            histogram_add(series, hist::Of::Lifetime as u32, (*slot).place, age);
        }
    }
    0
}
