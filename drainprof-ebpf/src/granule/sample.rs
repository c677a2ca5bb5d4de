//! Sampling: each generation of a granule is in the sample or not, with all that happens to it.
//!
//! It is drawn once, when the generation begins, and remembered in the index. (A hash of id and generation
//! would do for ids that never come back. But those of a ring do, and with them whatever pattern the hash has:
//! one drawn number per generation makes the closes of a sample independent, which its interval rests on.)

use aya_ebpf::helpers::bpf_get_prandom_u32;
use drainprof_common::maps::{NO_SLOT, Totals, place_of};

use super::slots;
use crate::{atomic, config};

/// Draws for a generation that begins: whether it is left out.
#[inline(always)]
pub(super) fn leaves_out() -> bool {
    let one_in = config::sample();
    // SAFETY: the helper takes no argument.
    one_in > 1 && (u64::from(unsafe { bpf_get_prandom_u32() }) * u64::from(one_in)) >> 32 != 0
}

/// Counts a generation that is left out.
#[inline(always)]
pub(super) fn count(totals: *mut Totals) {
    // SAFETY: this CPU's counters.
    unsafe { atomic::add(&raw mut (*totals).sampled_out, 1) };
}

/// The index word of a granule that is left out.
pub(super) const OUT: u64 = NO_SLOT as u64 | place_of::OUT;

/// Whether the id's present generation is left out.
#[inline(always)]
pub(super) fn is_out(series: u32, id: u64) -> bool {
    config::sample() > 1
        && slots::place(series, id).is_some_and(|place| place.raw & place_of::OUT != 0)
}
