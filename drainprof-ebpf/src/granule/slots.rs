//! Slots and the index: finding a granule, and starting and ending a slot's service.

use core::mem::offset_of;

use drainprof_common::{
    maps::{IndexKey, NO_SLOT, Slot, cursor, place_of},
    spec::LABEL_BYTES,
    state,
};

use crate::{atomic, config, maps, series};

/// Adds one generation to a state word.
pub(crate) const GENERATION_STEP: u64 = 1 << state::GENERATION_SHIFT;

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
    /// The word's address.
    pub(crate) at: *mut u64,
    /// What it was; see [`place_of`].
    pub(crate) word: u64,
}

impl Place {
    /// Puts another word there if it is still the same.
    #[inline(always)]
    pub(crate) fn change(self, word: u64) -> bool {
        // SAFETY: the index entry's word.
        unsafe { atomic::compare_swap(self.at, self.word, word) == self.word }
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
    /// User space is about to remove it from the index: it was closed and empty.
    Retiring,
    /// Another CPU puts a new generation there in this instant: look again.
    Changing,
}

/// Looks an id up.
#[inline(always)]
pub(crate) fn find(series: u32, id: u64) -> Found {
    let Some(at) = maps::INDEX.get_ptr_mut(key(series, id)) else { return Found::Nothing };
    // SAFETY: map memory, one word read at once.
    let word = unsafe { atomic::load(at) };
    let place = Place { at, word };
    let index = place_of::slot(word);
    if index == NO_SLOT {
        return Found::Unfollowed(place);
    }
    let Some(slot) = slot(index) else { return Found::Changing };
    // SAFETY: map memory. The slot says itself whose it is: a word read from an index entry that was
    // deleted and recycled at this instant is recognised.
    unsafe {
        if (*slot).id != id || (*slot).series != series {
            return Found::Changing;
        }
        let seen = atomic::load(&raw const (*slot).state);
        if state::generation(seen) != place_of::generation(word) {
            return Found::Changing;
        }
        if seen & state::RETIRING != 0 {
            return Found::Retiring;
        }
        Found::Slot(place, slot, seen)
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
    let index = place_of::slot(word);
    if index != NO_SLOT && maps::FREE_SLOTS.push(index, 0).is_ok() {
        series::level(cursor::FREE_SLOTS, true);
    }
    0
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
                slot_give_back(u64::from(index));
                return;
            }
        }
    }
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
    /// Flags of its state.
    pub(crate) flags: u64,
    /// Objects that it takes over from its last generation, with their bytes.
    pub(crate) inherited: u64,
}

/// Fills a slot that the caller alone holds, and opens it.
#[inline(always)]
pub(crate) fn fill(slot: *mut Slot, fresh: &Fresh) {
    // SAFETY: map memory; whoever else looks at the slot sees another generation in the index.
    unsafe {
        (*slot).series = fresh.series;
        (*slot).id = fresh.id;
        (*slot).opened_ns = fresh.opened_ns;
        (*slot).closed_ns = 0;
        (*slot).place = fresh.place;
        (*slot).bytes = fresh.bytes;
        // Volatile: else it becomes a call of a byte-wise `memset`.
        if fresh.inherited == 0 {
            atomic::store(&raw mut (*slot).live_bytes, 0);
        }
        atomic::store(&raw mut (*slot).allocated, 0);
        atomic::store(&raw mut (*slot).parent, 0);
        atomic::store(&raw mut (*slot).label_at, 0);
        atomic::store(&raw mut (*slot).pinned_objects, fresh.inherited);
        for word in 0..LABEL_BYTES / 8 {
            atomic::store(slot.cast::<u64>().add(offset_of!(Slot, label) / 8 + word), 0);
        }
        atomic::and(&raw mut (*slot).state, !state::FLAGS);
        atomic::or(&raw mut (*slot).state, state::USED | fresh.flags);
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
