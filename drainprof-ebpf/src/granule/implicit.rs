//! Implicit granules: no call opens or closes them. Each begins with the first object that is seen in it and ends
//! with its last, as the pages of a malloc heap do.
//!
//! An object is counted in by a compare-and-swap of the whole state word, never by an addition: so no count
//! ever stands in a granule that has ended, not even for an instant, and the program that takes the count to 0 has taken out
//! the last object. That swap sets the flag, too. What began it again after that is another generation.
//!
//! On an open granule [`STRAGGLER`](drainprof_common::state::STRAGGLER) says that it is implicit.

use drainprof_common::{
    counter,
    event::EventKind,
    granule::SlotNumber,
    hist,
    loss::Loss,
    sample,
    spec::{flags, value},
    state::{BEFORE, CLOSED, State, TAINTED},
};

use super::slots::{self, SlotRef};
use crate::{
    clock::now,
    config, emit,
    global::{global, scalars},
    histogram::histogram_add,
    hit::Hit,
    losses, series, totals,
};

global! {
    /// Takes an object out of its granule, which ends with its last one. The object holds a reference, which this gives
    /// up.
    pub(crate) fn granule_leave(number: SlotNumber, size: u64) -> () = leave;
    /// Another try of [`leave`]; writes what is reported if it was the last.
    fn granule_leave_again(slot: Option<SlotRef>, ended: *mut Ended) -> Left = leave_again;
}

/// How often the swap is tried against other CPUs' counts.
const TRIES: usize = 32;

/// Whether an object belongs to no granule: it is larger than one, or grows to be.
#[inline(always)]
pub(crate) fn is_apart(hit: &Hit) -> bool {
    hit.has(flags::IMPLICIT) && hit.value(value::SIZE) > hit.constant_bytes()
}

/// Whether the hit's new object begins in a page that is not in the sample. Every object that is larger than a page
/// is in the sample: such objects are few, and one of them weighs more than many others.
#[inline(always)]
pub(crate) fn misses(hit: &Hit) -> bool {
    let one_in = config::sample();
    one_in > 1 && hit.has(flags::IMPLICIT) && !is_apart(hit) && {
        let heap = u64::from(hit.target) << 32 | u64::from(config::sample_seed());
        !sample::has_page(heap, hit.value(value::GRANULE), one_in)
    }
}

/// Counts an object in if the granule's state is still the one that was `seen`, which is open.
#[inline(always)]
pub(super) fn join(slot: SlotRef, seen: State) -> bool {
    // The generation is part of the word, so that the slot serves the same granule still.
    slot.swap_state(seen, seen.plus_one())
}

#[inline(always)]
fn leave(number: SlotNumber, size: u64) {
    let Some(slot) = SlotRef::get(number) else { return };
    if size != 0 {
        slot.sub_live_bytes(size);
    }
    let (mut left, mut ended) = try_leave(slot);
    if left == Left::Busy {
        // The verifier goes through every round of a loop: the less is in it, the sooner it is done.
        for _ in 0..TRIES {
            left = granule_leave_again(Some(slot), &raw mut ended);
            if left != Left::Busy {
                break;
            }
        }
    }
    match left {
        Left::Ended => count(&ended),
        Left::InUse => {}
        // Were it the last, the granule would stay open while it is empty, until the next object has come and gone.
        Left::Busy => {
            if slot.remove_object().live() == 1 {
                losses::count(Loss::AllocRaced);
            }
        }
    }
}

#[inline(always)]
fn leave_again(slot: Option<SlotRef>, ended: *mut Ended) -> Left {
    let Some(slot) = slot else { return Left::Busy };
    if ended.is_null() {
        return Left::Busy;
    }
    let (left, last) = try_leave(slot);
    // SAFETY: the caller's variable.
    unsafe { ended.write(last) };
    left
}

/// What became of the try to take an object out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Left {
    /// Another CPU changed the state in this instant.
    Busy,
    /// It is out, and others are in the granule.
    InUse,
    /// It was the last.
    Ended,
}

scalars! {
    Left as u32: |left| left as u32, |raw| match raw { 1 => Left::InUse, 2 => Left::Ended, _ => Left::Busy };
}

/// What is reported about the end is read while the reference is held: after it another CPU may begin the next
/// generation.
#[inline(always)]
fn try_leave(slot: SlotRef) -> (Left, Ended) {
    let seen = slot.state();
    let mut ended = Ended { series: 0, id: 0, bytes: 0, opened_ns: 0, closed_ns: 0, before: seen };
    let mut next = seen.minus_one();
    let mut done = Left::InUse;
    if seen.live() == 1 {
        ended.series = slot.series();
        ended.id = slot.id();
        ended.bytes = slot.bytes();
        ended.opened_ns = slot.opened_ns();
        ended.closed_ns = now();
        // User space leaves alone what was closed just now.
        slot.set_closed_ns(ended.closed_ns);
        next = next.with(CLOSED);
        done = Left::Ended;
    }
    (if slot.swap_state(seen, next) { done } else { Left::Busy }, ended)
}

/// A granule that has ended.
#[derive(Clone, Copy)]
#[repr(C)]
struct Ended {
    id: u64,
    bytes: u64,
    opened_ns: u64,
    closed_ns: u64,
    /// Its state with its last object.
    before: State,
    series: u32,
}

#[inline(always)]
fn count(ended: &Ended) {
    let Ended { id, bytes, opened_ns, closed_ns: at, before, series } = *ended;
    series::closed(series);
    // What was allocated in it before the attach, or was lost, may be in it still.
    if before.has(BEFORE | TAINTED) {
        totals::add(series, counter!(unknown), 1);
    } else {
        totals::add(series, counter!(closed_plain), 1);
    }
    totals::add(series, counter!(closed_bytes), bytes);
    if opened_ns != 0 {
        histogram_add(series, hist::Of::Lifetime as u32, 0, at.saturating_sub(opened_ns));
    }
    if config::events_wanted() != 0 {
        emit::granule(EventKind::Close, series, at, |event| {
            // SAFETY: the record that `emit` has reserved.
            unsafe {
                (*event).granule = id;
                (*event).generation = before.generation().number();
                (*event).bytes = bytes;
                (*event).opened_ns = opened_ns;
                (*event).closed_ns = at;
            }
        });
    }
    slots::forget_if_scarce(series, id, false);
}
