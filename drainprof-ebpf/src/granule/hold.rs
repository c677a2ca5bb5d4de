//! Objects hold their granules: counted in by allocs, out by frees; the last one out of a closed granule
//! is its late drain.

use drainprof_common::{
    counter,
    event::EventKind,
    granule::{Generation, IndexWord, SlotNumber},
    hist,
    loss::Loss,
    mode::Mode,
    state::{CLOSED, DETACHED, RETIRING, STRAGGLER, State, TAINTED, USED},
};

use super::{
    implicit::join,
    slots::{self, Found, SlotRef, find},
    step::Step,
};
use crate::{
    atomic, calls,
    clock::now,
    config, emit,
    global::{Scalar, global, scalars},
    histogram, losses, series, totals,
};

/// How often a compare-and-swap against other CPUs' counts is tried.
const TRIES: usize = 32;

global! {
    /// Counts an object in its granule.
    pub(super) fn granule_hold(series: u32, id: u64, mode: Mode, rsp: u64) -> Held = hold_found;
    /// Takes one object off a granule's live count. The caller holds a reference, which this gives up. Without
    /// `judge` its going is no late drain.
    fn granule_release(number: SlotNumber, slot: Option<SlotRef>, size: u64, judge: bool) -> () = release_checked;
    /// The last object of a closed or abandoned granule has gone; `before` is the state that it left.
    fn granule_drained(series: u32, number: SlotNumber, before: State, closed_ns: u64, bytes: u64) -> () = drained;
    /// One try of [`take_off`].
    fn granule_take_off(
        number: SlotNumber, slot: Option<SlotRef>, generation: Generation, size: u64, mode: Mode
    ) -> Taken = try_take_off;
    /// Takes one object off the live count of a granule that is known by id only: how many it took, 0 where it has none.
    /// (A number: to decode a boolean in each of the caller's tries costs instructions.)
    pub(super) fn granule_take_off_id(series: u32, id: u64, size: u64, mode: Mode) -> Step<u64> = take_off_found;
}

/// What became of the try to count an object in its granule.
pub(super) enum Held {
    /// It is counted.
    Counted(IndexWord),
    /// Another CPU was first: try again.
    Again,
    /// The granule's open was not seen: the caller has to begin it, with these bits. (From here the stack would be too
    /// deep.)
    Begin(Mode),
}

impl Held {
    const AGAIN: u64 = 1 << 62;
    const BEGIN: u64 = 1 << 60;
}

impl Scalar for Held {
    type Raw = u64;

    #[inline(always)]
    fn into_raw(self) -> u64 {
        match self {
            Self::Counted(word) => word.raw(),
            Self::Again => Self::AGAIN,
            Self::Begin(mode) => Self::BEGIN | u64::from(mode.into_raw()),
        }
    }

    #[inline(always)]
    fn from_raw(raw: u64) -> Self {
        if raw & Self::BEGIN != 0 {
            Self::Begin(Mode::from_raw(raw as u32))
        } else if raw & Self::AGAIN != 0 {
            Self::Again
        } else {
            Self::Counted(IndexWord::from_raw(raw))
        }
    }
}

#[inline(always)]
fn hold_found(series: u32, id: u64, mode: Mode, rsp: u64) -> Held {
    let has_open = mode.has(Mode::HAS_OPEN);
    match find(series, id) {
        Found::Nothing | Found::Retiring => {}
        Found::Changing => return Held::Again,
        Found::Unfollowed(entry) if !entry.word.is_closed() => {
            return Held::Counted(IndexWord::UNFOLLOWED);
        }
        Found::Unfollowed(_) | Found::Left(_) => {
            if has_open && calls::open_in_flight(series, rsp).is_none() {
                after_close(series);
                return Held::Counted(IndexWord::UNFOLLOWED);
            }
        }
        Found::Slot(entry, slot, seen) => {
            if seen.only(CLOSED | STRAGGLER) == STRAGGLER {
                return if join(slot, seen) { Held::Counted(entry.word) } else { Held::Again };
            }
            if !seen.is_closed() || (has_open && calls::open_in_flight(series, rsp).is_none()) {
                return hold(series, slot, seen, entry.word).map_or(Held::Again, Held::Counted);
            }
        }
    }
    // An open that has not returned, or none: with no `open` probe a granule's first use is its open,
    // unless it may be older than the attach.
    Held::Begin(if has_open && calls::open_in_flight(series, rsp).is_some() {
        Mode::IN_FLIGHT
    } else if !mode.has(Mode::FROM_START) {
        Mode::UNSEEN | Mode::BEFORE
    } else if has_open {
        Mode::UNSEEN
    } else {
        Mode::NONE
    })
}

/// Counts an object in its granule if it is remembered and open: the index word.
#[inline(always)]
pub(super) fn hold_remembered(series: u32, id: u64) -> Option<IndexWord> {
    let (entry, slot, seen) = slots::remembered(series, id)?;
    if !seen.is_closed() && join(slot, seen) { Some(entry.word) } else { None }
}

/// Counts an object in the granule of an index word, whose state was `seen`: the word. `None`: the slot is used again.
///
/// By a swap of the whole state, so that no count ever stands in another granule. Where others count at the same
/// instant, by an addition, which cannot fail.
#[inline(always)]
fn hold(series: u32, slot: SlotRef, seen: State, word: IndexWord) -> Option<IndexWord> {
    let mut next = seen.plus_one();
    if seen.is_closed() && seen.live() == 0 {
        next = next.with(STRAGGLER);
    }
    if slot.swap_state(seen, next) {
        if seen.is_closed() {
            after_close(series);
        }
        return Some(word);
    }
    if slot.state().generation() != word.generation() {
        return None;
    }
    let before = slot.add_object();
    if before.generation() != word.generation() || before.only(USED | RETIRING) != USED {
        // The slot was used again in between: take the count back and try again. Where the granule was
        // closed and empty before our count, that is no late drain.
        let empty = before.is_closed() && before.live() == 0;
        granule_release(word.slot(), Some(slot), 0, !empty);
        return None;
    }
    if before.is_closed() {
        if before.live() == 0 {
            // Without ids of objects the next generation may have begun with it.
            let _ = slot.mark(word.generation(), STRAGGLER);
        }
        after_close(series);
    }
    Some(word)
}

#[inline(always)]
fn after_close(series: u32) {
    totals::add(series, counter!(allocs_after_close), 1);
    losses::count(Loss::AllocAfterClose);
}

#[inline(always)]
fn release_checked(number: SlotNumber, slot: Option<SlotRef>, size: u64, judge: bool) {
    if let Some(slot) = slot {
        release(number, slot, size, judge);
    }
}

/// What an object's granule was as the object left it.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// The state, the object included.
    pub(crate) before: State,
    /// When the granule was closed; means something if it is.
    pub(crate) closed_ns: u64,
    /// When it was opened; 0 where that was not seen.
    pub(crate) opened_ns: u64,
}

/// [`granule_release`] where it is worth a call less. What is reported about a late drain is read while the reference is
/// held: after it another CPU may fill the slot anew.
#[inline(always)]
pub(crate) fn release(number: SlotNumber, slot: SlotRef, size: u64, judge: bool) -> Left {
    let seen = slot.state();
    let series = slot.series();
    let mut closed_ns = slot.closed_ns();
    let opened_ns = slot.opened_ns();
    let was_closed = seen.is_closed();
    let mut bytes = slot.bytes();
    if size != 0 {
        slot.sub_live_bytes(size);
    }
    let mut before = slot.remove_object();
    if before.live() == 1 && before.has(CLOSED | DETACHED) {
        if !was_closed {
            // It was closed in between. What its close has noted is only there as long as the slot serves
            // this generation, to which nothing refers any more: else the close was just now.
            (closed_ns, bytes) = noted(slot, before, bytes);
        }
        if !judge {
            before = before.with(STRAGGLER);
        }
        granule_drained(series, number, before, closed_ns, bytes);
    } else if before.is_closed() && !was_closed {
        // Other pins hold it still, so what its close has noted is there.
        closed_ns = now();
    }
    Left { before, closed_ns, opened_ns }
}

/// When a generation was closed, and its bytes; now, and `bytes`, where its slot is another's by now.
#[inline(always)]
fn noted(slot: SlotRef, before: State, bytes: u64) -> (u64, u64) {
    let found = (slot.closed_ns(), slot.bytes());
    if slot.state().generation() == before.generation() { found } else { (now(), bytes) }
}

#[inline(always)]
fn drained(series: u32, number: SlotNumber, before: State, closed_ns: u64, bytes: u64) {
    if before.is_late_drain() {
        let at = now();
        totals::add(series, counter!(late_drained), 1);
        if let Some(state) = series::state(series) {
            // SAFETY: map memory.
            unsafe {
                atomic::sub(&raw mut (*state).retained_granules, 1);
                atomic::sub(&raw mut (*state).retained_bytes, bytes);
            }
        }
        histogram::add(series, hist::Of::PinDelay as u32, 0, at.saturating_sub(closed_ns));
        if config::events_wanted() != 0
            && let Some(slot) = SlotRef::get(number)
        {
            emit::granule(EventKind::LateDrain, series, at, |event| {
                // SAFETY: the record that `emit` has reserved.
                unsafe {
                    (*event).granule = slot.id();
                    (*event).generation = before.generation().number();
                    (*event).bytes = bytes;
                    (*event).closed_ns = closed_ns;
                    (*event).opened_ns = slot.opened_ns();
                    (*event).place = slot.place();
                }
            });
        }
    }
    if before.has(DETACHED) {
        slots::retire(number);
    } else if let Some(slot) = SlotRef::get(number) {
        // Whichever granule the slot serves by now: it is forgotten only if it is closed and empty.
        slots::forget_if_scarce(series, slot.id(), false);
    }
}

/// What became of the try to take an object off a granule.
#[derive(PartialEq, Eq)]
enum Taken {
    /// It has no object, or has freed them all.
    No,
    /// One is off.
    Yes,
    /// Another CPU changed the count in this instant.
    Busy,
}

scalars! {
    Taken as u32: |taken| taken as u32, |raw| match raw { 0 => Taken::No, 2 => Taken::Busy, _ => Taken::Yes };
}

/// Takes one object off the live count of a granule to which the caller holds no reference: `false`
/// where this generation has no object, or (bulk) was closed, which has freed them all.
#[inline(always)]
pub(crate) fn take_off(
    number: SlotNumber,
    slot: SlotRef,
    generation: Generation,
    size: u64,
    mode: Mode,
) -> bool {
    for _ in 0..TRIES {
        match granule_take_off(number, Some(slot), generation, size, mode) {
            Taken::No => return false,
            Taken::Yes => return true,
            Taken::Busy => {}
        }
    }
    losses::count(Loss::AllocRaced);
    true
}

#[inline(always)]
fn try_take_off(
    number: SlotNumber,
    slot: Option<SlotRef>,
    generation: Generation,
    size: u64,
    mode: Mode,
) -> Taken {
    let Some(slot) = slot else { return Taken::No };
    let seen = slot.state();
    let freed_in_bulk = mode.is_bulk() && !seen.is_migrated();
    let wanted = if freed_in_bulk { USED | CLOSED } else { USED };
    if seen.generation() != generation || seen.live() == 0 || seen.only(wanted) != USED {
        return Taken::No;
    }
    let (series, closed_ns, bytes) = (slot.series(), slot.closed_ns(), slot.bytes());
    let last = seen.live() == 1;
    let by_object = mode.has(Mode::BY_OBJECT);
    let mut next = seen.minus_one();
    if last && !by_object && !seen.is_closed() {
        // What was taken over from an earlier generation has gone: from here the count is this one's.
        next = next.without(TAINTED);
    }
    if !slot.swap_state(seen, next) {
        return Taken::Busy;
    }
    if last && !by_object {
        drain_deferred(series, slot);
    }
    if last && seen.has(CLOSED | DETACHED) {
        // The slot may serve another granule already: its bytes are left alone.
        granule_drained(series, number, seen, closed_ns, bytes);
    } else if size != 0 {
        slot.sub_live_bytes(size);
    }
    Taken::Yes
}

/// Earlier generations, whose objects were counted with this one's, have drained: their late drains, which had to wait
/// for that, are counted now.
#[inline(always)]
pub(super) fn drain_deferred(series: u32, slot: SlotRef) {
    let deferred = u64::from(slot.take_deferred());
    if deferred == 0 {
        return;
    }
    totals::add(series, counter!(late_drained), deferred);
    if let Some(state) = series::state(series) {
        // SAFETY: map memory.
        unsafe { atomic::sub(&raw mut (*state).retained_granules, deferred) };
    }
}

#[inline(always)]
fn take_off_found(series: u32, id: u64, size: u64, mode: Mode) -> Step<u64> {
    match find(series, id) {
        Found::Slot(entry, slot, _) => {
            let word = entry.word;
            Step::Done(u64::from(take_off(word.slot(), slot, word.generation(), size, mode)))
        }
        // Without a slot nothing contradicts it.
        Found::Unfollowed(_) => Step::Done(1),
        Found::Nothing | Found::Left(_) | Found::Retiring => Step::Done(0),
        Found::Changing => Step::Again,
    }
}
