//! What a granule is called and what it is nested in: told by its open, or by a probe of its own later.

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use drainprof_common::{
    maps::{NO_SLOT, Slot, parent_of, place_of},
    spec::{LABEL_BYTES, flags, value},
    state,
};

use super::slots::{self, Found};
use crate::{atomic, hit::Hit, series};

/// Writes what only the open's own expressions know of its granule.
#[inline(always)]
pub(super) fn opened(hit: &Hit, series: u32, word: u64) {
    let index = place_of::slot(word);
    if index == NO_SLOT {
        return;
    }
    let Some(slot) = slots::slot(index) else { return };
    // SAFETY: map memory.
    if state::generation(unsafe { (*slot).state }) != place_of::generation(word) {
        return;
    }
    if hit.has(flags::HAS_PARENT) {
        write_parent(hit, series, slot);
    }
    if hit.has(flags::HAS_LABEL) {
        write_label(hit, slot);
    }
}

/// An open granule gets another parent. One that is not known keeps nothing of it.
#[inline(always)]
pub(crate) fn reparent(hit: &Hit) {
    if let Some((series, slot)) = open_slot(hit) {
        write_parent(hit, series, slot);
    }
}

/// An open granule gets a name.
#[inline(always)]
pub(crate) fn label(hit: &Hit) {
    if let Some((_, slot)) = open_slot(hit)
        && hit.value(value::LABEL) != 0
    {
        write_label(hit, slot);
    }
}

/// The granule that the hit names, if it is open and has a slot.
#[inline(always)]
fn open_slot(hit: &Hit) -> Option<(u32, *mut Slot)> {
    let series = series::known(hit.target, hit.allocator(), hit.value(value::INSTANCE))?;
    let index = granule_open_slot(series, hit.value(value::GRANULE));
    Some((series, slots::slot(index)?))
}

/// The slot of an open granule; [`NO_SLOT`] where there is none.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn granule_open_slot(series: u32, id: u64) -> u32 {
    match slots::find(series, id) {
        Found::Slot(place, _, seen) if seen & state::CLOSED == 0 => place_of::slot(place.word),
        _ => NO_SLOT,
    }
}

/// Which generation of which slot an id means now, if it is open: a [`parent_of`] word, or 0.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn granule_parent_at(series: u32, id: u64) -> u64 {
    if id == 0 {
        return 0;
    }
    match slots::find(series, id) {
        Found::Slot(place, _, seen) if seen & state::CLOSED == 0 => {
            let index = place_of::slot(place.word);
            place_of::slot_word(index, state::generation(seen)) | parent_of::SET
        }
        _ => 0,
    }
}

#[inline(always)]
fn write_parent(hit: &Hit, series: u32, slot: *mut Slot) {
    let parent = hit.value(value::PARENT);
    // SAFETY: map memory; one word each, written by the threads that handle this granule.
    unsafe {
        atomic::store(&raw mut (*slot).parent, parent);
        if hit.has(flags::NESTED) {
            atomic::store(&raw mut (*slot).parent_at, granule_parent_at(series, parent));
        }
    }
}

#[inline(always)]
fn write_label(hit: &Hit, slot: *mut Slot) {
    // SAFETY: map memory.
    unsafe {
        // The helper writes a terminated string or, where the text cannot be read, nothing.
        let length = bpf_probe_read_user_str(
            (&raw mut (*slot).label).cast(),
            LABEL_BYTES as u32,
            hit.value(value::LABEL) as *const core::ffi::c_void,
        );
        (*slot).label_at = if length < 0 { hit.value(value::LABEL) } else { 0 };
    }
}
