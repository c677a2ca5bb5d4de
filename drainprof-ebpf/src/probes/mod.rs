//! The programs: one file per concern, each entry a few lines around one function.

#![allow(
    clippy::needless_pass_by_value,
    reason = "the programs' signatures are given by the macros that make them"
)]

mod alloc;
mod close;
mod empty;
mod instance;
mod lifecycle;
mod open;

use core::mem::MaybeUninit;

use aya_ebpf::programs::{ProbeContext, RetProbeContext};
use drainprof_common::maps::Frame;

use crate::{calls, hit, hit::Hit};

/// A probe that is judged at entry.
#[inline(always)]
fn at_entry(ctx: &ProbeContext, handle: impl FnOnce(&Hit)) {
    let mut values = MaybeUninit::uninit();
    let Some(mut hit) = hit::begin(ctx, &mut values, false) else { return };
    let mut operands = MaybeUninit::uninit();
    hit::entry_operands(ctx, &mut hit, &mut operands);
    if hit::evaluate(&hit, false) {
        handle(&hit);
    }
}

/// A probe that is judged at return, with the frame of its entry; `rejected` is called where the call
/// turned out not to count.
#[inline(always)]
fn at_return(
    ctx: &RetProbeContext,
    handle: impl FnOnce(&Hit, *mut Frame),
    rejected: impl FnOnce(&Hit, *mut Frame),
) {
    let mut values = MaybeUninit::uninit();
    let Some(mut hit) = hit::begin(ctx, &mut values, true) else { return };
    let Some(frame) = calls::leave(ctx, &mut hit) else { return };
    if hit::evaluate(&hit, true) {
        handle(&hit, frame);
    } else {
        rejected(&hit, frame);
    }
}
