//! Reallocs: an object grows, shrinks or moves, within its granule or to another one.

use drainprof_common::{
    counter,
    maps::{Frame, ObjectKey, ObjectValue},
    spec::{Kind, flags, value},
    state::DETACHED,
};

use crate::{
    calls,
    granule::{self, SlotRef},
    hit::Hit,
    object::{counted_inside, enter, free_taken, insert, key_in, object_restore, put_back, taken},
    series, totals,
};

/// The return of a realloc that its `when` accepts.
#[inline(always)]
pub(crate) fn at_return(hit: &Hit, frame: *mut Frame) {
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let old = hit.value(value::OBJECT);
    let new = hit.value(value::NEW_OBJECT);
    let size = hit.value(value::SIZE);
    if new == 0 {
        // C's realloc: of size 0 it frees, else it has failed and the old object lives.
        if hit.has(flags::HAS_SIZE) && size == 0 && old != 0 {
            free_taken(hit, taken(frame));
        } else {
            put_back(hit, frame);
        }
        return;
    }
    totals::add(series, counter!(reallocs), 1);
    let new_key = key_in(hit, series, new);
    let inside = counted_inside(hit, &new_key);
    match taken(frame) {
        Some(object) if !inside && stays(hit, series, &object, old == new) => {
            keep(hit, &new_key, &object, old == new);
        }
        mut object => {
            // What moves has not ended: its life goes on, and its birth stays.
            let born_ns = object.as_mut().map_or(0, |object| core::mem::take(&mut object.born_ns));
            if old != 0 {
                free_taken(hit, object);
            }
            if !inside && hit.has(flags::HAS_GRANULE) && !granule::misses(hit) {
                insert(hit, series, &new_key, size, born_ns);
            }
        }
    }
    calls::note_in_outer_call(hit);
}

/// Whether an object keeps its granule in a realloc: where the profile names none for reallocs, or names
/// the same one. Then it stays the pin that it was, also if the granule is closed.
#[inline(always)]
fn stays(hit: &Hit, series: u32, object: &ObjectValue, in_place: bool) -> bool {
    if hit.has(flags::IMPLICIT) && granule::is_apart(hit) != object.slot.is_none() {
        return false;
    }
    if object.slot.is_none() {
        return in_place || !hit.has(flags::HAS_GRANULE);
    }
    let Some(slot) = SlotRef::get(object.slot) else { return false };
    // The object holds it, unless its granule has freed it in bulk.
    let seen = slot.state();
    if !hit.is(Kind::Drain) && seen.generation() != object.generation {
        return false;
    }
    // An object that moved under a granule's id that was opened again is in the new generation.
    let current = in_place || !seen.has(DETACHED);
    !hit.has(flags::HAS_GRANULE)
        || (current && slot.id() == hit.value(value::GRANULE) && object.series == series)
}

/// A realloc within the granule: the object keeps its reference and takes its new id and size. In place it
/// grows or shrinks; else it counts as freed and allocated.
#[inline(always)]
fn keep(hit: &Hit, key: &ObjectKey, object: &ObjectValue, in_place: bool) {
    let size = if hit.has(flags::HAS_SIZE) { hit.value(value::SIZE) } else { object.size };
    if object.slot.is_some()
        && let Some(slot) = SlotRef::get(object.slot)
    {
        // Wrapping, so that a smaller size subtracts.
        slot.add_live_bytes(size.wrapping_sub(object.size));
    }
    let series = object.series;
    let entry = ObjectValue { size, ..*object };
    if !in_place {
        totals::add(series, counter!(freed), 1);
        totals::add(series, counter!(freed_bytes), object.size);
        enter(key, &entry, hit.mode());
        return;
    }
    if size > object.size {
        totals::add(series, counter!(allocated_bytes), size - object.size);
    } else {
        totals::add(series, counter!(freed_bytes), object.size - size);
    }
    object_restore(key, &raw const entry, hit.mode());
}
