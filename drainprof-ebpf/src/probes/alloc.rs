//! Objects come and go; and the entry side of every call that is followed to its return.

#![allow(
    clippy::redundant_closure,
    reason = "a function passed by name becomes one of its own, with a stack of its own, once two programs pass it"
)]

use aya_ebpf::{
    macros::{uprobe, uretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use drainprof_common::spec::flags;

use super::{at_entry, at_return};
use crate::{calls, diagnostics, hit, object, realloc};

#[uprobe]
pub fn alloc_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, |hit| object::alloc(hit));
    0
}

#[uretprobe]
pub fn alloc_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, _| object::alloc(hit), |_, _| {});
    0
}

/// [`alloc_entry`] with the call path.
#[uprobe]
pub fn alloc_entry_stacks(ctx: ProbeContext) -> u32 {
    at_entry::<true>(&ctx, |hit| object::alloc(hit));
    0
}

/// [`alloc_return`] with the call path.
#[uretprobe]
pub fn alloc_return_stacks(ctx: RetProbeContext) -> u32 {
    at_return::<true>(&ctx, |hit, _| object::alloc(hit), |_, _| {});
    0
}

/// [`realloc_return`] with the call path.
#[uretprobe]
pub fn realloc_return_stacks(ctx: RetProbeContext) -> u32 {
    at_return::<true>(&ctx, |hit, frame| realloc::at_return(hit, frame), object::put_back);
    0
}

#[uprobe]
pub fn free_entry(ctx: ProbeContext) -> u32 {
    at_entry::<false>(&ctx, object::free);
    0
}

#[uretprobe]
pub fn free_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, object::free_at_return, object::put_back);
    0
}

#[uretprobe]
pub fn realloc_return(ctx: RetProbeContext) -> u32 {
    at_return::<false>(&ctx, |hit, frame| realloc::at_return(hit, frame), object::put_back);
    0
}

/// The entry of any probe that is judged at return.
#[uprobe]
pub fn call_entry(ctx: ProbeContext) -> u32 {
    try_call_entry(&ctx);
    0
}

#[inline(always)]
fn try_call_entry(ctx: &ProbeContext) -> Option<()> {
    let mut hit = hit::begin(ctx, true)?;
    if let Some(frame) = calls::enter(ctx, &mut hit)
        && hit.has(flags::TAKE_AT_ENTRY)
        && hit::evaluate(&hit, false)
    {
        object::take_at_entry(&hit, frame);
    }
    diagnostics::report_hit(hit.index);
    Some(())
}
