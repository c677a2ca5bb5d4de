//! Objects: allocs, frees and reallocs.

use drainprof_common::{
    loss::Loss,
    maps::{Frame, NO_SLOT, ObjectKey, ObjectValue, SeriesKey, Slot, cursor},
    spec::{Kind, flags, value},
    state,
};

use crate::{
    atomic, calls, granule,
    granule::Granule,
    hit::Hit,
    losses, maps,
    series::{self, bump},
};

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = -17;
/// Marks an object key's scope as a series instead of an allocator.
const SERIES_SCOPE: u32 = 1 << 31;

/// The key of an object id; `None` where its instance was never seen.
#[inline(always)]
fn key(hit: &Hit, id: u64) -> Option<ObjectKey> {
    let scope = if hit.has(flags::OBJECT_PER_INSTANCE) {
        let instance = hit.value(value::INSTANCE);
        let series = SeriesKey { target: hit.target, allocator: hit.allocator(), instance };
        series::find(&series)? | SERIES_SCOPE
    } else {
        hit.allocator()
    };
    Some(ObjectKey { target: hit.target, scope, id })
}

/// An alloc.
#[inline(always)]
pub(crate) fn alloc(hit: &Hit) {
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let size = if hit.has(flags::HAS_SIZE) { hit.value(value::SIZE) } else { 0 };
    if hit.has(flags::BY_OBJECT) {
        let Some(key) = key(hit, hit.value(value::OBJECT)) else { return };
        insert(hit, series, &key, hit.value(value::GRANULE), size);
    } else if hit.nested == 0 {
        // Without an id, an alloc that was counted inside this call is taken for the same one.
        let Some((_, slot)) = granule::for_alloc(hit, series, hit.value(value::GRANULE)) else {
            return;
        };
        count_alloc(series, slot, size);
    }
    if hit.has(flags::MAY_NEST) {
        calls::tell_outer_of_alloc();
    }
}

#[inline(always)]
fn count_alloc(series: u32, slot: *mut Slot, size: u64) {
    bump!(series, allocated);
    bump!(series, allocated_bytes, size);
    if !slot.is_null() {
        // SAFETY: map memory; this alloc holds a reference.
        unsafe {
            atomic::add(&raw mut (*slot).allocated, 1);
            if size != 0 {
                atomic::add(&raw mut (*slot).live_bytes, size);
            }
        }
    }
}

/// Enters an object in the map and counts it in its granule.
#[inline(always)]
fn insert(hit: &Hit, series: u32, key: &ObjectKey, granule_id: u64, size: u64) {
    if hit.nested != 0 && maps::OBJECTS.get_ptr(key).is_some() {
        // The inner call of this wrapper has counted it.
        return;
    }
    let Some((granule, slot)) = granule::for_alloc(hit, series, granule_id) else { return };
    insert_in(hit, series, key, granule, slot, size);
}

#[inline(always)]
fn insert_in(
    hit: &Hit,
    series: u32,
    key: &ObjectKey,
    granule: Granule,
    slot: *mut Slot,
    size: u64,
) {
    let entry = ObjectValue {
        slot: granule.slot,
        generation: granule.generation,
        size,
        series,
        reserved: 0,
    };
    let mut result = maps::OBJECTS.insert(key, entry, BPF_NOEXIST);
    if result == Err(EEXIST) {
        if let Some(old) = take(key) {
            if drop_reference(hit, &old) {
                bump!(old.series, replaced);
                losses::count(Loss::ObjectReplaced);
            }
        }
        result = maps::OBJECTS.insert(key, entry, BPF_NOEXIST);
    }
    if result.is_err() {
        losses::count(Loss::ObjectMapFull);
        if !slot.is_null() {
            granule::taint(slot);
            granule::release(granule.slot, slot, 0);
        }
        return;
    }
    series::level(cursor::OBJECTS, true);
    count_alloc(series, slot, size);
}

/// Takes an object out of the map. Only one of several that try gets it.
#[inline(always)]
fn take(key: &ObjectKey) -> Option<ObjectValue> {
    // SAFETY: copied at once; whether the copy is good is told by the removal.
    let value = unsafe { maps::OBJECTS.get(key).copied() }?;
    maps::OBJECTS.remove(key).ok()?;
    series::level(cursor::OBJECTS, false);
    Some(value)
}

/// Gives up an object's reference to its granule; `false` where its granule had freed it in bulk.
#[inline(always)]
fn drop_reference(hit: &Hit, object: &ObjectValue) -> bool {
    if object.slot == NO_SLOT {
        bump!(object.series, freed_bytes, object.size);
        return true;
    }
    let Some(slot) = granule::slot(object.slot) else { return false };
    if hit.is(Kind::Bulk) {
        // SAFETY: map memory.
        let seen = unsafe { atomic::load(&raw const (*slot).state) };
        if state::generation(seen) != object.generation || seen & state::CLOSED != 0 {
            return false;
        }
    }
    bump!(object.series, freed_bytes, object.size);
    granule::release(object.slot, slot, object.size);
    true
}

#[inline(always)]
fn unmatched(hit: &Hit) {
    losses::count(Loss::UnmatchedFree);
    let key = SeriesKey {
        target: hit.target,
        allocator: hit.allocator(),
        instance: hit.value(value::INSTANCE),
    };
    if let Some(series) = series::find(&key) {
        bump!(series, unmatched_frees);
    }
}

/// A free whose phase is entry, or that is not followed by id.
#[inline(always)]
pub(crate) fn free(hit: &Hit) {
    if !hit.has(flags::BY_OBJECT) {
        free_by_granule(hit);
        return;
    }
    let Some(key) = key(hit, hit.value(value::OBJECT)) else {
        unmatched(hit);
        return;
    };
    match take(&key) {
        Some(object) => commit_free(hit, &object),
        None => {
            if !calls::taken_by_outer(&key) {
                unmatched(hit);
            }
        }
    }
}

#[inline(always)]
fn commit_free(hit: &Hit, object: &ObjectValue) {
    if drop_reference(hit, object) {
        bump!(object.series, freed);
    } else {
        unmatched(hit);
    }
}

#[inline(always)]
fn free_by_granule(hit: &Hit) {
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let size = if hit.has(flags::HAS_SIZE) { hit.value(value::SIZE) } else { 0 };
    if granule::release_by_id(series, hit.value(value::GRANULE), size) {
        bump!(series, freed);
        bump!(series, freed_bytes, size);
    } else {
        unmatched(hit);
    }
}

/// At the entry of a free or realloc that is judged at its return: takes the object out, so that
/// whoever is given the same id in between finds the map clear.
#[inline(always)]
pub(crate) fn take_at_entry(hit: &Hit, frame: *mut Frame) {
    let Some(key) = key(hit, hit.value(value::OBJECT)) else { return };
    if let Some(object) = take(&key) {
        // SAFETY: map memory that only this thread touches.
        unsafe {
            (*frame).taken_key = key;
            (*frame).taken_value = object;
            (*frame).taken = 1;
        }
    }
}

/// Puts an object back that was taken out for a call which then failed.
#[inline(always)]
pub(crate) fn put_back(frame: *mut Frame) {
    // SAFETY: map memory that only this thread touches.
    let (taken, key, object) =
        unsafe { ((*frame).taken, (*frame).taken_key, (*frame).taken_value) };
    if taken == 0 {
        return;
    }
    if maps::OBJECTS.insert(key, object, BPF_NOEXIST).is_err() {
        losses::count(Loss::ObjectMapFull);
        return;
    }
    series::level(cursor::OBJECTS, true);
}

/// The return of a free that succeeded.
#[inline(always)]
pub(crate) fn free_at_return(hit: &Hit, frame: *mut Frame) {
    if !hit.has(flags::TAKE_AT_ENTRY) {
        free(hit);
        return;
    }
    // SAFETY: map memory that only this thread touches.
    let (taken, object) = unsafe { ((*frame).taken, (*frame).taken_value) };
    if taken == 1 {
        commit_free(hit, &object);
        return;
    }
    match key(hit, hit.value(value::OBJECT)) {
        Some(key) if calls::taken_by_outer(&key) => {}
        _ => unmatched(hit),
    }
}

/// The return of a realloc that its `when` accepts.
#[inline(always)]
pub(crate) fn realloc_at_return(hit: &Hit, frame: *mut Frame) {
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let old = hit.value(value::OBJECT);
    let new = hit.value(value::NEW_OBJECT);
    let size = hit.value(value::SIZE);
    // SAFETY: map memory that only this thread touches.
    let (taken, object) = unsafe { ((*frame).taken, (*frame).taken_value) };
    if new == 0 {
        // C's realloc: of size 0 it frees, else it has failed and the old object lives.
        if hit.has(flags::HAS_SIZE) && size == 0 && old != 0 {
            if taken == 1 {
                commit_free(hit, &object);
            } else {
                unmatched(hit);
            }
        } else {
            put_back(frame);
        }
        return;
    }
    bump!(series, reallocs);
    let Some(new_key) = key(hit, new) else { return };
    if taken == 1 && new == old && !moves(hit, series, &object) {
        resize(hit, &new_key, &object, size);
        return;
    }
    if old != 0 {
        if taken == 1 {
            commit_free(hit, &object);
        } else if !calls::taken_by_outer(&new_key) {
            unmatched(hit);
        }
    }
    if hit.has(flags::HAS_GRANULE) {
        insert(hit, series, &new_key, hit.value(value::GRANULE), size);
    } else if taken == 1 && object.slot != NO_SLOT {
        // The profile says no granule: the object stays in its old one.
        let Some(slot) = granule::slot(object.slot) else { return };
        // SAFETY: map memory.
        let id = unsafe { (*slot).id };
        insert(hit, series, &new_key, id, size);
    }
    calls::tell_outer_of_alloc();
}

/// Whether a realloc that kept the object's id moved it to another granule all the same.
#[inline(always)]
fn moves(hit: &Hit, series: u32, object: &ObjectValue) -> bool {
    if !hit.has(flags::HAS_GRANULE) || object.slot == NO_SLOT {
        return false;
    }
    let Some(slot) = granule::slot(object.slot) else { return false };
    // SAFETY: map memory.
    unsafe { (*slot).id != hit.value(value::GRANULE) || object.series != series }
}

/// A realloc in place: the object keeps its granule and takes its new size.
#[inline(always)]
fn resize(hit: &Hit, key: &ObjectKey, object: &ObjectValue, size: u64) {
    let size = if hit.has(flags::HAS_SIZE) { size } else { object.size };
    let entry = ObjectValue { size, ..*object };
    if maps::OBJECTS.insert(key, entry, BPF_NOEXIST).is_err() {
        losses::count(Loss::ObjectMapFull);
        return;
    }
    series::level(cursor::OBJECTS, true);
    if size > object.size {
        bump!(object.series, allocated_bytes, size - object.size);
    } else {
        bump!(object.series, freed_bytes, object.size - size);
    }
    if object.slot != NO_SLOT
        && let Some(slot) = granule::slot(object.slot)
    {
        // SAFETY: map memory; wrapping, so that a smaller size subtracts.
        unsafe { atomic::add(&raw mut (*slot).live_bytes, size.wrapping_sub(object.size)) };
    }
}
