//! Implicit granules: no call opens or closes them. Each begins with the first object that is seen in it and ends
//! with its last, as the pages of a malloc heap do.
//!
//! An object is counted in by a compare-and-swap of the whole state word, not by an addition as elsewhere: so no count
//! ever stands in a granule that has ended, not even for an instant, and the program that takes the count to 0 has taken out
//! the last object. That swap sets the flag, too. What began it again after that is another generation.
//!
//! On an open granule [`STRAGGLER`](drainprof_common::state::STRAGGLER) says that it is implicit.

use drainprof_common::{
    event::EventKind,
    granule::SlotNumber,
    hist, sample,
    spec::{flags, value},
    state::{BEFORE, CLOSED, State, TAINTED},
};

use super::slots::{self, SlotRef};
use crate::{
    config, emit,
    global::global,
    histogram::histogram_add,
    hit::{Hit, now},
    series::{self, bump},
};

global! {
    /// Takes an object out of its granule, which ends with its last one. The object holds a reference, which this gives
    /// up.
    pub(crate) fn granule_leave(number: SlotNumber, size: u64) -> () = leave;
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

/// What is reported about the end is read while the reference is held: after it another CPU may begin the next
/// generation.
#[inline(always)]
fn leave(number: SlotNumber, size: u64) {
    let Some(slot) = SlotRef::get(number) else { return };
    if size != 0 {
        slot.sub_live_bytes(size);
    }
    for _ in 0..TRIES {
        let seen = slot.state();
        if seen.live() != 1 {
            if slot.swap_state(seen, seen.minus_one()) {
                return;
            }
            continue;
        }
        let ended = Ended {
            series: slot.series(),
            id: slot.id(),
            bytes: slot.bytes(),
            opened_ns: slot.opened_ns(),
            before: seen,
        };
        let at = now();
        // User space leaves alone what was closed just now.
        slot.set_closed_ns(at);
        if slot.swap_state(seen, seen.minus_one().with(CLOSED)) {
            count(&ended, at);
            return;
        }
    }
    // It stays open while it is empty, until the next object has come and gone.
    slot.remove_object();
}

/// A granule that has ended.
struct Ended {
    series: u32,
    id: u64,
    bytes: u64,
    opened_ns: u64,
    /// Its state with its last object.
    before: State,
}

#[inline(always)]
fn count(ended: &Ended, at: u64) {
    let Ended { series, id, bytes, opened_ns, before } = *ended;
    series::closed(series);
    // What was allocated in it before the attach, or was lost, may be in it still.
    if before.has(BEFORE | TAINTED) {
        bump!(series, unknown);
    } else {
        bump!(series, closed_plain);
    }
    bump!(series, closed_bytes, bytes);
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
