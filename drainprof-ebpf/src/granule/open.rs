//! A generation begins: by an open, or by the first alloc that shows that there must have been one.

use drainprof_common::{
    claimed, counter,
    granule::{Generation, IndexWord},
    loss::Loss,
    maps::cursor,
    mode::Mode,
    state::{BEFORE, CLOSED, DETACHED, IN_FLIGHT, RETIRING, STRAGGLER, TAINTED},
    transition,
};

use super::{
    hold::drain_deferred,
    nest::granule_is_over,
    slots::{self, Entry, Found, Fresh, SlotRef, find, slot_give_back, slot_take},
    step::{EEXIST, Step},
};
use crate::{
    atomic,
    clock::now,
    global::{Scalar, global},
    losses, maps, series,
    totals::TotalsRef,
};

const BPF_NOEXIST: u64 = 1;
/// How often a compare-and-swap against other CPUs' counts is tried.
const TRIES: usize = 16;

global! {
    /// Begins a generation of the id: its index word. Without [`Mode::BY_OPEN`] a granule that is open is left alone.
    pub(super) fn granule_begin(series: u32, id: u64, mode: Mode, bytes: u64, place: u64) -> Step<IndexWord> = begin;
    /// One try of [`claim`].
    fn granule_claim(slot: Option<SlotRef>, generation: Generation, mode: Mode) -> Claim = claim_checked;
}

/// Where a generation can begin.
enum Room {
    /// In any slot; the id is not in the index.
    New,
    /// In any slot, which has to take this entry of the index.
    Entry(Entry),
    /// In the slot of the last generation, with so many objects of it.
    Same(SlotRef, IndexWord, u64),
}

#[inline(always)]
fn begin(series: u32, id: u64, mode: Mode, bytes: u64, place: u64) -> Step<IndexWord> {
    let Some(totals) = TotalsRef::of(series) else { return Step::Lost };
    let room = match room(series, totals, id, mode) {
        Ok(room) => room,
        Err(Refusal::InFlight(slot, word)) => return adopt(slot, word, bytes, place),
        Err(Refusal::Again) => return Step::Again,
        Err(Refusal::Lost) => return Step::Lost,
    };
    let first = matches!(room, Room::New);
    let claimed = matches!(room, Room::Same(..));
    let (slot, word, inherited) = match room {
        Room::Same(slot, word, inherited) => (Some(slot), word, inherited),
        Room::New => take(series, id),
        Room::Entry(entry) => {
            let taken = take(series, id);
            if taken.0.is_some() && entry.raw.slot() == taken.1.slot() {
                // The very slot that is leaving the index, retired meanwhile: others would take it for the id's.
                slot_give_back(taken.1.slot());
                return Step::Again;
            }
            taken
        }
    };
    // The last generation of an id whose close was seen has its next one in our sight.
    // The end of an implicit granule says nothing of what was in it before.
    let mode =
        if first || mode.is_implicit() { mode } else { mode.without(Mode::BEFORE | Mode::UNSEEN) };
    if let Some(slot) = slot {
        let before = mode.has(Mode::BEFORE);
        let opened_ns = if before { 0 } else { now() };
        slots::fill(slot, &Fresh { word, opened_ns, place, bytes, inherited });
        if !claimed {
            // The slot has had no flags since it was taken.
            slot.set(if before {
                transition::begun(mode) | BEFORE
            } else {
                transition::begun(mode)
            });
        }
    }
    match room {
        Room::Same(..) => {}
        Room::New => {
            if let Err(refusal) = insert(series, id, word) {
                slot_give_back(word.slot());
                return refusal;
            }
        }
        Room::Entry(entry) => {
            // The index gets another slot, from the first program that puts one there.
            if !enter(series, id, entry, word) {
                slot_give_back(word.slot());
                return Step::Again;
            }
            if !entry.word.is_closed() && entry.word.slot().is_none() {
                reopened(series, totals);
            }
        }
    }
    count(totals, mode, slot.is_none());
    series::opened(series);
    slots::remember(series, id, word);
    Step::Done(word)
}

/// Why there is no room for a generation.
enum Refusal {
    /// An alloc inside this very open has begun it.
    InFlight(SlotRef, IndexWord),
    /// Another CPU was first.
    Again,
    /// A counted loss.
    Lost,
}

/// Where the id's next generation can begin. What its last one leaves behind is accounted for.
#[inline(always)]
fn room(series: u32, totals: TotalsRef, id: u64, mode: Mode) -> Result<Room, Refusal> {
    let by_open = mode.has(Mode::BY_OPEN);
    match find_last(series, id, mode) {
        Found::Nothing => Ok(Room::New),
        Found::Unfollowed(entry) if entry.word.is_closed() || by_open => Ok(Room::Entry(entry)),
        Found::Unfollowed(_) | Found::Changing => Err(Refusal::Again),
        Found::Left(entry) => Ok(Room::Entry(entry)),
        Found::Retiring => {
            losses::count(Loss::IndexRaced);
            Err(Refusal::Lost)
        }
        Found::Slot(entry, slot, seen) => {
            if !seen.is_closed() {
                if !by_open {
                    return Err(Refusal::Again);
                }
                if seen.has(IN_FLIGHT) {
                    return Err(Refusal::InFlight(slot, entry.word));
                }
                if !end_unjudged(series, totals, entry.word, slot, mode) {
                    return Err(Refusal::Again);
                }
            }
            again(series, totals, entry, slot, mode)
        }
    }
}

/// Ends a granule that is opened again without a close: the earlier one has ended with its parent, or is gone unjudged.
/// `false`: the slot serves another generation by now.
#[inline(always)]
fn end_unjudged(
    series: u32,
    totals: TotalsRef,
    word: IndexWord,
    slot: SlotRef,
    mode: Mode,
) -> bool {
    let over = mode.has(Mode::NESTED) && granule_is_over(word.slot());
    match slot.mark(word.generation(), CLOSED | STRAGGLER) {
        Some(before) if before.is_closed() => true,
        Some(_) => {
            if over {
                ended_with_parent(series, totals);
            } else {
                reopened(series, totals);
            }
            true
        }
        None => false,
    }
}

/// The room for the next generation of an id whose last one is closed in this slot.
#[inline(always)]
fn again(
    series: u32,
    totals: TotalsRef,
    entry: Entry,
    slot: SlotRef,
    mode: Mode,
) -> Result<Room, Refusal> {
    let bytes_left = slot.live_bytes();
    let last = entry.word.generation();
    match claim(slot, last, mode) {
        Claim::Stale | Claim::Busy => Err(Refusal::Again),
        Claim::Left => Ok(Room::Entry(entry)),
        Claim::Taken { members, deferred } => {
            let word = IndexWord::new(entry.word.slot(), last.next());
            let mut inherited = 0;
            if mode.is_bulk() {
                end_members(totals, members, bytes_left);
            } else {
                inherited = members;
                if deferred {
                    defer_drain(series, slot);
                }
            }
            if inherited == 0 && bytes_left != 0 {
                // Of the last generation; others may have added theirs by now.
                slot.sub_live_bytes(bytes_left);
            }
            Ok(Room::Same(slot, word, inherited))
        }
    }
}

/// Takes a slot for the id, if there is one.
#[inline(always)]
fn take(series: u32, id: u64) -> (Option<SlotRef>, IndexWord, u64) {
    let word = slot_take();
    let slot = SlotRef::get(word.slot());
    if let Some(slot) = slot {
        slots::forget(series, id, word.slot());
        // Before the state shows that the slot is used.
        slot.set_series(series);
        slot.set_id(id);
        slot.clear_counts();
    }
    (slot, word, 0)
}

/// Enters an id in the index.
#[inline(always)]
fn insert(series: u32, id: u64, word: IndexWord) -> Result<(), Step<IndexWord>> {
    match maps::INDEX.insert(slots::key(series, id), word, BPF_NOEXIST) {
        Ok(()) => {
            series::level(cursor::INDEX, true);
            Ok(())
        }
        Err(EEXIST) => Err(Step::Again),
        Err(_) => {
            losses::count(Loss::GranuleIndexFull);
            Err(Step::Lost)
        }
    }
}

/// Puts another slot in an id's entry of the index; `false` where another CPU was first.
#[inline(always)]
fn enter(series: u32, id: u64, old: Entry, word: IndexWord) -> bool {
    let mut entry = old;
    if !old.was_looked_up() {
        let Some(found) = slots::entry(series, id) else { return false };
        if found.raw.slot() != old.word.slot() {
            return false;
        }
        entry = found;
    }
    if !entry.change(word) {
        return false;
    }
    // The entry may have been removed in this instant, and given to another id: user space removes ids without a slot,
    // and a slot that was not this id's may have been read from an entry that was another's by then. (The word
    // proves nothing: others may have replaced it since, because they know this generation from the change on.)
    if slots::entry(series, id).is_some_and(|found| found.is_at(entry)) {
        return true;
    }
    entry.put_back(word);
    false
}

/// Looks an id up that is to begin a generation: without the index where its slot just goes on.
#[inline(always)]
fn find_last(series: u32, id: u64, mode: Mode) -> Found {
    match slots::remembered(series, id) {
        Some((entry, slot, seen)) if seen.is_closed() && transition::goes_on(seen, mode) => {
            Found::Slot(entry, slot, seen)
        }
        _ => find(series, id),
    }
}

#[inline(always)]
fn count(totals: TotalsRef, mode: Mode, unfollowed: bool) {
    if mode.has(Mode::UNSEEN) {
        totals.add(counter!(opened_before), 1);
    } else {
        totals.add(counter!(opened), 1);
    }
    if unfollowed {
        losses::count(Loss::GranuleMapFull);
        totals.add(counter!(unfollowed), 1);
    }
}

/// What became of the try to take over a closed slot with a new generation.
enum Claim {
    /// It is taken, with so many objects; `deferred`: the generation that it is taken over from is pinned, and its late
    /// drain has to wait for theirs.
    Taken { members: u64, deferred: bool },
    /// Its objects still refer to it; the last of them gives it back.
    Left,
    /// Another CPU was first.
    Stale,
    /// Another CPU changed it in this instant.
    Busy,
}

impl Claim {
    const LEFT: u64 = 1 << 32;
    const STALE: u64 = 1 << 33;
    const BUSY: u64 = 1 << 34;
    const DEFERRED: u64 = 1 << 35;
}

impl Scalar for Claim {
    type Raw = u64;

    #[inline(always)]
    fn into_raw(self) -> u64 {
        match self {
            Self::Taken { members, deferred } => {
                members | if deferred { Self::DEFERRED } else { 0 }
            }
            Self::Left => Self::LEFT,
            Self::Stale => Self::STALE,
            Self::Busy => Self::BUSY,
        }
    }

    #[inline(always)]
    fn from_raw(raw: u64) -> Self {
        match raw {
            Self::LEFT => Self::Left,
            Self::STALE => Self::Stale,
            Self::BUSY => Self::Busy,
            taken => Self::Taken {
                members: taken & u64::from(u32::MAX),
                deferred: taken & Self::DEFERRED != 0,
            },
        }
    }
}

/// Takes over a closed slot if nothing refers to it, with a new generation. The members of a bulk granule are taken
/// off. Objects without ids refer to no slot: the new generation takes them over. Else leaves the slot to its objects.
#[inline(always)]
fn claim(slot: SlotRef, generation: Generation, mode: Mode) -> Claim {
    let first = try_claim(slot, generation, mode);
    if !matches!(first, Claim::Busy) {
        return first;
    }
    for _ in 0..TRIES {
        let claim = granule_claim(Some(slot), generation, mode);
        if !matches!(claim, Claim::Busy) {
            return claim;
        }
    }
    Claim::Stale
}

#[inline(always)]
fn claim_checked(slot: Option<SlotRef>, generation: Generation, mode: Mode) -> Claim {
    slot.map_or(Claim::Stale, |slot| try_claim(slot, generation, mode))
}

#[inline(always)]
fn try_claim(slot: SlotRef, generation: Generation, mode: Mode) -> Claim {
    let seen = slot.state();
    if seen.generation() != generation || seen.has(DETACHED | RETIRING) {
        return Claim::Stale;
    }
    // The generation is open from here on: no program must wait until one that is preempted now has described it.
    let mine = transition::goes_on(seen, mode);
    let next = claimed!(seen, mode, mine);
    if !slot.swap_state(seen, next) {
        return Claim::Busy;
    }
    if !mine {
        return Claim::Left;
    }
    Claim::Taken { members: seen.live(), deferred: transition::defers_drain(seen, mode) }
}

/// Members of a bulk granule that came after its close, or whose close was not seen, end with it.
#[inline(always)]
fn end_members(totals: TotalsRef, members: u64, bytes: u64) {
    if members != 0 {
        totals.add(counter!(freed_in_bulk), members);
        totals.add(counter!(freed_bytes), bytes);
    }
}

/// A pinned granule is used again with its objects in it. It has drained once they are gone, whichever granule they
/// are counted with; its bytes are in use.
#[inline(always)]
fn defer_drain(series: u32, slot: SlotRef) {
    slot.add_deferred();
    if let Some(state) = series::state(series) {
        // SAFETY: map memory. The slot's description is the last generation's until it is filled.
        unsafe { atomic::sub(&raw mut (*state).retained_bytes, slot.bytes()) };
    }
    let seen = slot.state();
    if !seen.has(TAINTED) || seen.live() == 0 {
        // The last of them went in this instant, and may have found nothing deferred.
        drain_deferred(series, slot);
    }
}

#[inline(always)]
fn reopened(series: u32, totals: TotalsRef) {
    totals.add(counter!(reopened), 1);
    series::closed(series);
}

#[inline(always)]
fn ended_with_parent(series: u32, totals: TotalsRef) {
    totals.add(counter!(ended_with_parent), 1);
    series::closed(series);
}

/// An alloc inside this very open was there first: the granule is ours, and counted.
#[inline(always)]
fn adopt(slot: SlotRef, word: IndexWord, bytes: u64, place: u64) -> Step<IndexWord> {
    if slot.clear(IN_FLIGHT).generation() != word.generation() {
        return Step::Again;
    }
    slot.set_place(place);
    slot.set_bytes(bytes);
    Step::Done(word)
}
