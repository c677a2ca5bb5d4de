//! A granule reaches its boundary, or is reset.

use drainprof_common::{
    counter,
    event::EventKind,
    granule::{Generation, IndexWord, PinnedWord, SlotNumber},
    hist,
    loss::Loss,
    maps::cursor,
    mode::Mode,
    state::{BEFORE, MIGRATED, State, TAINTED, Verdict},
    transition,
};

use super::{
    open::granule_begin,
    slots::{self, Found, SlotRef, find, forget_if_scarce},
    step::{EEXIST, Step},
};
use crate::{
    atomic, clock::now, config, emit, global::global, histogram::histogram_add, losses, maps,
    series, totals::TotalsRef,
};

const BPF_NOEXIST: u64 = 1;

global! {
    /// Closes; what happened is all in the counters. `live` and `bytes` are what the probe has read (or the
    /// profile's constant).
    pub(super) fn granule_close(series: u32, id: u64, mode: Mode, live: u64, bytes: u64) -> Step<()> = close;
    /// A reset that is no close: the members go and the granule lives on.
    pub(super) fn granule_reset(series: u32, id: u64, mode: Mode, bytes: u64, place: u64) -> Step<()> = reset;
}

/// What a close finds out about its granule.
#[derive(Clone, Copy)]
struct Closed {
    verdict: Verdict,
    generation: Generation,
    live: u64,
    live_bytes: u64,
    bytes: u64,
    opened_ns: u64,
    place: u64,
}

impl Closed {
    /// What the close alone says: its granule holds what memory says, or nothing.
    #[inline(always)]
    fn unused(mode: Mode, live: u64, bytes: u64) -> Self {
        let boundary = mode.has(Mode::BOUNDARY);
        let (verdict, live) =
            if boundary { transition::judged_by(live) } else { (Verdict::Drainable, 0) };
        Self {
            verdict,
            generation: Generation::new(0),
            live,
            live_bytes: 0,
            bytes,
            opened_ns: 0,
            place: 0,
        }
    }
}

/// An open that only this close shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Opened {
    /// None: it was seen.
    No,
    /// Without opens each close is a boundary: of a generation that was never used, if the last one is closed already.
    Now,
    /// Before the attach.
    Earlier,
}

#[inline(always)]
fn close(series: u32, id: u64, mode: Mode, live: u64, bytes: u64) -> Step<()> {
    let Some(totals) = TotalsRef::of(series) else { return Step::Lost };
    let at = now();
    let boundary = mode.has(Mode::BOUNDARY);
    let has_open = mode.has(Mode::HAS_OPEN);
    let unused = Closed::unused(mode, live, bytes);
    let mut closed = unused;
    let mut number = SlotNumber::NONE;
    let mut opened = Opened::No;
    let found = match slots::remembered(series, id) {
        Some((entry, slot, seen)) => Found::Slot(entry, slot, seen),
        None => find(series, id),
    };
    match found {
        Found::Changing => return Step::Again,
        Found::Nothing => {
            if !remember_closed(series, id) {
                return Step::Again;
            }
            let from_start = mode.has(Mode::FROM_START);
            // Older than the attach; or never used, which only an observation from the start can exclude.
            opened = if has_open || !from_start { Opened::Earlier } else { Opened::Now };
            if !boundary && !from_start {
                closed.verdict = Verdict::Unknown;
            }
        }
        Found::Unfollowed(entry) if !entry.word.is_closed() => {
            if !entry.change(entry.word.closed()) {
                return Step::Again;
            }
            series::closed(series);
            if !boundary {
                closed.verdict = Verdict::Unknown;
            }
        }
        Found::Slot(entry, slot, seen) => {
            closed.generation = entry.word.generation().next();
            number = entry.word.slot();
            let decided = if seen.is_closed() {
                None
            } else {
                match close_slot(slot, seen, mode, at, bytes) {
                    Some((before, known)) => before.decide().map(|_| (before, known)),
                    None => return Step::Again,
                }
            };
            match decided {
                Some((before, decided)) => {
                    account(series, totals, slot, mode, before, &decided, at);
                    forget_if_scarce(series, id, has_open);
                    closed = decided;
                    if boundary {
                        (closed.verdict, closed.live) = (unused.verdict, unused.live);
                    }
                }
                None if has_open => return unmatched(totals),
                None => opened = Opened::Now,
            }
        }
        Found::Unfollowed(_) | Found::Retiring | Found::Left(_) => {
            if has_open {
                return unmatched(totals);
            }
            opened = Opened::Now;
        }
    }
    count(totals, mode, &closed, opened);
    if config::events_wanted() != 0 {
        send(series, id, mode, number, &closed, at);
    }
    Step::Done(())
}

/// A close of which no open was observed: judged by the live count, and nothing is remembered.
#[inline(always)]
pub(super) fn close_alone(series: u32, id: u64, mode: Mode, live: u64, bytes: u64) {
    let Some(totals) = TotalsRef::of(series) else { return };
    let closed = Closed::unused(mode, live, bytes);
    count(totals, mode, &closed, Opened::Now);
    if config::events_wanted() != 0 {
        send(series, id, mode, SlotNumber::NONE, &closed, now());
    }
}

/// Remembers that an id is closed, so that a second close is recognised; `false` where another CPU was first.
#[inline(always)]
fn remember_closed(series: u32, id: u64) -> bool {
    match maps::INDEX.insert(slots::key(series, id), IndexWord::CLOSED_ID, BPF_NOEXIST) {
        Ok(()) => series::level(cursor::INDEX, true),
        Err(EEXIST) => return false,
        Err(_) => losses::count(Loss::GranuleIndexFull),
    }
    true
}

/// Sends the record of a close.
#[inline(always)]
fn send(series: u32, id: u64, mode: Mode, number: SlotNumber, closed: &Closed, at: u64) {
    emit::granule(EventKind::Close, series, at, |event| {
        // SAFETY: the record that `emit` has reserved.
        unsafe {
            (*event).granule = id;
            let judged = mode.is_drain() && !mode.has(Mode::MIGRATE);
            (*event).verdict = if judged { closed.verdict as u32 } else { 0 };
            (*event).generation = closed.generation.number();
            (*event).live = closed.live;
            (*event).live_bytes = closed.live_bytes;
            (*event).bytes = closed.bytes;
            (*event).opened_ns = closed.opened_ns;
            (*event).closed_ns = at;
            (*event).place = closed.place;
            (*event).slot = number.number();
        }
    });
}

#[inline(always)]
fn unmatched(totals: TotalsRef) -> Step<()> {
    totals.add(counter!(unmatched_closes), 1);
    losses::count(Loss::UnmatchedClose);
    Step::Done(())
}

#[inline(always)]
fn count(totals: TotalsRef, mode: Mode, closed: &Closed, opened: Opened) {
    if opened == Opened::Now {
        totals.add(counter!(opened), 1);
    }
    if opened == Opened::Earlier {
        totals.add(counter!(opened_before), 1);
    }
    if mode.has(Mode::MIGRATE) {
        // Neither a verdict nor an end of what it held.
        totals.add(counter!(migrated), 1);
        return;
    }
    if mode.is_drain() {
        transition::count_verdict(closed.verdict, closed.live, closed.bytes, |counter, value| {
            totals.add(counter, value);
        });
    } else {
        totals.add(counter!(closed_plain), 1);
    }
    totals.add(counter!(closed_bytes), closed.bytes);
}

/// Sets the flag that decides the close: the state before, and what is known of the granule.
/// `None`: the slot serves another generation by now, or (bulk) its count has changed.
///
/// Everything is read and written before the flag is set: a program that sees the flag, and finds that it was the late
/// drain, reads the time and the bytes; and once the granule is empty another CPU may fill the slot anew.
#[inline(always)]
fn close_slot(
    slot: SlotRef,
    seen: State,
    mode: Mode,
    at: u64,
    bytes: u64,
) -> Option<(State, Closed)> {
    let generation = seen.generation();
    slot.set_closed_ns(at);
    if mode.has(Mode::HAS_BYTES) || slot.bytes() == 0 {
        slot.set_bytes(bytes);
    }
    let noted = slot.pinned_objects();
    let mut known = Closed {
        verdict: Verdict::Unknown,
        generation,
        live: 0,
        live_bytes: slot.live_bytes(),
        bytes: slot.bytes(),
        opened_ns: slot.opened_ns(),
        place: slot.place(),
    };
    let migrates = mode.has(Mode::MIGRATE);
    let flags = transition::closing(mode);
    let doubtful = mode.is_judged() && slot.opened_ns() < losses::last_call();
    if doubtful {
        // An object of it may have been lost.
        slot.mark(generation, TAINTED)?;
    }
    let before = if mode.is_bulk() && !migrates {
        // Its members go in the same instant: a new generation may begin right after.
        if !slot.swap_state(seen, seen.emptied().without(MIGRATED).with(flags)) {
            return None;
        }
        seen
    } else {
        slot.mark(generation, flags)?
    };
    if let Some(verdict) = before.decide() {
        known.live = before.live();
        known.verdict = verdict;
        // Its pins may all have gone since, and the slot with them: then the next generation's number stays.
        slot.swap_pinned_objects(noted, PinnedWord::new(generation, known.live));
        // The program that began it may not have noted it yet.
        let inherited = noted.of(generation).unwrap_or(u64::MAX);
        if !doubtful && is_shared(mode, before) && known.live > inherited {
            // More than what it took over from its last generation: at least one is its own.
            known.verdict = Verdict::Pinned;
        }
    }
    Some((before, known))
}

/// Whether objects of an earlier generation, which have no ids, are counted with this one's.
#[inline(always)]
fn is_shared(mode: Mode, before: State) -> bool {
    !mode.has(Mode::BY_OBJECT) && before.only(TAINTED | BEFORE) == TAINTED
}

/// What follows from the close of a followed granule.
#[inline(always)]
fn account(
    series: u32,
    totals: TotalsRef,
    slot: SlotRef,
    mode: Mode,
    before: State,
    closed: &Closed,
    at: u64,
) {
    series::closed(series);
    if mode.has(Mode::MIGRATE) {
        totals.add(counter!(migrated_objects), before.live());
    } else if mode.is_bulk() {
        count_members(totals, slot, before);
    } else if mode.is_judged() && closed.verdict == Verdict::Pinned {
        if is_shared(mode, before) {
            // It has drained when the count is zero. Bytes are retained only where the next open could show it.
            slot.add_deferred();
            retain(series, 0);
        } else {
            retain(series, closed.bytes);
        }
    }
    if closed.opened_ns != 0 {
        let age = at.saturating_sub(closed.opened_ns);
        histogram_add(series, hist::Of::Lifetime as u32, closed.place, age);
    }
}

#[inline(always)]
fn retain(series: u32, bytes: u64) {
    if let Some(state) = series::state(series) {
        // SAFETY: map memory.
        unsafe {
            atomic::add(&raw mut (*state).retained_granules, 1);
            atomic::add(&raw mut (*state).retained_bytes, bytes);
        }
    }
}

/// The close or reset of a bulk granule frees its members.
#[inline(always)]
fn count_members(totals: TotalsRef, slot: SlotRef, before: State) {
    let bytes = slot.take_live_bytes();
    totals.add(counter!(freed_in_bulk), before.live());
    totals.add(counter!(freed_bytes), bytes);
}

#[inline(always)]
fn reset(series: u32, id: u64, mode: Mode, bytes: u64, place: u64) -> Step<()> {
    let (slot, seen) = match find(series, id) {
        Found::Nothing => {
            // Now it is known to be empty, whatever it held before.
            return match granule_begin(series, id, mode | Mode::UNSEEN, bytes, place) {
                Step::Again => Step::Again,
                Step::Done(_) | Step::Lost => Step::Done(()),
            };
        }
        Found::Changing => return Step::Again,
        Found::Slot(_, slot, seen) if !seen.is_closed() => (slot, seen),
        Found::Slot(..) | Found::Unfollowed(_) | Found::Left(_) | Found::Retiring => {
            return Step::Done(());
        }
    };
    let Some(totals) = TotalsRef::of(series) else { return Step::Done(()) };
    let at = now();
    // A new generation: members that are still in `OBJECTS` are recognised as gone.
    if !slot.swap_state(seen, seen.emptied().without(BEFORE).stepped()) {
        return Step::Again;
    }
    let opened_ns = slot.opened_ns();
    slot.set_opened_ns(at);
    if mode.has(Mode::HAS_BYTES) {
        slot.set_bytes(bytes);
    }
    count_members(totals, slot, seen);
    if opened_ns != 0 {
        let age = at.saturating_sub(opened_ns);
        histogram_add(series, hist::Of::Lifetime as u32, slot.place(), age);
    }
    Step::Done(())
}
