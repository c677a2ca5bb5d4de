//! Sampling: each generation of a granule is in the sample or not, with all that happens to it.
//!
//! It is drawn once, when the generation begins, and remembered in the index. (A hash of id and generation
//! would do for ids that never come back. But those of a ring do, and with them whatever pattern the hash has:
//! one drawn number per generation makes the closes of a sample independent, which its interval rests on.)
//!
//! Implicit granules are not drawn for: a page is in the sample or not as long as it is looked at, by
//! [`drainprof_common::sample::has_page`], and nothing is remembered of one that is not.

use aya_ebpf::helpers::bpf_get_prandom_u32;
use drainprof_common::{
    maps::{NO_SLOT, Totals, place_of},
    sample,
    spec::{flags, value},
};

use super::{implicit::is_apart, slots};
use crate::{atomic, config, hit::Hit};

/// Whether the hit's new object begins in a page that is not in the sample. An object that is larger than a page is in
/// always: such objects are few, and one of them in many would weigh more than all else.
#[inline(always)]
pub(crate) fn misses(hit: &Hit) -> bool {
    let one_in = config::sample();
    one_in > 1 && hit.has(flags::IMPLICIT) && !is_apart(hit) && {
        let heap = u64::from(hit.target) << 32 | u64::from(config::sample_seed());
        !sample::has_page(heap, hit.value(value::GRANULE), one_in)
    }
}

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
