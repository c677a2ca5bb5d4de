//! A generation begins: by an open, or by the first alloc that shows that there must have been one.

use drainprof_common::{
    loss::Loss,
    maps::{NO_SLOT, Slot, Totals, cursor, place_of},
    state,
};

use super::{
    AGAIN, EEXIST, NOTHING,
    hold::pay,
    mode,
    nest::granule_is_over,
    slots::{self, Found, Fresh, Place, find, slot_give_back, slot_take},
};
use crate::{atomic, hit::now, losses, maps, series};

const BPF_NOEXIST: u64 = 1;
/// How often a compare-and-swap against other CPUs' counts is tried.
const TRIES: usize = 16;

/// Begins a generation of the id; `how` holds bits of [`mode`]. The new index word, [`AGAIN`], or
/// [`NOTHING`] for a counted loss. Without [`mode::BY_OPEN`] a granule that is open is left alone.
#[allow(
    clippy::too_many_lines,
    reason = "one decision over all that an id can be; parts would be calls, or take half of it as arguments"
)]
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_begin(
    series: u32,
    id: u64,
    how: u32,
    bytes: u64,
    place: u64,
) -> u64 {
    let Some(totals) = series::totals(series) else { return NOTHING };
    let by_open = how & mode::BY_OPEN != 0;
    // Where the id stands in the index; and its last slot, if it can be used again.
    let mut old = None;
    let mut slot = core::ptr::null_mut();
    let mut word = 0;
    let mut inherited = 0;
    match find_last(series, id, how) {
        Found::Nothing => {}
        Found::Unfollowed(found) => {
            old = Some(found);
            if found.word & place_of::CLOSED == 0 {
                if !by_open {
                    return AGAIN;
                }
            }
        }
        Found::Slot(found, old_slot, seen) => {
            old = Some(found);
            let old_word = found.word;
            if seen & state::CLOSED == 0 {
                if !by_open {
                    return AGAIN;
                }
                if seen & state::IN_FLIGHT != 0 {
                    return adopt(old_slot, old_word, bytes, place);
                }
                // Reopened without a close: the earlier one has ended with its parent, or is gone unjudged.
                let bits = state::CLOSED | state::STRAGGLER;
                let over =
                    how & mode::NESTED != 0 && granule_is_over(place_of::slot(old_word)) != 0;
                match slots::mark(old_slot, place_of::generation(old_word), bits) {
                    Some(before) if before & state::CLOSED == 0 => {
                        if over {
                            ended_with_parent(series, totals);
                        } else {
                            reopened(series, totals);
                        }
                    }
                    Some(_) => {}
                    None => return AGAIN,
                }
            }
            // SAFETY: map memory.
            let bytes_left = unsafe { atomic::load(&raw const (*old_slot).live_bytes) };
            match claim(old_slot, place_of::generation(old_word), how) {
                STALE => return AGAIN,
                LEFT => {}
                members => {
                    slot = old_slot;
                    let generation = place_of::generation(old_word).wrapping_add(1);
                    word = place_of::slot_word(place_of::slot(old_word), generation);
                    if mode::is_bulk(how) {
                        end_members(totals, members, bytes_left);
                    } else {
                        inherited = state::live(members);
                        if members & OWED != 0 {
                            owe(series, slot);
                        }
                    }
                    if inherited == 0 && bytes_left != 0 {
                        // Of the last generation; others may have added theirs by now.
                        // SAFETY: map memory.
                        unsafe { atomic::sub(&raw mut (*slot).live_bytes, bytes_left) };
                    }
                }
            }
        }
        Found::Left(found) => old = Some(found),
        Found::Retiring => {
            losses::count(Loss::IndexRaced);
            return NOTHING;
        }
        Found::Changing => return AGAIN,
    }
    let claimed = !slot.is_null();
    if !claimed {
        word = slot_take();
        if place_of::slot(word) != NO_SLOT {
            slot = slots::slot(place_of::slot(word)).unwrap_or(slot);
        }
        if old.is_some_and(|place| {
            !slot.is_null() && place_of::slot(place.raw) == place_of::slot(word)
        }) {
            // The very slot that is leaving the index, retired meanwhile: others would take it for the id's.
            slot_give_back(word);
            return AGAIN;
        }
        if !slot.is_null() {
            slots::disremember(series, id, word);
            // SAFETY: map memory; this program alone holds the slot.
            unsafe {
                (*slot).owed = 0;
                atomic::store(&raw mut (*slot).live_bytes, 0);
            }
        }
    }
    let first = old.is_none();
    // An id that was closed in our sight has its next generation in our sight.
    // The end of an implicit granule is none of what was in it before.
    let how =
        if first || mode::is_implicit(how) { how } else { how & !(mode::BEFORE | mode::UNSEEN) };
    if !slot.is_null() {
        let before = how & mode::BEFORE != 0;
        let opened_ns = if before { 0 } else { now() };
        slots::fill(slot, &Fresh { series, id, opened_ns, place, bytes, inherited });
        if !claimed {
            // The slot has had no flags since it was taken.
            let flags = if before { begun(how) | state::BEFORE } else { begun(how) };
            // SAFETY: map memory.
            unsafe { atomic::or(&raw mut (*slot).state, flags) };
        }
    }
    if first {
        if let Err(error) = maps::INDEX.insert(slots::key(series, id), word, BPF_NOEXIST) {
            slot_give_back(word);
            if error == EEXIST {
                return AGAIN;
            }
            losses::count(Loss::GranuleIndexFull);
            return NOTHING;
        }
        series::level(cursor::INDEX, true);
    } else if let Some(place) = old
        && !claimed
    {
        // The index gets another slot; whoever is first to put one there.
        if !enter(series, id, place, word) {
            slot_give_back(word);
            return AGAIN;
        }
        if place.word & place_of::CLOSED == 0 && place_of::slot(place.word) == NO_SLOT {
            reopened(series, totals);
        }
    }
    count(totals, how, slot.is_null());
    series::opened(series);
    slots::remember(series, id, word);
    word
}

/// The flags of a generation that begins.
#[inline(always)]
fn begun(how: u32) -> u64 {
    state::USED
        | (u64::from((how / mode::IN_FLIGHT) & 1) * state::IN_FLIGHT)
        | (u64::from((how / mode::IMPLICIT) & 1) * state::STRAGGLER)
}

/// Puts another slot in an id's place in the index; `false` where another CPU was first.
#[inline(always)]
fn enter(series: u32, id: u64, old: Place, word: u64) -> bool {
    let mut place = old;
    if old.at.is_null() {
        let Some(found) = slots::place(series, id) else { return false };
        if place_of::slot(found.raw) != place_of::slot(old.word) {
            return false;
        }
        place = found;
    }
    if !place.change(word) {
        return false;
    }
    // The entry may have been removed in this instant, and given to another id: user space removes ids without a slot,
    // and a slot that was not this id's may have been read from an entry that was another's by then. (Not by its word,
    // which others may have replaced since: this generation is known to all from the change on.)
    if slots::place(series, id).is_some_and(|found| found.at == place.at) {
        return true;
    }
    place.put_back(word);
    false
}

/// Looks an id up that is to begin a generation: without the index where its slot just goes on.
#[inline(always)]
fn find_last(series: u32, id: u64, how: u32) -> Found {
    match slots::remembered(series, id) {
        Some((place, slot, seen)) if seen & state::CLOSED != 0 && goes_on(seen, how) => {
            Found::Slot(place, slot, seen)
        }
        _ => find(series, id),
    }
}

/// Whether a closed slot serves its id's next generation: nothing refers to it, or what does goes along.
#[inline(always)]
fn goes_on(seen: u64, how: u32) -> bool {
    // Objects that were handed over refer to it even where a close frees them otherwise.
    let freed = mode::is_bulk(how) && !state::is_migrated(seen);
    state::live(seen) == 0 || freed || how & mode::BY_OBJECT == 0
}

#[inline(always)]
fn count(totals: *mut Totals, how: u32, unfollowed: bool) {
    // SAFETY: this CPU's counters.
    unsafe {
        if how & mode::UNSEEN != 0 {
            atomic::add(&raw mut (*totals).opened_before, 1);
        } else {
            atomic::add(&raw mut (*totals).opened, 1);
        }
        if unfollowed {
            losses::count(Loss::GranuleMapFull);
            atomic::add(&raw mut (*totals).unfollowed, 1);
        }
    }
}

/// Instead of a count: a closed slot's objects still refer to it; the last of them gives it back.
const LEFT: u64 = 1 << 32;
/// Instead of a count: another CPU was first.
const STALE: u64 = 1 << 33;
/// With a count: the generation that it is taken over from is pinned and waited for.
const OWED: u64 = 1 << 35;
/// Instead of a count: another CPU changed it in this instant.
const BUSY: u64 = 1 << 34;

/// Takes over a closed slot if nothing refers to it, with a new generation: the count that it had. That
/// of a bulk granule's members is taken off. Objects without ids refer to no slot: the new generation
/// takes them over. Else leaves the slot to its objects.
#[inline(always)]
fn claim(slot: *mut Slot, generation: u32, how: u32) -> u64 {
    let members = try_claim(slot, generation, how);
    if members != BUSY {
        return members;
    }
    for _ in 0..TRIES {
        let members = granule_claim(slot, generation, how);
        if members != BUSY {
            return members;
        }
    }
    STALE
}

/// One try of [`claim`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_claim(slot: *mut Slot, generation: u32, how: u32) -> u64 {
    if slot.is_null() { STALE } else { try_claim(slot, generation, how) }
}

#[inline(always)]
fn try_claim(slot: *mut Slot, generation: u32, how: u32) -> u64 {
    // SAFETY: map memory.
    unsafe {
        let seen = atomic::load(&raw const (*slot).state);
        if state::generation(seen) != generation || seen & (state::DETACHED | state::RETIRING) != 0
        {
            return STALE;
        }
        let live = state::live(seen);
        let bulk = mode::is_bulk(how);
        let mine = goes_on(seen, how);
        let kept = if bulk { seen & !state::LIVE } else { seen };
        // The generation is open from here on: nobody must wait until a program that is preempted now has
        // described it.
        let mut flags = begun(how);
        if mode::is_implicit(how) {
            flags |= u64::from((how / mode::BEFORE) & 1) * state::BEFORE;
        }
        if state::live(kept) != 0 {
            // The frees of the two generations cannot be told apart until none of their objects is left.
            flags |= state::TAINTED;
        }
        let next = if mine {
            (kept & !state::FLAGS).wrapping_add(slots::GENERATION_STEP) | flags
        } else {
            seen | state::DETACHED
        };
        if atomic::compare_swap(&raw mut (*slot).state, seen, next) != seen {
            return BUSY;
        }
        if !mine {
            return LEFT;
        }
        // As `state::is_late_drain`, of the generation's last object.
        let waited = state::is_late_drain((seen & !state::LIVE) | 1);
        if waited && live != 0 && mode::is_judged(how) { live | OWED } else { live }
    }
}

/// Members of a bulk granule that came after its close, or whose close was not seen, end with it.
#[inline(always)]
fn end_members(totals: *mut Totals, members: u64, bytes: u64) {
    if members != 0 {
        // SAFETY: this CPU's counters.
        unsafe {
            atomic::add(&raw mut (*totals).freed_in_bulk, members);
            atomic::add(&raw mut (*totals).freed_bytes, bytes);
        }
    }
}

/// A pinned granule is used again with its objects in it. It has drained once they are gone, whoever they
/// are counted with; its bytes are in use.
#[inline(always)]
fn owe(series: u32, slot: *mut Slot) {
    // SAFETY: map memory; the slot's description is the last generation's until it is filled.
    unsafe {
        atomic::add_32(&raw mut (*slot).owed, 1);
        if let Some(state) = series::state(series) {
            atomic::sub(&raw mut (*state).retained_bytes, (*slot).bytes);
        }
        let seen = atomic::load(&raw const (*slot).state);
        if seen & state::TAINTED == 0 || state::live(seen) == 0 {
            // The last of them went in this instant, and may have found nothing owed.
            pay(series, slot);
        }
    }
}

#[inline(always)]
fn reopened(series: u32, totals: *mut Totals) {
    // SAFETY: this CPU's counters.
    unsafe { atomic::add(&raw mut (*totals).reopened, 1) };
    series::closed(series);
}

#[inline(always)]
fn ended_with_parent(series: u32, totals: *mut Totals) {
    // SAFETY: this CPU's counters.
    unsafe { atomic::add(&raw mut (*totals).ended_with_parent, 1) };
    series::closed(series);
}

/// An alloc inside this very open was there first: the granule is ours, and counted.
#[inline(always)]
fn adopt(slot: *mut Slot, word: u64, bytes: u64, place: u64) -> u64 {
    // SAFETY: map memory.
    unsafe {
        let before = atomic::and(&raw mut (*slot).state, !state::IN_FLIGHT);
        if state::generation(before) != place_of::generation(word) {
            return AGAIN;
        }
        (*slot).place = place;
        (*slot).bytes = bytes;
    }
    word
}
