//! What a granule is called and what it is nested in: known from its open, or from a probe of its own later.

use aya_ebpf::helpers::generated::bpf_probe_read_user_str;
use drainprof_common::{
    granule::{IndexWord, ParentWord, SlotNumber},
    spec::{LABEL_BYTES, flags, value},
};

use super::slots::{self, Found, SlotRef};
use crate::{global::global, hit::Hit, series};

global! {
    /// The slot of an open granule; [`SlotNumber::NONE`] where there is none.
    pub(super) fn granule_open_slot(series: u32, id: u64) -> SlotNumber = open_slot;
    /// Which generation of which slot an id means now, if it is open.
    fn granule_parent_at(series: u32, id: u64) -> ParentWord = parent_at;
}

/// Writes what only the open's own expressions know of its granule.
#[inline(always)]
pub(super) fn opened(hit: &Hit, series: u32, word: IndexWord) {
    let Some(slot) = SlotRef::get(word.slot()) else { return };
    if slot.state().generation() != word.generation() {
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
    if let Some((series, slot)) = named(hit) {
        write_parent(hit, series, slot);
    }
}

/// An open granule gets a name.
#[inline(always)]
pub(crate) fn label(hit: &Hit) {
    if let Some((_, slot)) = named(hit)
        && hit.value(value::LABEL) != 0
    {
        write_label(hit, slot);
    }
}

/// The granule that the hit names, if it is open and has a slot.
#[inline(always)]
fn named(hit: &Hit) -> Option<(u32, SlotRef)> {
    let series = series::known(hit.target, hit.allocator(), hit.value(value::INSTANCE))?;
    let number = granule_open_slot(series, hit.value(value::GRANULE));
    Some((series, SlotRef::get(number)?))
}

#[inline(always)]
fn open_slot(series: u32, id: u64) -> SlotNumber {
    match slots::find(series, id) {
        Found::Slot(entry, _, seen) if !seen.is_closed() => entry.word.slot(),
        _ => SlotNumber::NONE,
    }
}

#[inline(always)]
fn parent_at(series: u32, id: u64) -> ParentWord {
    if id == 0 {
        return ParentWord::NONE;
    }
    match slots::find(series, id) {
        Found::Slot(entry, _, seen) if !seen.is_closed() => ParentWord::new(entry.word),
        _ => ParentWord::NONE,
    }
}

#[inline(always)]
fn write_parent(hit: &Hit, series: u32, slot: SlotRef) {
    let parent = hit.value(value::PARENT);
    slot.set_parent(parent);
    if hit.has(flags::NESTED) {
        slot.set_parent_at(granule_parent_at(series, parent));
    }
}

#[inline(always)]
fn write_label(hit: &Hit, slot: SlotRef) {
    let address = hit.value(value::LABEL);
    // SAFETY: the helper writes a terminated string of at most the label's length or, where the text cannot be read,
    // nothing.
    let length = unsafe {
        bpf_probe_read_user_str(
            slot.label().cast(),
            LABEL_BYTES as u32,
            address as *const core::ffi::c_void,
        )
    };
    slot.set_label_at(if length < 0 { address } else { 0 });
}
