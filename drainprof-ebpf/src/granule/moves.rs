//! A granule gets another id, because its memory has moved: what is known of it goes to another slot.
//!
//! Its last slot leaves the index and, where granules are nested, stays behind to say where those that are nested in it
//! find it now. User space gives it back once nobody asks any more.

use core::mem::offset_of;

use drainprof_common::{
    maps::{NO_SLOT, Slot, parent_of, place_of},
    spec::{LABEL_BYTES, flags, value},
    state,
};

use super::{
    AGAIN, NOTHING,
    describe::granule_open_slot,
    mode,
    open::granule_begin,
    open_in, repeat,
    slots::{self, Found, find},
};
use crate::{
    atomic,
    hit::{Hit, now},
    series::{self, bump},
};

/// A move from one id to another, which may be the same; from none it is an open, and to none it has failed. One that is
/// not known stays unknown.
#[inline(always)]
pub(crate) fn granule_moves(hit: &Hit) {
    let (from, to) = (hit.value(value::GRANULE), hit.value(value::NEW_OBJECT));
    if to == 0 {
        return;
    }
    let instance = hit.value(value::INSTANCE);
    if from == 0 {
        if let Some(series) = series::get_or_make(hit.target, hit.allocator(), instance) {
            open_in(hit, series, to);
        }
        return;
    }
    let Some(series) = series::known(hit.target, hit.allocator(), instance) else { return };
    if from != to {
        granule_move(series, from, to, hit.mode());
    }
    if hit.has(flags::HAS_BYTES)
        && let Some(slot) = slots::slot(granule_open_slot(series, to))
    {
        // SAFETY: map memory.
        unsafe { atomic::store(&raw mut (*slot).bytes, hit.value(value::BYTES)) };
    }
}

/// 1: it has moved; 0: nothing was done.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn granule_move(series: u32, from: u64, to: u64, how: u32) -> u32 {
    let Found::Slot(place, old, seen) = find(series, from) else { return 0 };
    if seen & state::CLOSED != 0 {
        return 0;
    }
    // It is one granule all the time: it counts neither as an end nor as an open.
    series::closed(series);
    let how = (how & !mode::BEFORE) | mode::BY_OPEN;
    let Some(word) = repeat(|| match granule_begin(series, to, how, 0, 0) {
        word if word & (AGAIN | NOTHING) != 0 => word,
        word => word & !(AGAIN | NOTHING),
    }) else {
        series::opened(series);
        return 0;
    };
    bump!(series, opened, u64::MAX);
    let index = place_of::slot(word);
    let (Some(new), true) = (slots::slot(index), index != NO_SLOT) else { return 0 };
    // SAFETY: map memory. The new slot is this program's to describe, as after an open.
    unsafe {
        copy(old, new);
        let forward = place_of::slot_word(index, place_of::generation(word)) | parent_of::SET;
        atomic::store(&raw mut (*old).parent_at, forward);
        (*old).closed_ns = now();
        atomic::or(&raw mut (*old).state, state::MOVED);
    }
    // Where this fails the id has been opened again, with another slot.
    let _ = place.change(place_of::UNFOLLOWED | place_of::CLOSED);
    if how & mode::NESTED == 0 {
        slots::retire(place_of::slot(place.word));
    }
    1
}

/// What a granule is called, where it comes from and what it is nested in.
#[inline(always)]
unsafe fn copy(old: *mut Slot, new: *mut Slot) {
    const WORDS: [usize; 6] = [
        offset_of!(Slot, opened_ns) / 8,
        offset_of!(Slot, place) / 8,
        offset_of!(Slot, bytes) / 8,
        offset_of!(Slot, parent) / 8,
        offset_of!(Slot, parent_at) / 8,
        offset_of!(Slot, label_at) / 8,
    ];
    let (old, new) = (old.cast::<u64>(), new.cast::<u64>());
    // SAFETY: map memory; the offsets are those of the slot's own fields.
    unsafe {
        for word in WORDS {
            atomic::store(new.add(word), atomic::load(old.add(word)));
        }
        for word in 0..LABEL_BYTES / 8 {
            let at = offset_of!(Slot, label) / 8 + word;
            atomic::store(new.add(at), atomic::load(old.add(at)));
        }
    }
}
