//! Objects: allocs, frees and reallocs.

use drainprof_common::{
    counter,
    granule::{IndexWord, SlotNumber},
    loss::Loss,
    maps::{Frame, ObjectKey, ObjectValue},
    mode::Mode,
    spec::{Kind, flags, value},
    state::TAINTED,
};

use crate::{
    calls,
    clock::now,
    config,
    global::global,
    granule::{self, SlotRef},
    hit::Hit,
    losses,
    objects::{self, Refused},
    series,
    sites::{self, PinnedBy},
    totals::{self, TotalsRef},
};

/// Marks an object key's scope as a series instead of an allocator.
const SERIES_SCOPE: u32 = 1 << 31;

/// The key of an object id; `None` where its instance was never seen.
#[inline(always)]
pub(crate) fn key(hit: &Hit, id: u64) -> Option<ObjectKey> {
    let series = if hit.has(flags::OBJECT_PER_INSTANCE) {
        series::known(hit.target, hit.allocator(), hit.value(value::INSTANCE))?
    } else {
        0
    };
    Some(key_in(hit, series, id))
}

/// The key of an object id in a series that is known.
#[inline(always)]
pub(crate) fn key_in(hit: &Hit, series: u32, id: u64) -> ObjectKey {
    let per_instance = hit.has(flags::OBJECT_PER_INSTANCE);
    let scope = if per_instance { series | SERIES_SCOPE } else { hit.allocator() };
    ObjectKey { target: hit.target, scope, id }
}

/// An alloc.
#[inline(always)]
pub(crate) fn alloc(hit: &Hit) {
    if granule::misses(hit) {
        note_alloc(hit);
        return;
    }
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let size = if hit.has(flags::HAS_SIZE) { hit.value(value::SIZE) } else { 0 };
    if hit.has(flags::BY_OBJECT) {
        let key = key_in(hit, series, hit.value(value::OBJECT));
        if !counted_inside(hit, &key) {
            insert(hit, series, &key, size, 0);
        }
    } else if hit.nested == 0 {
        // Without an id, an alloc that was counted inside this call is taken for the same one.
        let Some(word) = granule::hold(hit, series, hit.value(value::GRANULE)) else { return };
        count_in_slot(word.slot(), size);
        count_alloc(series, size);
        count_for_site(hit, series, word, size);
    }
    note_alloc(hit);
}

/// Notes in the call around this one that the object is counted, or not in the sample.
#[inline(always)]
fn note_alloc(hit: &Hit) {
    if hit.has(flags::MAY_NEST) {
        calls::note_in_outer_call(hit);
    }
}

/// Whether the inner call of this wrapper has counted the object.
#[inline(always)]
pub(crate) fn counted_inside(hit: &Hit, key: &ObjectKey) -> bool {
    hit.nested != 0 && objects::has(key)
}

/// Counts a new object in its granule. The caller holds a reference that no free knows of yet: later the
/// slot could serve another granule.
#[inline(always)]
fn count_in_slot(number: SlotNumber, size: u64) {
    if size != 0
        && number.is_some()
        && let Some(slot) = SlotRef::get(number)
    {
        slot.add_live_bytes(size);
    }
}

#[inline(always)]
fn count_alloc(series: u32, size: u64) {
    if let Some(totals) = TotalsRef::of(series) {
        totals.add(counter!(allocated), 1);
        if size != 0 {
            totals.add(counter!(allocated_bytes), size);
        }
    }
}

/// Counts an object in its granule and enters it in the map. `born_ns` is the beginning of its chain of reallocs; 0: now.
#[inline(always)]
pub(crate) fn insert(hit: &Hit, series: u32, key: &ObjectKey, size: u64, born_ns: u64) {
    let word = if granule::is_apart(hit) {
        IndexWord::UNFOLLOWED
    } else {
        let Some(word) = granule::hold(hit, series, hit.value(value::GRANULE)) else { return };
        word
    };
    let counted = count_for_site(hit, series, word, size);
    let object = ObjectValue {
        slot: word.slot(),
        generation: word.generation(),
        size,
        series,
        site: counted,
        born_ns: if counted != 0 && born_ns == 0 { now() } else { born_ns },
    };
    count_in_slot(object.slot, size);
    enter(key, &object, hit.mode());
}

/// Counts a new object for its site, where call paths are wanted: see [`sites::site_alloc`].
#[inline(always)]
fn count_for_site(hit: &Hit, series: u32, word: IndexWord, size: u64) -> u32 {
    let path = hit.path();
    if path == 0 {
        return 0;
    }
    // The caller holds a reference.
    let place = SlotRef::get(word.slot()).map_or(0, SlotRef::place);
    sites::site_alloc(series, path, place, size, hit.pid_tgid as u32)
}

global! {
    /// Enters an object where there was no room, or where another one with its id was; or gives it up.
    fn object_enter_again(key: *const ObjectKey, object: *const ObjectValue) -> () = enter_again;
    /// An object's id was given out again without a free.
    fn object_evict(key: *const ObjectKey, mode: Mode) -> () = evict;
    /// Puts an object back that was taken out; its size may be another one by now.
    pub(crate) fn object_restore(key: *const ObjectKey, object: *const ObjectValue, mode: Mode) -> () = restore;
    /// An object finds no room in the map: its granule's close cannot be decided any more.
    fn object_lose(object: *const ObjectValue) -> () = lose;
    /// Gives up an object's reference to its granule; `false` where its granule had freed it in bulk.
    fn object_drop(object: *const ObjectValue, mode: Mode) -> bool = drop_checked;
}

/// Enters a new object, which holds its granule; an older one with the same id goes.
#[inline(always)]
pub(crate) fn enter(key: &ObjectKey, object: &ObjectValue, mode: Mode) {
    let result = objects::enter(key, object);
    if result.is_ok() {
        count_alloc(object.series, object.size);
        return;
    }
    if result == Err(Refused::Exists) {
        object_evict(key, mode);
    }
    object_enter_again(key, object);
}

#[inline(always)]
fn enter_again(key: *const ObjectKey, object: *const ObjectValue) {
    if key.is_null() || object.is_null() {
        return;
    }
    // A copy on this function's stack: Linux 6.1 takes no other memory for a map's key.
    // SAFETY: the callers pass their own.
    let (key, object) = unsafe { (*key, &*object) };
    if objects::enter(&key, object).is_ok() {
        count_alloc(object.series, object.size);
    } else {
        object_lose(object);
    }
}

#[inline(always)]
fn evict(key: *const ObjectKey, mode: Mode) {
    if key.is_null() {
        return;
    }
    // SAFETY: the callers pass their own; the key is copied as in `enter_again`.
    let key = unsafe { *key };
    if let Some(old) = objects::take(&key) {
        replaced(&old, mode);
    }
}

#[inline(always)]
fn restore(key: *const ObjectKey, object: *const ObjectValue, mode: Mode) {
    if key.is_null() || object.is_null() {
        return;
    }
    // SAFETY: the callers pass their own; the key is copied as in `enter_again`.
    let (key, object) = unsafe { (*key, &*object) };
    match objects::enter(&key, object) {
        Ok(()) => {}
        // Its id was given out again while it was out.
        Err(Refused::Exists) => replaced(object, mode),
        Err(Refused::Full) => object_lose(object),
    }
}

#[inline(always)]
fn replaced(old: &ObjectValue, mode: Mode) {
    if drop_it(old, mode) {
        if granule::is_over(old.slot, old.generation) {
            // It went with a granule whose end has no event.
            totals::add(old.series, counter!(freed_in_bulk), 1);
            return;
        }
        totals::add(old.series, counter!(replaced), 1);
        losses::count(Loss::ObjectReplaced);
    }
}

#[inline(always)]
fn lose(object: *const ObjectValue) {
    losses::count(Loss::ObjectMapFull);
    if object.is_null() {
        return;
    }
    // SAFETY: the callers pass their own.
    let ObjectValue { slot: number, size, .. } = unsafe { *object };
    if number.is_some()
        && let Some(slot) = SlotRef::get(number)
    {
        // The reference is still held.
        slot.set(TAINTED);
        granule::release(number, slot, size, true);
    }
}

#[inline(always)]
fn drop_checked(object: *const ObjectValue, mode: Mode) -> bool {
    // SAFETY: the callers pass their own.
    !object.is_null() && drop_it(unsafe { &*object }, mode)
}

#[inline(always)]
fn drop_it(object: &ObjectValue, mode: Mode) -> bool {
    let ObjectValue { slot: number, generation, size, series, .. } = *object;
    if number.is_some() {
        let Some(slot) = SlotRef::get(number) else { return false };
        if mode.is_implicit() {
            granule::granule_leave(number, size);
        } else if mode.is_drain() {
            let left = granule::release(number, slot, size, true);
            if object.site != 0 && left.before.has_pins() {
                // When it was freed is not known. The stack has no room to find out more, or to ask beforehand.
                let granule = IndexWord::new(number, generation);
                sites::site_pin_freed(PinnedBy::undecided(object.site), granule, 0, 0, size);
            }
        } else if !granule::take_off(number, slot, generation, size, mode) {
            return false;
        }
    }
    if size != 0 {
        totals::add(series, counter!(freed_bytes), size);
    }
    true
}

/// Gives up an object's reference to its granule, and counts it for its site if it was a pin.
#[inline(always)]
fn release_pin(object: &ObjectValue, slot: SlotRef) {
    let granule = IndexWord::new(object.slot, object.generation);
    let pinned =
        if object.site == 0 { PinnedBy::NONE } else { sites::site_pin_note(object.site, granule) };
    let left = granule::release(object.slot, slot, object.size, true);
    if pinned.is_some() && left.before.has_pins() {
        sites::site_pin_freed(pinned, granule, left.closed_ns, left.opened_ns, object.size);
    }
}

#[inline(always)]
fn unmatched(hit: &Hit) {
    losses::count(Loss::UnmatchedFree);
    let instance = hit.value(value::INSTANCE);
    // A census shows how many frees were of older objects, the very first ones included.
    let known = if hit.has(flags::IMPLICIT) {
        series::get_or_make(hit.target, hit.allocator(), instance)
    } else {
        series::known(hit.target, hit.allocator(), instance)
    };
    if let Some(series) = known {
        totals::add(series, counter!(unmatched_frees), 1);
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
    match objects::take(&key) {
        Some(object) => commit_free(hit, &object),
        None => not_found(hit, &key),
    }
}

/// A free of an object that is not in the map: the inner call of a wrapper, or unmatched.
#[inline(always)]
fn not_found(hit: &Hit, key: &ObjectKey) {
    if config::sample() > 1 && hit.has(flags::IMPLICIT) {
        // Most objects are in pages that are not in the sample.
        return;
    }
    if !calls::taken_by_outer(hit, key) {
        unmatched(hit);
    }
}

#[inline(always)]
fn commit_free(hit: &Hit, object: &ObjectValue) {
    if hit.is(Kind::Drain) {
        if object.slot.is_some() {
            let Some(slot) = SlotRef::get(object.slot) else { return };
            release_pin(object, slot);
        }
        count_free(object.series, object.size);
    } else if object_drop(object, hit.mode()) {
        totals::add(object.series, counter!(freed), 1);
        if object.born_ns != 0 {
            sites::site_object_freed(object.site, object.born_ns);
        }
    } else {
        // By the profile, the close of its granule has freed it.
        if hit.is(Kind::Bulk) {
            totals::add(object.series, counter!(freed_after_close), 1);
        }
        unmatched(hit);
    }
}

#[inline(always)]
fn count_free(series: u32, size: u64) {
    if let Some(totals) = TotalsRef::of(series) {
        totals.add(counter!(freed), 1);
        if size != 0 {
            totals.add(counter!(freed_bytes), size);
        }
    }
}

#[inline(always)]
fn free_by_granule(hit: &Hit) {
    let Some(series) = series::get_or_make(hit.target, hit.allocator(), hit.value(value::INSTANCE))
    else {
        return;
    };
    let size = if hit.has(flags::HAS_SIZE) { hit.value(value::SIZE) } else { 0 };
    match granule::take_off_id(hit, series, hit.value(value::GRANULE), size) {
        Some(true) => count_free(series, size),
        Some(false) => unmatched(hit),
        None => {}
    }
}

/// At the entry of a free or realloc that is judged at its return: takes the object out, so that
/// a thread that is given the same id in between finds the map clear.
#[inline(always)]
pub(crate) fn take_at_entry(hit: &Hit, frame: *mut Frame) {
    let Some(key) = key(hit, hit.value(value::OBJECT)) else { return };
    if let Some(object) = objects::take(&key) {
        // SAFETY: map memory that only this thread touches.
        unsafe {
            (*frame).taken_key = key;
            (*frame).taken_value = object;
            (*frame).taken = 1;
        }
    }
}

/// The object that the call's entry took out, if it did.
#[inline(always)]
pub(crate) fn taken(frame: *mut Frame) -> Option<ObjectValue> {
    // SAFETY: map memory that only this thread touches.
    unsafe { if (*frame).taken == 1 { Some((*frame).taken_value) } else { None } }
}

/// Puts an object back that was taken out for a call which then failed.
#[inline(always)]
pub(crate) fn put_back(hit: &Hit, frame: *mut Frame) {
    if let Some(object) = taken(frame) {
        // SAFETY: as above.
        let key = unsafe { (*frame).taken_key };
        object_restore(&raw const key, &raw const object, hit.mode());
    }
}

/// The return of a free that succeeded.
#[inline(always)]
pub(crate) fn free_at_return(hit: &Hit, frame: *mut Frame) {
    if !hit.has(flags::TAKE_AT_ENTRY) {
        free(hit);
        return;
    }
    free_taken(hit, taken(frame));
}

/// Frees what the call's entry took out.
#[inline(always)]
pub(crate) fn free_taken(hit: &Hit, object: Option<ObjectValue>) {
    if let Some(object) = object {
        commit_free(hit, &object);
        return;
    }
    match key(hit, hit.value(value::OBJECT)) {
        Some(key) => not_found(hit, &key),
        None => unmatched(hit),
    }
}
