//! Granules that end with the granule that they are nested in, without an event of their own.
//!
//! Nothing is done at the ancestor's close: it would have to find all that are nested in it. A granule remembers
//! which generation of which slot it is nested in; it is over once that generation is closed, reset or over itself.
//! Here that is asked when an id is opened again; user space asks it of all open granules when it makes facts.

use drainprof_common::{
    granule::{Generation, SlotNumber},
    maps::MAX_NESTING,
};

use super::slots::SlotRef;
use crate::global::global;

global! {
    /// Whether the granule in a slot has ended with one that it is nested in. A chain that is longer than
    /// [`MAX_NESTING`] is taken for one that goes on.
    pub(super) fn granule_is_over(number: SlotNumber) -> bool = is_over_now;
    /// The step from a granule to the one that it is nested in: that one's slot, or [`OVER`] or [`GOES_ON`]. (A function
    /// of its own: the verifier goes through every round of the loop around it.)
    fn granule_outwards(number: SlotNumber) -> u32 = outwards;
}

/// Whether this generation of a slot has ended with one that it is nested in. (Where nothing is nested, no slot has a
/// parent.)
#[inline(always)]
pub(crate) fn is_over(number: SlotNumber, generation: Generation) -> bool {
    SlotRef::get(number).is_some_and(|slot| slot.state().generation() == generation)
        && granule_is_over(number)
}

#[inline(always)]
fn is_over_now(number: SlotNumber) -> bool {
    let mut at = number.number();
    for _ in 0..MAX_NESTING {
        at = granule_outwards(SlotNumber::new(at));
        if at >= GOES_ON {
            return at == OVER;
        }
    }
    false
}

/// Instead of a slot's number: the granule is nested in one that has ended.
const OVER: u32 = u32::MAX;
/// It is nested in none.
const GOES_ON: u32 = u32::MAX - 1;

#[inline(always)]
fn outwards(number: SlotNumber) -> u32 {
    let Some(slot) = SlotRef::get(number) else { return GOES_ON };
    let Some(parent) = slot.parent_at().get() else { return GOES_ON };
    let Some(next) = SlotRef::get(parent.slot()) else { return GOES_ON };
    let seen = next.state();
    // A slot that was given back is not used, and keeps its generation until another granule takes it.
    let is_open = seen.is_used() && (!seen.is_closed() || seen.is_moved());
    if seen.generation() == parent.generation() && is_open { parent.slot().number() } else { OVER }
}
