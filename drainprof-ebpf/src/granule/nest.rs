//! Granules that end with the granule that they are nested in, without an event of their own.
//!
//! Nothing is done at the ancestor's close: it would have to look for all that are nested in it. A granule remembers
//! which generation of which slot it is nested in; it is over once that generation is closed, reset or over itself.
//! Here that is asked when an id is opened again; user space asks it of all open granules when it makes facts.

use drainprof_common::{
    maps::{MAX_NESTING, parent_of, place_of},
    state,
};

use super::slots;
use crate::atomic;

/// Whether this generation of a slot has ended with one that it is nested in. (Where nothing is nested, no slot says that
/// it is.)
#[inline(always)]
pub(crate) fn is_over(index: u32, generation: u32) -> bool {
    let Some(slot) = slots::slot(index) else { return false };
    // SAFETY: map memory, one word.
    let seen = unsafe { atomic::load(&raw const (*slot).state) };
    state::generation(seen) == generation && granule_is_over(index) != 0
}

/// Whether the granule in a slot has ended with one that it is nested in: 1, else 0. A chain that is longer than
/// [`MAX_NESTING`] is taken for one that goes on.
#[unsafe(no_mangle)]
#[inline(never)]
pub(super) extern "C" fn granule_is_over(index: u32) -> u32 {
    let Some(slot) = slots::slot(index) else { return 0 };
    // SAFETY: map memory, one word.
    let mut parent = unsafe { atomic::load(&raw const (*slot).parent_at) };
    for _ in 0..MAX_NESTING {
        if parent & parent_of::SET == 0 {
            return 0;
        }
        let Some(slot) = slots::slot(place_of::slot(parent)) else { return 0 };
        // SAFETY: map memory, one word each.
        unsafe {
            let seen = atomic::load(&raw const (*slot).state);
            // A slot that was given back is not used, and keeps its generation until another granule takes it.
            let is_open =
                seen & state::USED != 0 && (seen & state::CLOSED == 0 || state::is_moved(seen));
            if state::generation(seen) != place_of::generation(parent) || !is_open {
                return 1;
            }
            parent = atomic::load(&raw const (*slot).parent_at);
        }
    }
    0
}
