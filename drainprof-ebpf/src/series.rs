//! Series: one allocator instance of one target, and its counters.

use drainprof_common::{
    loss::Loss,
    maps::{SERIES_WORDS, SeriesKey, SeriesState, cursor},
};

use crate::{atomic, clock::now, config, global::global, losses, maps};

const BPF_NOEXIST: u64 = 1;

/// The index of a series, made if it is new. `None`: a counted loss.
#[inline(always)]
pub(crate) fn get_or_make(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    if let Some(index) = remembered(target, allocator, instance) {
        return Some(index);
    }
    series_get(target, allocator, instance)
}

/// The index of a series, if there is one.
#[inline(always)]
pub(crate) fn known(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    if let Some(index) = remembered(target, allocator, instance) {
        return Some(index);
    }
    series_find(target, allocator, instance)
}

global! {
    /// [`known`] where it is not remembered.
    fn series_find(target: u32, allocator: u32, instance: u64) -> Option<u32> = find_known;
    /// [`get_or_make`] where it is not remembered.
    fn series_get(target: u32, allocator: u32, instance: u64) -> Option<u32> = find_or_make;
    /// Makes a series, unless another CPU is first; `None` for a counted loss.
    fn series_make(target: u32, allocator: u32, instance: u64) -> Option<u32> = make;
}

#[inline(always)]
fn find_known(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    find(&SeriesKey { target, allocator, instance })
}

/// Where `SERIES_WORDS` may remember a series.
#[inline(always)]
fn place(target: u32, allocator: u32, instance: u64) -> u32 {
    let mixed = (instance >> 4) ^ (instance >> 16) ^ u64::from(target * 31 + allocator * 7);
    mixed as u32 & (SERIES_WORDS as u32 - 1)
}

/// The series that was last looked up here, if it is this one. A series' key never changes and its index is
/// not used again, so that the state itself proves it.
#[inline(always)]
fn remembered(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    let word = maps::SERIES_WORDS.get_ptr(place(target, allocator, instance))?;
    // SAFETY: map memory, one word.
    let index = (unsafe { atomic::load(word) } as u32).wrapping_sub(1);
    let state = state(index)?;
    // SAFETY: map memory; `created_ns` is written after the key.
    unsafe {
        let is_ready = atomic::load(&raw const (*state).created_ns) != 0
            && atomic::load(&raw const (*state).destroyed_ns) == 0;
        let key = &(*state).key;
        let is_it = key.instance == instance && key.target == target && key.allocator == allocator;
        if is_ready && is_it { Some(index) } else { None }
    }
}

#[inline(always)]
fn find_or_make(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    let index = find(&SeriesKey { target, allocator, instance })
        .or_else(|| series_make(target, allocator, instance))?;
    if let Some(word) = maps::SERIES_WORDS.get_ptr_mut(place(target, allocator, instance)) {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(word, u64::from(index) + 1) };
    }
    Some(index)
}

/// The index of a series that is there.
#[inline(always)]
pub(crate) fn find(key: &SeriesKey) -> Option<u32> {
    // SAFETY: the value is one word, read at once; series are removed only by `destroy` of the target.
    maps::SERIES.get_ptr(key).map(|index| unsafe { atomic::load(index) } as u32)
}

#[inline(always)]
fn make(target: u32, allocator: u32, instance: u64) -> Option<u32> {
    let key = SeriesKey { target, allocator, instance };
    let Some(index) = take_cursor(cursor::SERIES, config::max_series()) else {
        losses::count(Loss::InstanceMapFull);
        return None;
    };
    let state = state(index);
    if let Some(state) = state {
        // Before the map shows it to others: they read the key.
        // SAFETY: map memory; the index is this program's alone.
        unsafe { (*state).key = key };
    }
    if maps::SERIES.insert(&key, u64::from(index), BPF_NOEXIST).is_err() {
        // Another CPU made it first, or the map is full.
        give_back_cursor(cursor::SERIES, index);
        let found = find(&key);
        if found.is_none() {
            losses::count(Loss::InstanceMapFull);
        }
        return found;
    }
    if let Some(state) = state {
        // SAFETY: map memory; this program alone made the entry. `created_ns` is written last: the reader
        // takes the slot as ready once it is set.
        unsafe { atomic::store(&raw mut (*state).created_ns, now()) };
    }
    Some(index)
}

/// Ends the series of an instance that is torn down.
#[inline(always)]
pub(crate) fn end(key: &SeriesKey) {
    let Some(index) = find(key) else { return };
    if maps::SERIES.remove(key).is_err() {
        return;
    }
    if let Some(state) = state(index) {
        // SAFETY: map memory; the removal above made this CPU the only one to end the series.
        unsafe {
            let open = atomic::swap(&raw mut (*state).open_now, 0);
            atomic::store(&raw mut (*state).destroyed_open, open);
            atomic::store(&raw mut (*state).destroyed_ns, now());
        }
    }
}

/// The next index of a cursor, or `None` when all `limit` are taken; it never runs far beyond.
#[inline(always)]
pub(crate) fn take_cursor(which: u32, limit: u32) -> Option<u32> {
    let cursor = maps::CURSORS.get_ptr_mut(which)?;
    // SAFETY: map memory, one word.
    let seen = unsafe { atomic::load(cursor) };
    if seen >= u64::from(limit) {
        return None;
    }
    // SAFETY: as above.
    let taken = unsafe { atomic::add(cursor, 1) };
    if taken < u64::from(limit) { Some(taken as u32) } else { None }
}

/// Gives an index back that stands nowhere, if it is the last one that was taken; else it stays unused.
#[inline(always)]
pub(crate) fn give_back_cursor(which: u32, index: u32) {
    if let Some(cursor) = maps::CURSORS.get_ptr_mut(which) {
        // SAFETY: map memory, one word.
        unsafe { atomic::compare_swap(cursor, u64::from(index) + 1, u64::from(index)) };
    }
}

/// Moves a fill level.
#[inline(always)]
pub(crate) fn level(which: u32, up: bool) {
    if let Some(cursor) = maps::CURSORS.get_ptr_mut(which) {
        // SAFETY: map memory, one word.
        unsafe { if up { atomic::add(cursor, 1) } else { atomic::sub(cursor, 1) } };
    }
}

/// What is known of the series.
#[inline(always)]
pub(crate) fn state(series: u32) -> Option<*mut SeriesState> {
    maps::SERIES_STATE.get_ptr_mut(series)
}

/// One more granule is open.
#[inline(always)]
pub(crate) fn opened(series: u32) {
    if let Some(state) = state(series) {
        // SAFETY: map memory.
        unsafe {
            let open = atomic::add(&raw mut (*state).open_now, 1) + 1;
            atomic::raise(&raw mut (*state).open_peak, open);
        }
    }
}

/// One granule less is open.
#[inline(always)]
pub(crate) fn closed(series: u32) {
    if let Some(state) = state(series) {
        // SAFETY: map memory.
        unsafe { atomic::sub(&raw mut (*state).open_now, 1) };
    }
}
