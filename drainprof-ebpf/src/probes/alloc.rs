//! Objects come and go; and the entry side of every call that is followed to its return.

#![allow(
    clippy::redundant_closure,
    reason = "a function passed by name becomes one of its own, with a stack of its own, once two programs pass it"
)]

use aya_ebpf::programs::ProbeContext;
use drainprof_common::spec::flags;

use super::{at_entry, at_return, program::programs};
use crate::{calls, diagnostics, hit, object, realloc};

programs! {
    entry fn alloc_entry(ctx) {
        at_entry::<false>(&ctx, |hit| object::alloc(hit));
    }

    return fn alloc_return(ctx) {
        at_return::<false>(&ctx, |hit, _| object::alloc(hit), |_, _| {});
    }

    /// [`alloc_entry`] with the call path.
    entry fn alloc_entry_stacks(ctx) {
        at_entry::<true>(&ctx, |hit| object::alloc(hit));
    }

    /// [`alloc_return`] with the call path.
    return fn alloc_return_stacks(ctx) {
        at_return::<true>(&ctx, |hit, _| object::alloc(hit), |_, _| {});
    }

    /// [`realloc_return`] with the call path.
    return fn realloc_return_stacks(ctx) {
        at_return::<true>(&ctx, |hit, frame| realloc::at_return(hit, frame), object::put_back);
    }

    entry fn free_entry(ctx) {
        at_entry::<false>(&ctx, object::free);
    }

    return fn free_return(ctx) {
        at_return::<false>(&ctx, object::free_at_return, object::put_back);
    }

    return fn realloc_return(ctx) {
        at_return::<false>(&ctx, |hit, frame| realloc::at_return(hit, frame), object::put_back);
    }

    /// The entry of any probe that is judged at return.
    entry fn call_entry(ctx) {
        try_call_entry(&ctx);
    }
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
