//! The objects that are followed by id: a table of buckets, with a hash map behind it for the few that find
//! their bucket full.
//!
//! A hash map of the kernel's would do, but each of its operations is a dozen calls in the kernel, which
//! cost more than everything else that a hit does. Here an object is entered and taken out by one
//! compare-and-swap of its entry's tag, without a call.
//!
//! Two programs enter the same id at the same time only if the target was given it twice at once; then the
//! table may hold it twice, where a map would refuse it.

use drainprof_common::{
    maps::{Bucket, ObjectEntry, ObjectKey, ObjectValue, WAYS, cursor, tag},
    table::{self, Entered, Memory},
};

use crate::{
    atomic, config,
    global::{global, scalars},
    maps, series,
};

const BPF_NOEXIST: u64 = 1;
const EEXIST: i32 = -17;
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
fn bucket(hash: u64) -> Option<At> {
    maps::OBJECT_BUCKETS.get_ptr_mut(tag::bucket(hash, config::object_buckets())).map(At)
}

/// A bucket's memory, as the table's code sees it.
struct At(*mut Bucket);

impl At {
    #[inline(always)]
    fn tag_at(&self, way: u32) -> *mut u64 {
        // SAFETY: the number is masked to the array's length.
        unsafe { (&raw mut (*self.0).tags).cast::<u64>().add((way & WAY_MASK) as usize) }
    }

    #[inline(always)]
    fn entry_at(&self, way: u32) -> *mut ObjectEntry {
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0).entries).cast::<ObjectEntry>().add((way & WAY_MASK) as usize) }
    }
}

// x86 keeps the order of loads and that of stores.
impl Memory for At {
    #[inline(always)]
    fn tag(&self, way: u32) -> u64 {
        // SAFETY: map memory, one word.
        unsafe { atomic::load(self.tag_at(way)) }
    }

    #[inline(always)]
    fn swap_tag(&self, way: u32, expected: u64, tag: u64) -> u64 {
        // SAFETY: as above.
        unsafe { atomic::compare_swap(self.tag_at(way), expected, tag) }
    }

    #[inline(always)]
    fn set_tag(&self, way: u32, tag: u64) {
        // SAFETY: as above.
        unsafe { atomic::store(self.tag_at(way), tag) };
    }

    #[inline(always)]
    fn is_of(&self, way: u32, key: &ObjectKey) -> bool {
        let entry = self.entry_at(way);
        // SAFETY: map memory.
        unsafe {
            (*entry).key.id == key.id
                && (*entry).key.target == key.target
                && (*entry).key.scope == key.scope
        }
    }

    #[inline(always)]
    fn write(&self, way: u32, key: &ObjectKey, value: &ObjectValue) {
        let entry = self.entry_at(way);
        // Part by part: the whole would first be put together on the stack, where there is no room for it.
        // SAFETY: map memory that the caller owns.
        unsafe {
            (*entry).key = *key;
            (*entry).value = *value;
        }
    }

    #[inline(always)]
    fn read(&self, way: u32) -> ObjectValue {
        // SAFETY: as above.
        unsafe { (*self.entry_at(way)).value }
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
    let elsewhere = || has_overflown() && maps::OBJECTS.get_ptr(key).is_some();
    match table::enter(&bucket, hash, key, value, elsewhere) {
        Entered::Here => return Ok(()),
        Entered::Exists => return Err(Refused::Exists),
        Entered::NoRoom => {}
    }
    object_overflow(key, value)
}

scalars! {
    Result<(), Refused> as u32: |entered| match entered {
        Ok(()) => 0,
        Err(Refused::Exists) => 1,
        Err(Refused::Full) => 2,
    }, |raw| match raw {
        0 => Ok(()),
        1 => Err(Refused::Exists),
        _ => Err(Refused::Full),
    };
}

global! {
    /// Enters an object in the map behind the table.
    fn object_overflow(key: *const ObjectKey, value: *const ObjectValue) -> Result<(), Refused> = overflow;
}

#[inline(always)]
fn overflow(key: *const ObjectKey, value: *const ObjectValue) -> Result<(), Refused> {
    if key.is_null() || value.is_null() {
        return Err(Refused::Full);
    }
    // Copies on this function's stack: Linux 6.1 takes no other memory for a map's key or value.
    // SAFETY: the callers pass their own.
    let (key, value) = unsafe { (*key, *value) };
    // Counted first: as long as an object is in the map, the level says so, whatever else comes and goes.
    series::level(cursor::OBJECTS, true);
    let Err(error) = maps::OBJECTS.insert(&key, &value, BPF_NOEXIST) else { return Ok(()) };
    series::level(cursor::OBJECTS, false);
    Err(if error == EEXIST { Refused::Exists } else { Refused::Full })
}

/// Takes an object out. Only one of several that try gets it.
#[inline(always)]
pub(crate) fn take(key: &ObjectKey) -> Option<ObjectValue> {
    let hash = tag::hash(key);
    let found = table::take(&bucket(hash)?, hash, key);
    if found.is_none() && has_overflown() { take_overflown(key) } else { found }
}

#[inline(always)]
fn take_overflown(key: &ObjectKey) -> Option<ObjectValue> {
    // SAFETY: copied at once; the removal shows whether the copy is good.
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
    table::has(&bucket, hash, key) || (has_overflown() && maps::OBJECTS.get_ptr(key).is_some())
}
