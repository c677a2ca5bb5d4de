//! The programs: one file per concern, each entry a few lines around one function.

#![allow(
    clippy::needless_pass_by_value,
    reason = "the programs' signatures are given by the macros that make them"
)]

mod alloc;
mod close;
mod describe;
mod empty;
mod growth;
mod instance;
mod lifecycle;
mod open;
mod program;

use core::mem::MaybeUninit;

use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use drainprof_common::maps::Frame;

use crate::{calls, diagnostics, granule, hit, hit::Hit, paths};

/// A probe that is judged at entry; `PATH`: the call path is wanted.
#[inline(always)]
fn at_entry<const PATH: bool>(ctx: &ProbeContext, handle: impl FnOnce(&Hit)) {
    let Some(mut hit) = hit::begin(ctx, PATH) else { return };
    hit.asks_path = PATH;
    let mut registers = MaybeUninit::uninit();
    // SAFETY: the registers live to the end of this function, as the hit does.
    let entered = unsafe { hit::enter(ctx, &mut hit, registers.as_mut_ptr()) };
    if entered && hit::evaluate(&hit, false) {
        if PATH && !granule::misses(&hit) {
            hit.set_path(paths::of_hit(ctx, &hit, false));
        }
        handle(&hit);
    }
    diagnostics::report_hit(hit.index);
}

/// A probe that is judged at return, with the frame of its entry; `rejected` is called where the call
/// turned out not to count. `PATH`: the call path is wanted.
#[inline(always)]
fn at_return<const PATH: bool>(
    ctx: &RetProbeContext,
    handle: impl FnOnce(&Hit, *mut Frame),
    rejected: impl FnOnce(&Hit, *mut Frame),
) {
    let Some(mut hit) = hit::begin_at_return(ctx) else { return };
    let Some(frame) = calls::leave(ctx, &mut hit) else {
        diagnostics::report_hit(hit.index);
        return;
    };
    hit.asks_path = PATH;
    if hit::evaluate(&hit, true) {
        if PATH && !granule::misses(&hit) {
            hit.set_path(paths::of_hit(ctx, &hit, true));
        }
        handle(&hit, frame);
    } else {
        rejected(&hit, frame);
    }
    diagnostics::report_hit(hit.index);
}
