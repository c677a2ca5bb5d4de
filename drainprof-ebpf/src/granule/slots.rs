//! Slots and the index: finding a granule, and starting and ending a slot's service.

use drainprof_common::{
    granule::{IndexWord, ParentWord, PinnedWord, SlotNumber},
    loss::Loss,
    maps::{GRANULE_WORDS, IndexKey, cursor, index_entries},
    state::{DETACHED, Flags, RETIRING, State, USED},
};

pub(crate) use super::slot::SlotRef;
use crate::{atomic, config, global::global, losses, maps, series};

const BPF_NOEXIST: u64 = 1;

/// How often a compare-and-swap on a state word is tried before it is taken for a loss.
const TRIES: usize = 8;

/// The index's key of a granule.
#[inline(always)]
pub(crate) fn key(series: u32, id: u64) -> IndexKey {
    IndexKey { series, reserved: 0, id }
}

/// An entry of the index, and the word that stood there.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// The word's address; null where it was not looked up.
    at: *mut IndexWord,
    /// What it was.
    pub(crate) raw: IndexWord,
    /// The same with the slot's present generation. (The index need not have it: the slot goes on from one
    /// generation of an id to the next.)
    pub(crate) word: IndexWord,
}

impl Entry {
    /// Whether the entry was looked up in the index.
    #[inline(always)]
    pub(crate) fn was_looked_up(self) -> bool {
        !self.at.is_null()
    }

    /// Whether both stand at the same address.
    #[inline(always)]
    pub(crate) fn is_at(self, other: Self) -> bool {
        self.at == other.at
    }

    /// Puts another word there if it is still the same.
    #[inline(always)]
    pub(crate) fn change(self, word: IndexWord) -> bool {
        let raw = self.raw.raw();
        // SAFETY: the index entry's word.
        unsafe { atomic::compare_swap(self.at.cast(), raw, word.raw()) == raw }
    }

    /// Undoes a [`change`](Self::change).
    #[inline(always)]
    pub(crate) fn put_back(self, word: IndexWord) {
        // SAFETY: the index entry's word. Where another program has changed it since, there is nothing to undo.
        unsafe { atomic::compare_swap(self.at.cast(), word.raw(), self.raw.raw()) };
    }
}

/// Reads an index word at once.
#[inline(always)]
fn load(at: *const IndexWord) -> IndexWord {
    // SAFETY: the callers pass map memory.
    IndexWord::from_raw(unsafe { atomic::load(at.cast()) })
}

/// Where an id was found.
pub(crate) enum Found {
    /// Nothing is known of it.
    Nothing,
    /// It is known, but has no slot.
    Unfollowed(Entry),
    /// Its slot and state.
    Slot(Entry, SlotRef, State),
    /// It is closed, and its slot is leaving the index in this instant; or the slot has been given back already while
    /// the program that detached it was preempted. No program has to wait: the next generation gets another slot.
    Left(Entry),
    /// User space is about to remove it from the index: it was closed and empty.
    Retiring,
    /// What was looked up has changed in this instant: try again.
    Changing,
}

/// Looks an id up.
#[inline(always)]
pub(crate) fn find(series: u32, id: u64) -> Found {
    let Some(found) = entry(series, id) else { return Found::Nothing };
    let number = found.raw.slot();
    if number.is_none() {
        return Found::Unfollowed(found);
    }
    let Some(slot) = SlotRef::get(number) else { return Found::Changing };
    // The slot itself names its id: so a word that was read from an index entry in the instant in which the entry
    // was deleted and recycled is recognised. The state is read first: if its generation still stands where it is
    // changed, it is that of this id.
    let seen = slot.state();
    if !slot.is_of(series, id) || !seen.is_used() {
        return stale(series, id, found);
    }
    if seen.has(DETACHED) {
        return Found::Left(found);
    }
    if seen.has(RETIRING) {
        return Found::Retiring;
    }
    let now = IndexWord::new(number, seen.generation());
    Found::Slot(Entry { word: now, ..found }, slot, seen)
}

/// The index names a slot that is not in this id's service. If it goes on naming it, then that is where a closed
/// generation was: the program that detached the slot has not yet put another word there, and its last object has gone
/// since. To wait for that program, which may be preempted, would lose the event.
#[inline(always)]
fn stale(series: u32, id: u64, seen: Entry) -> Found {
    match entry(series, id) {
        Some(again) if again.is_at(seen) && again.raw == seen.raw => Found::Left(seen),
        _ => Found::Changing,
    }
}

/// An id's entry in the index.
#[inline(always)]
pub(crate) fn entry(series: u32, id: u64) -> Option<Entry> {
    let at = maps::INDEX.get_ptr_mut(key(series, id))?;
    let raw = load(at);
    Some(Entry { at, raw, word: raw })
}

/// Where `GRANULE_WORDS` may remember a granule.
#[inline(always)]
fn memory(series: u32, id: u64) -> Option<*mut IndexWord> {
    let mixed = (id ^ (id >> 12) ^ (id >> 28)) as u32 ^ (series << 4);
    maps::GRANULE_WORDS.get_ptr_mut(mixed & (GRANULE_WORDS as u32 - 1))
}

/// Remembers where a granule was found.
#[inline(always)]
pub(crate) fn remember(series: u32, id: u64, word: IndexWord) {
    if word.slot().is_some()
        && let Some(at) = memory(series, id)
    {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(at.cast(), word.raw()) };
    }
}

/// Forgets that the id was in this slot before, which is about to serve it again, but may yet be given back.
#[inline(always)]
pub(crate) fn forget(series: u32, id: u64, number: SlotNumber) {
    if let Some(at) = memory(series, id)
        && load(at).slot() == number
    {
        // To lose what another program has just put there costs a look-up, no more.
        // SAFETY: map memory, one word.
        unsafe { atomic::store(at.cast(), IndexWord::UNFOLLOWED.raw()) };
    }
}

/// A granule's entry, slot and state, if it is remembered and is still what the index means by the id. The slot
/// itself proves it: it is in the service of this id, and has not left the index.
#[inline(always)]
pub(crate) fn remembered(series: u32, id: u64) -> Option<(Entry, SlotRef, State)> {
    let number = load(memory(series, id)?).slot();
    let slot = SlotRef::get(number)?;
    // The id is written before the state shows that the slot is used.
    let seen = slot.state();
    let in_service = seen.only(USED | RETIRING | DETACHED) == USED;
    let is_it = slot.is_of(series, id);
    if !in_service || !is_it {
        return None;
    }
    let now = IndexWord::new(number, seen.generation());
    Some((Entry { at: core::ptr::null_mut(), raw: now, word: now }, slot, seen))
}

global! {
    /// Takes a slot to which neither the index nor an object refers, with a new generation: its index word,
    /// or [`IndexWord::UNFOLLOWED`] where all are taken (the caller counts).
    pub(crate) fn slot_take() -> IndexWord = take;
    /// Gives back the slot of an index word, to which neither the index nor an object refers; it may name none.
    pub(crate) fn slot_give_back(number: SlotNumber) -> () = give_back;
    /// Detaches the id's slot if it is closed and empty.
    fn slot_forget(series: u32, id: u64) -> bool = forget_slot;
    /// Removes an id that was just closed from the index. User space's sweep would, too; but where more ids close in a
    /// second than the index has room for, it comes too late.
    fn id_forget(series: u32, id: u64) -> () = forget_id;
}

#[inline(always)]
fn take() -> IndexWord {
    let fresh = series::take_cursor(cursor::SLOT, config::max_granules());
    let number = if let Some(number) = fresh {
        number
    } else {
        let Ok(Some(number)) = maps::FREE_SLOTS.pop() else { return IndexWord::UNFOLLOWED };
        series::level(cursor::FREE_SLOTS, false);
        number
    };
    let number = SlotNumber::new(number);
    let Some(slot) = SlotRef::get(number) else { return IndexWord::UNFOLLOWED };
    // The state is only ever added to and masked, never stored: an alloc that still means the slot's last granule
    // adds one and takes it back.
    IndexWord::new(number, slot.step().generation().next())
}

#[inline(always)]
fn give_back(number: SlotNumber) {
    let Some(slot) = SlotRef::get(number) else { return };
    // Else it would pass for a granule until it is used again.
    slot.clear(Flags::ALL);
    // Where the kernel refuses it, because the queue's lock cannot be had, the slot stays unused.
    if maps::FREE_SLOTS.push(number.number(), 0).is_ok() {
        series::level(cursor::FREE_SLOTS, true);
    }
}

/// Gives back a slot that has left the index, once its last object has gone. Of several programs that may find
/// it so, the one whose swap succeeds does it.
#[inline(always)]
pub(crate) fn retire(number: SlotNumber) {
    let Some(slot) = SlotRef::get(number) else { return };
    for _ in 0..TRIES {
        let seen = slot.state();
        if !seen.has(DETACHED) || seen.live() != 0 {
            // Another program has done it, or another's count is still in and its going will do it.
            return;
        }
        if slot.swap_state(seen, seen.without(Flags::ALL)) {
            // Without one more call: the stack has no room for it.
            give_back(number);
            return;
        }
    }
    // Others came and went each time: the last of them does it. Should it have gone just before the last try, the
    // slot stays unused, which costs room and no count.
}

/// Takes a closed, empty granule out of its slot where slots are scarce, so that only granules that are
/// open or pinned need one: ids that never come back would else hold theirs until user space's sweep.
/// The index remembers that the id is closed; unless ids are scarce, too, and it `may_go`: its next generation begins
/// with an open, which needs no memory of the last one.
#[inline(always)]
pub(crate) fn forget_if_scarce(series: u32, id: u64, may_go: bool) {
    // Two functions, one after the other: the stack of Linux 6.1 has no room for one within the other.
    if are_scarce() && slot_forget(series, id) && may_go && ids_are_scarce() {
        id_forget(series, id);
    }
}

#[inline(always)]
fn forget_slot(series: u32, id: u64) -> bool {
    let Found::Slot(entry, slot, seen) = find(series, id) else { return false };
    if !seen.is_closed() || seen.live() != 0 {
        return false;
    }
    // First the slot, as a program that opens the id again would: of the two one gets it.
    if !slot.swap_state(seen, seen.with(DETACHED)) {
        return false;
    }
    // Where this fails the id has been opened again, with another slot.
    let _ = entry.change(IndexWord::CLOSED_ID);
    retire(entry.word.slot());
    true
}

#[inline(always)]
fn forget_id(series: u32, id: u64) {
    let Some(Entry { at, raw: IndexWord::CLOSED_ID, .. }) = entry(series, id) else { return };
    if maps::INDEX.remove(key(series, id)).is_err() {
        return;
    }
    // Where the id was opened again before the entry went, its slot is what counts: it goes back. (The entry may be
    // another id's by now; the slot names its id. A compare-and-swap of the word could not prevent that: the removal
    // does not depend on the word, and the entry may be recycled before the swap.)
    let word = load(at);
    if let Some(slot) = SlotRef::get(word.slot())
        && slot.is_of(series, id)
    {
        if maps::INDEX.insert(key(series, id), word, BPF_NOEXIST).is_ok() {
            return;
        }
        // Another CPU has begun the id again in between: this generation is out of the index.
        losses::count_here(Loss::IndexRaced, 1);
    }
    series::level(cursor::INDEX, false);
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
    /// Which generation it is.
    pub(crate) word: IndexWord,
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
/// may be counting in it already. No other program writes these words before the generation's close. Not its series and id,
/// which say what the slot serves: a program that is preempted here may be late by generations.
#[inline(always)]
pub(crate) fn fill(slot: SlotRef, fresh: &Fresh) {
    slot.set_opened_ns(fresh.opened_ns);
    slot.set_closed_ns(0);
    slot.set_place(fresh.place);
    slot.set_bytes(fresh.bytes);
    slot.set_parent(0);
    slot.set_parent_at(ParentWord::NONE);
    slot.set_label_at(0);
    slot.set_pinned_objects(PinnedWord::new(fresh.word.generation(), fresh.inherited));
    slot.clear_label();
}
