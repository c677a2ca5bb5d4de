//! What granules mostly do, the short way: an id that is opened again once its last granule was closed and is
//! empty; and, at level `boundary`, the close of one that is open.
//!
//! Each does what `granule_begin` and `granule_close` would, or nothing: then those are asked. It is worth its lines:
//! the cost of a hit is the number of instructions that it runs, and those two know every case.

use core::mem::offset_of;

use drainprof_common::{
    hist,
    maps::{Slot, place_of},
    spec::{Kind, flags, value},
    state::{self, Verdict},
};

use super::slots;
use crate::{
    atomic, config, histogram,
    hit::{Hit, now},
    series,
};

/// An open of an id whose slot just goes on; `false`: nothing was done.
#[inline(always)]
pub(super) fn reopen(hit: &Hit, series: u32, id: u64) -> bool {
    if hit.has(flags::HAS_PARENT | flags::HAS_LABEL) {
        return false;
    }
    let Some((_, slot, seen)) = slots::remembered(series, id) else { return false };
    if seen & state::CLOSED == 0 || state::live(seen) != 0 {
        return false;
    }
    let Some(totals) = series::totals(series) else { return false };
    // SAFETY: map memory. The generation is open from the swap on; nobody else writes what describes it.
    unsafe {
        let left = atomic::load(&raw const (*slot).live_bytes);
        let next = (seen & !state::FLAGS).wrapping_add(slots::GENERATION_STEP) | state::USED;
        if atomic::compare_swap(&raw mut (*slot).state, seen, next) != seen {
            return false;
        }
        (*slot).opened_ns = now();
        (*slot).closed_ns = 0;
        (*slot).place = hit.caller();
        (*slot).bytes = hit.granule_bytes();
        if left != 0 {
            // Of the last generation; others may have added theirs by now.
            atomic::sub(&raw mut (*slot).live_bytes, left);
        }
        (*slot).parent = 0;
        (*slot).parent_at = 0;
        (*slot).label_at = 0;
        (*slot).pinned_objects = 0;
        // The text's end stands first.
        slot.cast::<u64>().add(offset_of!(Slot, label) / 8).write(0);
        atomic::add(&raw mut (*totals).opened, 1);
    }
    series::opened(series);
    true
}

/// A close that is judged by the live count in the target's memory; `false`: nothing was done.
#[inline(always)]
pub(super) fn close(hit: &Hit, series: u32, id: u64) -> bool {
    if !hit.has(flags::BOUNDARY) || !hit.is(Kind::Drain) || config::events_wanted() != 0 {
        return false;
    }
    let Some((place, slot, seen)) = slots::remembered(series, id) else { return false };
    if seen & state::CLOSED != 0 {
        return false;
    }
    let Some(totals) = series::totals(series) else { return false };
    let at = now();
    // SAFETY: map memory, and this CPU's counters. The slot is read before the flag shows that it may be used again.
    unsafe {
        if hit.has(flags::HAS_BYTES) || (*slot).bytes == 0 {
            (*slot).bytes = hit.granule_bytes();
        }
        (*slot).closed_ns = at;
        let (bytes, opened_ns, opener) = ((*slot).bytes, (*slot).opened_ns, (*slot).place);
        let generation = place_of::generation(place.word);
        match slots::mark(slot, generation, state::CLOSED | state::STRAGGLER) {
            Some(before) if before & state::CLOSED == 0 => {}
            _ => return false,
        }
        series::closed(series);
        if opened_ns != 0 {
            histogram::add(series, hist::Of::Lifetime as u32, opener, at.saturating_sub(opened_ns));
        }
        let live = hit.value(value::LIVE);
        match state::verdict_of(live) {
            Verdict::Drainable => atomic::add(&raw mut (*totals).drainable, 1),
            Verdict::Pinned => {
                atomic::add(&raw mut (*totals).pinned_objects, live);
                atomic::add(&raw mut (*totals).pinned_bytes, bytes);
                atomic::add(&raw mut (*totals).pinned, 1)
            }
            Verdict::Unknown => atomic::add(&raw mut (*totals).unknown, 1),
        };
        if bytes != 0 {
            atomic::add(&raw mut (*totals).closed_bytes, bytes);
        }
    }
    slots::forget_if_scarce(series, id, hit.has(flags::HAS_OPEN));
    true
}
