//! The objects that are followed by id: a table of buckets, with a hash map behind it for the few that find
//! their bucket full.
//!
//! A hash map of the kernel's would do, but each of its operations is a dozen calls in the kernel, which
//! cost more than everything else that a hit does. Here an object is entered and taken out by one
//! compare-and-swap of its entry's tag, without a call.
//!
//! Two programs enter the same id at the same time only if the target was given it twice at once; then the
//! table may hold it twice, where a map would have told.

use drainprof_common::maps::{Bucket, ObjectEntry, ObjectKey, ObjectValue, WAYS, cursor, tag};

use crate::{atomic, config, maps, series};

const BPF_NOEXIST: u64 = 1;
const WAY_MASK: u32 = WAYS as u32 - 1;

/// Why an object was not entered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Its id is there already.
    Exists,
    /// There is no more room.
    Full,
}

#[inline(always)]
fn bucket(hash: u64) -> Option<*mut Bucket> {
    maps::OBJECT_BUCKETS.get_ptr_mut(tag::bucket(hash, config::object_buckets()))
}

#[inline(always)]
fn tag_at(bucket: *mut Bucket, way: u32) -> *mut u64 {
    // SAFETY: the number is masked to the array's length.
    unsafe { (&raw mut (*bucket).tags).cast::<u64>().add((way & WAY_MASK) as usize) }
}

#[inline(always)]
fn entry_at(bucket: *mut Bucket, way: u32) -> *mut ObjectEntry {
    // SAFETY: as above.
    unsafe { (&raw mut (*bucket).entries).cast::<ObjectEntry>().add((way & WAY_MASK) as usize) }
}

/// Whether the entry is of this key, as far as can be said without owning it.
#[inline(always)]
unsafe fn is_of(entry: *const ObjectEntry, key: &ObjectKey) -> bool {
    // SAFETY: the caller passes map memory.
    unsafe {
        (*entry).key.id == key.id
            && (*entry).key.target == key.target
            && (*entry).key.scope == key.scope
    }
}

/// Whether objects are in the map behind the table.
#[inline(always)]
fn has_overflown() -> bool {
    // SAFETY: map memory, one word.
    maps::CURSORS.get_ptr(cursor::OBJECTS).is_some_and(|word| unsafe { atomic::load(word) } != 0)
}

/// Enters an object.
#[inline(always)]
pub(crate) fn enter(key: &ObjectKey, value: &ObjectValue) -> Result<(), Refused> {
    let hash = tag::hash(key);
    let Some(bucket) = bucket(hash) else { return Err(Refused::Full) };
    let full = tag::full(hash);
    let mut free = WAYS as u32;
    let mut free_tag = 0;
    for way in 0..WAYS as u32 {
        // SAFETY: map memory, one word.
        let seen = unsafe { atomic::load(tag_at(bucket, way)) };
        if tag::is_free(seen) {
            (free, free_tag) = (way, seen);
            // SAFETY: map memory.
        } else if tag::plain(seen) == full && unsafe { is_of(entry_at(bucket, way), key) } {
            return Err(Refused::Exists);
        }
    }
    if has_overflown() && maps::OBJECTS.get_ptr(key).is_some() {
        return Err(Refused::Exists);
    }
    if free < WAYS as u32 {
        let way = core::hint::black_box(free);
        let at = tag_at(bucket, way);
        let owned = tag::with(free_tag.wrapping_add(tag::VERSION), tag::OWNED);
        // SAFETY: map memory; the entry is ours alone once the swap has succeeded.
        unsafe {
            if atomic::compare_swap(at, free_tag, owned) == free_tag {
                let entry = entry_at(bucket, way);
                (*entry).key = *key;
                (*entry).value = *value;
                // x86 keeps the order of stores.
                atomic::store(at, tag::with(owned, full));
                return Ok(());
            }
        }
    }
    match object_overflow(key, value) {
        0 => Ok(()),
        1 => Err(Refused::Exists),
        _ => Err(Refused::Full),
    }
}

/// Enters an object in the map behind the table: 0, 1 where its id is there already, or 2 for no room.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn object_overflow(key: *const ObjectKey, value: *const ObjectValue) -> u32 {
    if key.is_null() || value.is_null() {
        return 2;
    }
    // Copies on this function's stack: Linux 6.1 takes no other memory for a map's key or value.
    // SAFETY: the callers pass their own.
    let (key, value) = unsafe { (*key, *value) };
    match maps::OBJECTS.insert(&key, &value, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::OBJECTS, true);
            0
        }
        Err(-17) => 1,
        Err(_) => 2,
    }
}

/// Takes an object out. Only one of several that try gets it.
#[inline(always)]
pub(crate) fn take(key: &ObjectKey) -> Option<ObjectValue> {
    let hash = tag::hash(key);
    let bucket = bucket(hash)?;
    let full = tag::full(hash);
    for way in 0..WAYS as u32 {
        let at = tag_at(bucket, way);
        let entry = entry_at(bucket, way);
        // SAFETY: map memory. The swap fails if the entry has changed since its tag was read.
        unsafe {
            let seen = atomic::load(at);
            if tag::plain(seen) == full
                && is_of(entry, key)
                && atomic::compare_swap(at, seen, tag::with(seen, tag::OWNED)) == seen
            {
                let value = (*entry).value;
                atomic::store(at, tag::with(seen, 0));
                return Some(value);
            }
        }
    }
    if has_overflown() { take_overflown(key) } else { None }
}

#[inline(always)]
fn take_overflown(key: &ObjectKey) -> Option<ObjectValue> {
    // SAFETY: copied at once; whether the copy is good is told by the removal.
    let value = unsafe { maps::OBJECTS.get(key).copied() }?;
    maps::OBJECTS.remove(key).ok()?;
    series::level(cursor::OBJECTS, false);
    Some(value)
}

/// Whether an object is there.
#[inline(always)]
pub(crate) fn has(key: &ObjectKey) -> bool {
    let hash = tag::hash(key);
    let Some(bucket) = bucket(hash) else { return false };
    let full = tag::full(hash);
    for way in 0..WAYS as u32 {
        // SAFETY: map memory.
        unsafe {
            if tag::plain(atomic::load(tag_at(bucket, way))) == full
                && is_of(entry_at(bucket, way), key)
            {
                return true;
            }
        }
    }
    has_overflown() && maps::OBJECTS.get_ptr(key).is_some()
}
