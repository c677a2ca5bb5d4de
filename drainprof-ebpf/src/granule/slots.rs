//! Slots and the index: finding a granule, and starting and ending a slot's service.

use core::mem::offset_of;

use drainprof_common::{
    maps::{GRANULE_WORDS, IndexKey, NO_SLOT, Slot, cursor, index_entries, place_of},
    spec::LABEL_BYTES,
    state,
};

use crate::{atomic, config, maps, series};

/// Adds one generation to a state word.
pub(crate) const GENERATION_STEP: u64 = 1 << state::GENERATION_SHIFT;

const BPF_NOEXIST: u64 = 1;

/// How often a compare-and-swap on a state word is tried before it is taken for a loss.
const TRIES: usize = 8;

/// The slot with this index.
#[inline(always)]
pub(crate) fn slot(index: u32) -> Option<*mut Slot> {
    maps::GRANULES.get_ptr_mut(index)
}

/// The index's key of a granule.
#[inline(always)]
pub(crate) fn key(series: u32, id: u64) -> IndexKey {
    IndexKey { series, reserved: 0, id }
}

/// A granule's place in the index, and the word that stood there.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    /// The word's address; null where it was not looked up.
    pub(crate) at: *mut u64,
    /// What it was; see [`place_of`].
    pub(crate) raw: u64,
    /// The same with the slot's present generation. (The index need not have it: the slot goes on from one
    /// generation of an id to the next.)
    pub(crate) word: u64,
}

impl Place {
    /// Puts another word there if it is still the same.
    #[inline(always)]
    pub(crate) fn change(self, word: u64) -> bool {
        // SAFETY: the index entry's word.
        unsafe { atomic::compare_swap(self.at, self.raw, word) == self.raw }
    }

    /// Undoes a [`change`](Self::change).
    #[inline(always)]
    pub(crate) fn put_back(self, word: u64) {
        // SAFETY: the index entry's word. Where another has changed it since, there is nothing to undo.
        unsafe { atomic::compare_swap(self.at, word, self.raw) };
    }
}

/// Where an id was found.
pub(crate) enum Found {
    /// Nothing is known of it.
    Nothing,
    /// It is known, but has no slot.
    Unfollowed(Place),
    /// Its slot and state word.
    Slot(Place, *mut Slot, u64),
    /// It is closed, and its slot is leaving the index in this instant, or has been given back already while whoever
    /// detached it was preempted. Nobody need wait for that: who begins the next generation puts another slot there.
    Left(Place),
    /// User space is about to remove it from the index: it was closed and empty.
    Retiring,
    /// What was looked up has changed in this instant: look again.
    Changing,
}

/// Looks an id up.
#[inline(always)]
pub(crate) fn find(series: u32, id: u64) -> Found {
    let Some(at) = maps::INDEX.get_ptr_mut(key(series, id)) else { return Found::Nothing };
    // SAFETY: map memory, one word read at once.
    let word = unsafe { atomic::load(at) };
    let index = place_of::slot(word);
    if index == NO_SLOT {
        return Found::Unfollowed(Place { at, raw: word, word });
    }
    let Some(slot) = slot(index) else { return Found::Changing };
    // SAFETY: map memory. The slot says itself whose it is: a word read from an index entry that was
    // deleted and recycled at this instant is recognised.
    unsafe {
        let is_it = (*slot).id == id && (*slot).series == series;
        let seen = atomic::load(&raw const (*slot).state);
        if !is_it || seen & state::USED == 0 {
            return stale(series, id, Place { at, raw: word, word });
        }
        if seen & state::DETACHED != 0 {
            return Found::Left(Place { at, raw: word, word });
        }
        if seen & state::RETIRING != 0 {
            return Found::Retiring;
        }
        let now = place_of::slot_word(index, state::generation(seen));
        Found::Slot(Place { at, raw: word, word: now }, slot, seen)
    }
}

/// The index names a slot that is not in this id's service. If it goes on naming it, then that is where a closed
/// generation was: whoever detached the slot has not yet put another word there, and its last object has gone since.
/// To wait for that program, which may be preempted, would lose the event.
#[inline(always)]
fn stale(series: u32, id: u64, seen: Place) -> Found {
    match place(series, id) {
        Some(again) if again.at == seen.at && again.raw == seen.raw => Found::Left(seen),
        _ => Found::Changing,
    }
}

/// An id's place in the index.
#[inline(always)]
pub(crate) fn place(series: u32, id: u64) -> Option<Place> {
    let at = maps::INDEX.get_ptr_mut(key(series, id))?;
    // SAFETY: map memory, one word read at once.
    let raw = unsafe { atomic::load(at) };
    Some(Place { at, raw, word: raw })
}

/// Where `GRANULE_WORDS` may remember a granule.
#[inline(always)]
fn memory(series: u32, id: u64) -> Option<*mut u64> {
    let mixed = (id ^ (id >> 12) ^ (id >> 28)) as u32 ^ (series << 4);
    maps::GRANULE_WORDS.get_ptr_mut(mixed & (GRANULE_WORDS as u32 - 1))
}

/// Remembers where a granule was found.
#[inline(always)]
pub(crate) fn remember(series: u32, id: u64, word: u64) {
    if place_of::slot(word) != NO_SLOT
        && let Some(at) = memory(series, id)
    {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(at, word) };
    }
}

/// Forgets that the id was in this slot before, which is about to serve it again, but may yet be given back.
#[inline(always)]
pub(crate) fn disremember(series: u32, id: u64, word: u64) {
    if let Some(at) = memory(series, id) {
        // SAFETY: map memory, one word. To lose what another has just put there costs a look-up, no more.
        unsafe {
            if place_of::slot(atomic::load(at)) == place_of::slot(word) {
                atomic::store(at, place_of::UNFOLLOWED);
            }
        }
    }
}

/// A granule's place, slot and state, if it is remembered and is still what the index means by the id. The slot
/// says so itself: it is in the service of this id, and has not left the index.
#[inline(always)]
pub(crate) fn remembered(series: u32, id: u64) -> Option<(Place, *mut Slot, u64)> {
    let at = memory(series, id)?;
    // SAFETY: map memory, one word.
    let word = unsafe { atomic::load(at) };
    let slot = slot(place_of::slot(word))?;
    // SAFETY: map memory. `fill` writes the id before the state shows that the slot is used.
    unsafe {
        let seen = atomic::load(&raw const (*slot).state);
        let in_service = seen & (state::USED | state::RETIRING | state::DETACHED) == state::USED;
        let is_it = (*slot).id == id && (*slot).series == series;
        if !in_service || !is_it {
            return None;
        }
        let now = place_of::slot_word(place_of::slot(word), state::generation(seen));
        Some((Place { at: core::ptr::null_mut(), raw: now, word: now }, slot, seen))
    }
}

/// Takes a slot to which neither the index nor an object refers, with a new generation: its index word,
/// or [`place_of::UNFOLLOWED`] where all are taken (the caller counts).
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn slot_take() -> u64 {
    let fresh = series::take_cursor(cursor::SLOT, config::max_granules());
    let index = if let Some(index) = fresh {
        index
    } else {
        let Ok(Some(index)) = maps::FREE_SLOTS.pop() else { return place_of::UNFOLLOWED };
        series::level(cursor::FREE_SLOTS, false);
        index
    };
    let Some(slot) = slot(index) else { return place_of::UNFOLLOWED };
    // SAFETY: map memory. The state word is only ever added to and masked, never stored: an alloc that
    // still means the slot's last granule adds one and takes it back.
    let before = unsafe { atomic::add(&raw mut (*slot).state, GENERATION_STEP) };
    place_of::slot_word(index, next_generation(before))
}

/// The generation after the one in a state word.
#[inline(always)]
pub(crate) fn next_generation(before: u64) -> u32 {
    state::generation(before).wrapping_add(1) & state::GENERATION_MASK as u32
}

/// Gives back the slot of an index word, to which neither the index nor an object refers; none is fine.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn slot_give_back(word: u64) -> u32 {
    give_back(place_of::slot(word));
    0
}

/// [`slot_give_back`] where the stack has no room for one more call.
#[inline(always)]
fn give_back(index: u32) {
    let Some(slot) = slot(index) else { return };
    // Else it would look like a granule until it is used again.
    // SAFETY: map memory.
    unsafe { atomic::and(&raw mut (*slot).state, !state::FLAGS) };
    if maps::FREE_SLOTS.push(index, 0).is_ok() {
        series::level(cursor::FREE_SLOTS, true);
    }
}

/// Gives back a slot that has left the index, once its last object has gone. Of several that may find
/// it so, the one whose swap succeeds does it.
#[inline(always)]
pub(crate) fn retire(index: u32) {
    let Some(slot) = slot(index) else { return };
    for _ in 0..TRIES {
        // SAFETY: map memory.
        unsafe {
            let seen = atomic::load(&raw const (*slot).state);
            if seen & state::DETACHED == 0 || state::live(seen) != 0 {
                // Another has done it, or another's count is still in and its going will do it.
                return;
            }
            if atomic::compare_swap(&raw mut (*slot).state, seen, seen & !state::FLAGS) == seen {
                give_back(index);
                return;
            }
        }
    }
}

/// Takes a closed, empty granule out of its slot where slots are scarce, so that only granules that are
/// open or pinned need one: ids that never come back would else hold theirs until user space's sweep.
/// The index remembers that the id is closed; unless ids are scarce, too, and it `may_go`: its next generation begins
/// with an open, which needs no memory of the last one.
#[inline(always)]
pub(crate) fn forget_if_scarce(series: u32, id: u64, may_go: bool) {
    // Two functions, one after the other: the stack of Linux 6.1 has no room for one within the other.
    if are_scarce() && slot_forget(series, id) != 0 && may_go && ids_are_scarce() {
        id_forget(series, id);
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn slot_forget(series: u32, id: u64) -> u32 {
    let Found::Slot(place, slot, seen) = find(series, id) else { return 0 };
    if seen & state::CLOSED == 0 || state::live(seen) != 0 {
        return 0;
    }
    // First the slot, as whoever opens the id again would: of the two one gets it.
    // SAFETY: map memory.
    unsafe {
        if atomic::compare_swap(&raw mut (*slot).state, seen, seen | state::DETACHED) != seen {
            return 0;
        }
    }
    // Where this fails the id has been opened again, with another slot.
    let _ = place.change(CLOSED_ID);
    retire(place_of::slot(place.word));
    1
}

/// What the index says of an id that is closed and has no slot.
const CLOSED_ID: u64 = place_of::UNFOLLOWED | place_of::CLOSED;

/// Removes an id that was just closed from the index. User space's sweep would, too; but where more ids close in a
/// second than the index has room for, it comes too late.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn id_forget(series: u32, id: u64) -> u32 {
    let Some(Place { at, raw: CLOSED_ID, .. }) = place(series, id) else { return 0 };
    if maps::INDEX.remove(key(series, id)).is_err() {
        return 0;
    }
    // Where the id was opened again before the entry went, its slot is what counts: it goes back. (The entry may be
    // another id's by now; the slot says whose it is.)
    // SAFETY: map memory, one word.
    let word = unsafe { atomic::load(at) };
    if place_of::slot(word) != NO_SLOT
        && let Some(slot) = slot(place_of::slot(word))
        // SAFETY: map memory.
        && unsafe { (*slot).id == id && (*slot).series == series }
        && maps::INDEX.insert(key(series, id), word, BPF_NOEXIST).is_ok()
    {
        return 0;
    }
    series::level(cursor::INDEX, false);
    1
}

/// Whether more than half of the index is taken.
#[inline(always)]
fn ids_are_scarce() -> bool {
    let Some(taken) = maps::CURSORS.get_ptr(cursor::INDEX) else { return false };
    // SAFETY: map memory, one word.
    let taken = unsafe { atomic::load(taken) };
    taken > u64::from(index_entries(config::max_granules()) / 2)
}

/// Whether more than half of the slots are taken.
#[inline(always)]
fn are_scarce() -> bool {
    let (Some(taken), Some(free)) =
        (maps::CURSORS.get_ptr(cursor::SLOT), maps::CURSORS.get_ptr(cursor::FREE_SLOTS))
    else {
        return false;
    };
    // SAFETY: map memory, one word each.
    let (taken, free) = unsafe { (atomic::load(taken), atomic::load(free)) };
    taken.saturating_sub(free) > u64::from(config::max_granules() / 2)
}

/// What a fresh granule is filled with.
#[derive(Clone, Copy)]
pub(crate) struct Fresh {
    /// Its series.
    pub(crate) series: u32,
    /// Its id.
    pub(crate) id: u64,
    /// When it was opened; 0: before the attach.
    pub(crate) opened_ns: u64,
    /// Return address of the open.
    pub(crate) place: u64,
    /// Bytes that it retains.
    pub(crate) bytes: u64,
    /// Objects that it takes over from its last generation, with their bytes.
    pub(crate) inherited: u64,
}

/// Describes a granule whose generation the caller has begun. What other programs change is left alone: they
/// may be counting in it already.
#[inline(always)]
pub(crate) fn fill(slot: *mut Slot, fresh: &Fresh) {
    // SAFETY: map memory; nobody else writes these fields before the generation's close.
    unsafe {
        (*slot).series = fresh.series;
        (*slot).id = fresh.id;
        (*slot).opened_ns = fresh.opened_ns;
        (*slot).closed_ns = 0;
        (*slot).place = fresh.place;
        (*slot).bytes = fresh.bytes;
        // Volatile: else it becomes a call of a byte-wise `memset`.
        atomic::store(&raw mut (*slot).parent, 0);
        atomic::store(&raw mut (*slot).parent_at, 0);
        atomic::store(&raw mut (*slot).label_at, 0);
        atomic::store(&raw mut (*slot).pinned_objects, fresh.inherited);
        for word in 0..LABEL_BYTES / 8 {
            atomic::store(slot.cast::<u64>().add(offset_of!(Slot, label) / 8 + word), 0);
        }
    }
}

/// Sets flags of this generation's state; what was there before. `None`: the slot serves another one by
/// now, which is left as it was.
#[inline(always)]
pub(crate) fn mark(slot: *mut Slot, generation: u32, bits: u64) -> Option<u64> {
    // SAFETY: map memory.
    unsafe {
        let before = atomic::or(&raw mut (*slot).state, bits);
        if state::generation(before) == generation {
            return Some(before);
        }
        atomic::and(&raw mut (*slot).state, !(bits & !before));
    }
    None
}
