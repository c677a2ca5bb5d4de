//! Implicit granules: no call opens or closes them. Each begins with the first object that is seen in it and ends
//! with its last, as the pages of a malloc heap do.
//!
//! An object is counted in by a compare-and-swap of the whole state word, not by an addition as elsewhere: so no count
//! ever stands in a granule that has ended, not even for an instant, and whoever takes the count to 0 has taken out
//! the last object. That swap sets the flag, too. What began it again after that is another generation.
//!
//! On an open granule [`state::STRAGGLER`] says that it is implicit.

use drainprof_common::{
    event::EventKind,
    hist,
    maps::Slot,
    sample,
    spec::{flags, value},
    state,
};

use super::slots;
use crate::{
    atomic, config, emit,
    histogram::histogram_add,
    hit::{Hit, now},
    series::{self, bump},
};

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
pub(super) fn join(slot: *mut Slot, seen: u64) -> bool {
    // SAFETY: map memory. The generation is part of the word, so that the slot serves the same granule still.
    unsafe { atomic::compare_swap(&raw mut (*slot).state, seen, seen + 1) == seen }
}

/// Takes an object out of its granule, which ends with its last one. The object holds a reference, which this gives up.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn granule_leave(index: u32, size: u64) -> u32 {
    let Some(slot) = slots::slot(index) else { return 0 };
    // SAFETY: map memory. What is told about the end is read while the reference is held: after it another CPU may
    // begin the next generation.
    unsafe {
        if size != 0 {
            atomic::sub(&raw mut (*slot).live_bytes, size);
        }
        for _ in 0..TRIES {
            let seen = atomic::load(&raw const (*slot).state);
            if state::live(seen) != 1 {
                if atomic::compare_swap(&raw mut (*slot).state, seen, seen - 1) == seen {
                    return 1;
                }
                continue;
            }
            let ended = Ended {
                series: (*slot).series,
                id: (*slot).id,
                bytes: (*slot).bytes,
                opened_ns: (*slot).opened_ns,
                before: seen,
            };
            let at = now();
            // User space leaves alone what was closed just now.
            (*slot).closed_ns = at;
            let next = (seen - 1) | state::CLOSED;
            if atomic::compare_swap(&raw mut (*slot).state, seen, next) == seen {
                count(&ended, at);
                return 1;
            }
        }
        // It stays open while it is empty, until the next object has come and gone.
        atomic::sub(&raw mut (*slot).state, 1);
    }
    1
}

/// A granule that has ended.
struct Ended {
    series: u32,
    id: u64,
    bytes: u64,
    opened_ns: u64,
    /// Its state with its last object.
    before: u64,
}

#[inline(always)]
fn count(ended: &Ended, at: u64) {
    let Ended { series, id, bytes, opened_ns, before } = *ended;
    series::closed(series);
    // What was allocated in it before the attach, or was lost, may be in it still.
    if before & (state::BEFORE | state::TAINTED) != 0 {
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
                (*event).generation = state::generation(before);
                (*event).bytes = bytes;
                (*event).opened_ns = opened_ns;
                (*event).closed_ns = at;
            }
        });
    }
    slots::forget_if_scarce(series, id, false);
}
