//! A generation begins: by an open, or by the first alloc that shows that there must have been one.

use drainprof_common::{
    loss::Loss,
    maps::{NO_SLOT, Slot, Totals, cursor, place_of},
    state,
};

use super::{
    AGAIN, EEXIST, NOTHING, mode,
    slots::{self, Claim, Found, Fresh, Place, find},
};
use crate::{atomic, hit::now, losses, maps, series};

const BPF_NOEXIST: u64 = 1;

/// Begins a generation of the id; `how` holds bits of [`mode`]. The new index word, [`AGAIN`], or
/// [`NOTHING`] for a counted loss. Without [`mode::BY_OPEN`] a granule that is open is left alone.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn granule_begin(series: u32, id: u64, how: u32, bytes: u64, place: u64) -> u64 {
    let Some(totals) = series::totals(series) else { return NOTHING };
    let by_open = how & mode::BY_OPEN != 0;
    // An alloc inside an open that has not returned is the first sight of that open: counted now, so
    // that granules open and opened agree even if the open fails; its return describes the granule.
    let in_flight = how & mode::IN_FLIGHT != 0;
    let flags = if in_flight { state::IN_FLIGHT } else { 0 };
    let mut fresh = Fresh { series, id, opened_ns: now(), place, bytes, flags };
    let mut earlier = false;
    let word = match find(series, id) {
        Found::Nothing => {
            if how & mode::BY_RESET != 0 {
                earlier = true;
            } else if !by_open && !in_flight {
                if how & mode::FROM_START == 0 {
                    fresh.opened_ns = 0;
                    fresh.flags = state::BEFORE;
                }
                // With no `open` probe a granule's first use is its open, unless it may be older than
                // the attach.
                earlier = how & (mode::HAS_OPEN | mode::FROM_START) != mode::FROM_START;
            }
            enter(&fresh)
        }
        Found::Unfollowed(found) => {
            let closed = found.word & place_of::CLOSED != 0;
            if !closed && !by_open {
                return AGAIN;
            }
            let word = slots::place_new(&fresh);
            if !found.change(word) {
                slots::unplace(word);
                return AGAIN;
            }
            if !closed {
                reopened(series, totals);
            }
            word
        }
        Found::Slot(found, slot, seen) => {
            if seen & state::CLOSED == 0 {
                if !by_open {
                    return AGAIN;
                }
                if seen & state::IN_FLIGHT != 0 {
                    return adopt(slot, found.word, bytes, place);
                }
                // Reopened without a close: the earlier one is gone unjudged.
                let bits = state::CLOSED | state::STRAGGLER;
                match slots::mark(slot, place_of::generation(found.word), bits) {
                    Some(before) if before & state::CLOSED == 0 => reopened(series, totals),
                    Some(_) => {}
                    None => return AGAIN,
                }
            }
            succeed(found, slot, &fresh, how, totals)
        }
        Found::Retiring => {
            losses::count(Loss::IndexRaced);
            NOTHING
        }
        Found::Changing => AGAIN,
    };
    if word & (AGAIN | NOTHING) != 0 {
        return word;
    }
    // SAFETY: this CPU's counters.
    unsafe {
        if earlier {
            atomic::add(&raw mut (*totals).opened_before, 1);
        } else {
            atomic::add(&raw mut (*totals).opened, 1);
        }
        if place_of::slot(word) == NO_SLOT {
            losses::count(Loss::GranuleMapFull);
            atomic::add(&raw mut (*totals).unfollowed, 1);
        }
    }
    series::opened(series);
    word
}

#[inline(always)]
fn reopened(series: u32, totals: *mut Totals) {
    // SAFETY: this CPU's counters.
    unsafe { atomic::add(&raw mut (*totals).reopened, 1) };
    series::closed(series);
}

/// Enters a granule for an id that the index does not know.
#[inline(always)]
fn enter(fresh: &Fresh) -> u64 {
    let word = slots::place_new(fresh);
    match maps::INDEX.insert(slots::key(fresh.series, fresh.id), word, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::INDEX, true);
            word
        }
        Err(error) => {
            slots::unplace(word);
            if error == EEXIST {
                return AGAIN;
            }
            losses::count(Loss::GranuleIndexFull);
            NOTHING
        }
    }
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
    word & !place_of::CLOSED
}

/// Puts a new generation in the place of a closed or abandoned one.
#[inline(always)]
fn succeed(found: Place, slot: *mut Slot, fresh: &Fresh, how: u32, totals: *mut Totals) -> u64 {
    let bulk = mode::is_bulk(how);
    let word = match slots::claim(slot, place_of::generation(found.word), bulk) {
        Claim::Mine(generation, members) => {
            if members != 0 {
                // Members of a bulk granule that came after its close, or whose close was not seen.
                // SAFETY: map memory; this CPU's counters.
                unsafe {
                    let bytes = atomic::load(&raw const (*slot).live_bytes);
                    atomic::add(&raw mut (*totals).freed_in_bulk, members);
                    atomic::add(&raw mut (*totals).freed_bytes, bytes);
                }
            }
            slots::fill(slot, fresh);
            place_of::slot_word(place_of::slot(found.word), generation)
        }
        Claim::Left => slots::place_new(fresh),
        Claim::Stale => return AGAIN,
    };
    // The claim makes this CPU the only one that may put a word here.
    // SAFETY: the index entry's word.
    unsafe { atomic::store(found.at, word) };
    word
}
