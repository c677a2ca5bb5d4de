//! A granule gets another id, because its memory has moved: what is known of it goes to another slot.
//!
//! Its last slot leaves the index and, where granules are nested, stays behind to say where those that are nested in it
//! find it now. User space gives it back once no open granule is nested in it.

use drainprof_common::{
    counter,
    granule::{IndexWord, ParentWord},
    mode::Mode,
    spec::{flags, value},
    state::MOVED,
};

use super::{
    describe::granule_open_slot,
    events::open_in,
    open::granule_begin,
    slots::{self, Found, SlotRef, find},
    step::repeat,
};
use crate::{clock::now, global::global, hit::Hit, series, totals};

global! {
    /// `true`: it has moved; else nothing was done.
    fn granule_move(series: u32, from: u64, to: u64, mode: Mode) -> bool = move_found;
}

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
        // Where it fails, nothing is to be undone.
        let _ = granule_move(series, from, to, hit.mode());
    }
    if hit.has(flags::HAS_BYTES)
        && let Some(slot) = SlotRef::get(granule_open_slot(series, to))
    {
        slot.set_bytes(hit.value(value::BYTES));
    }
}

#[inline(always)]
fn move_found(series: u32, from: u64, to: u64, mode: Mode) -> bool {
    let Found::Slot(entry, old, seen) = find(series, from) else { return false };
    if seen.is_closed() {
        return false;
    }
    // It is one granule all the time: it counts neither as an end nor as an open.
    series::closed(series);
    let mode = mode.without(Mode::BEFORE) | Mode::BY_OPEN;
    let Some(word) = repeat(|| granule_begin(series, to, mode, 0, 0)) else {
        series::opened(series);
        return false;
    };
    totals::add(series, counter!(opened), u64::MAX);
    let Some(new) = SlotRef::get(word.slot()) else { return false };
    // The new slot is this program's to describe, as after an open.
    copy(old, new);
    old.set_parent_at(ParentWord::new(word));
    old.set_closed_ns(now());
    old.set(MOVED);
    // Where this fails the id has been opened again, with another slot.
    let _ = entry.change(IndexWord::CLOSED_ID);
    if !mode.has(Mode::NESTED) {
        slots::retire(entry.word.slot());
    }
    true
}

/// What a granule is called, where it comes from and what it is nested in.
#[inline(always)]
fn copy(old: SlotRef, new: SlotRef) {
    new.set_opened_ns(old.opened_ns());
    new.set_place(old.place());
    new.set_bytes(old.bytes());
    new.set_parent(old.parent());
    new.set_parent_at(old.parent_at());
    new.set_label_at(old.label_at());
    new.copy_label(old);
}
