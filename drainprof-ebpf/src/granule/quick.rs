//! What granules mostly do, the short way: an id that is opened again once its last granule was closed and is
//! empty; and, at level `boundary`, the close of one that is open.
//!
//! Each does what `granule_begin` and `granule_close` would, or nothing: then those are asked. (That the states and
//! the counts are the same, tests of `drainprof_common::transition` show.) It is worth its lines: the cost of a hit is
//! the number of instructions that it runs, and those two know every case.

use drainprof_common::{
    counter,
    granule::{ParentWord, PinnedWord},
    hist,
    spec::{Kind, flags, value},
    transition,
};

use super::slots;
use crate::{clock::now, config, histogram, hit::Hit, series, totals::TotalsRef};

/// An open of an id whose slot just goes on; `false`: nothing was done.
#[inline(always)]
pub(super) fn reopen(hit: &Hit, series: u32, id: u64) -> bool {
    if hit.has(flags::HAS_PARENT | flags::HAS_LABEL) {
        return false;
    }
    let Some((_, slot, seen)) = slots::remembered(series, id) else { return false };
    let Some(next) = transition::reopened(seen) else { return false };
    let Some(totals) = TotalsRef::of(series) else { return false };
    let left = slot.live_bytes();
    // The generation is open from the swap on; no other program writes what describes it.
    if !slot.swap_state(seen, next) {
        return false;
    }
    slot.set_opened_ns(now());
    slot.set_closed_ns(0);
    slot.set_place(hit.caller());
    slot.set_bytes(hit.granule_bytes());
    if left != 0 {
        // Of the last generation; others may have added theirs by now.
        slot.sub_live_bytes(left);
    }
    slot.set_parent(0);
    slot.set_parent_at(ParentWord::NONE);
    slot.set_label_at(0);
    slot.set_pinned_objects(PinnedWord::new(next.generation(), 0));
    slot.cut_label();
    totals.add(counter!(opened), 1);
    series::opened(series);
    true
}

/// A close that is judged by the live count in the target's memory; `false`: nothing was done.
#[inline(always)]
pub(super) fn close(hit: &Hit, series: u32, id: u64) -> bool {
    if !hit.has(flags::BOUNDARY) || !hit.is(Kind::Drain) || config::events_wanted() != 0 {
        return false;
    }
    let Some((entry, slot, seen)) = slots::remembered(series, id) else { return false };
    if seen.is_closed() {
        return false;
    }
    let Some(totals) = TotalsRef::of(series) else { return false };
    let at = now();
    // The slot is read before the flag shows that it may be used again.
    if hit.has(flags::HAS_BYTES) || slot.bytes() == 0 {
        slot.set_bytes(hit.granule_bytes());
    }
    slot.set_closed_ns(at);
    let (bytes, opened_ns, opener) = (slot.bytes(), slot.opened_ns(), slot.place());
    match slot.mark(entry.word.generation(), transition::CLOSING_BY_COUNT) {
        Some(before) if !before.is_closed() => {}
        _ => return false,
    }
    series::closed(series);
    if opened_ns != 0 {
        histogram::add(series, hist::Of::Lifetime as u32, opener, at.saturating_sub(opened_ns));
    }
    let (verdict, live) = transition::judged_by(hit.value(value::LIVE));
    transition::count_verdict(verdict, live, bytes, |counter, value| totals.add(counter, value));
    if bytes != 0 {
        totals.add(counter!(closed_bytes), bytes);
    }
    slots::forget_if_scarce(series, id, hit.has(flags::HAS_OPEN));
    true
}
