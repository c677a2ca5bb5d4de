//! Page faults, the size of resident memory, and system calls that change mappings.
//!
//! Hooked tracepoints: `page_fault_user(unsigned long address, struct pt_regs *regs, unsigned long error_code)` and
//! `page_fault_kernel` with the same arguments, as raw tracepoints, which cost a third of the others;
//! `kmem:rss_stat`; `syscalls:sys_enter_X` and `syscalls:sys_exit_X` for `brk`, `mmap`, `munmap`, `mremap` and
//! `madvise`, all of which one program serves. Loaded only where growth is wanted.

use aya_ebpf::{
    macros::{raw_tracepoint, tracepoint},
    programs::{RawTracePointContext, TracePointContext},
};
use drainprof_common::{
    growth::{Cause, MapKind},
    maps::TargetValue,
};

use crate::{config, diagnostics, growth, hit::current_target, maps, paths};

/// The first address that is none of a program's.
const USER_END: u64 = 1 << 47;

#[raw_tracepoint]
pub fn fault_user(ctx: RawTracePointContext) -> u32 {
    try_fault(&ctx, Cause::Fault);
    diagnostics::report_event();
    0
}

#[raw_tracepoint]
pub fn fault_kernel(ctx: RawTracePointContext) -> u32 {
    try_fault(&ctx, Cause::KernelFault);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_fault(ctx: &RawTracePointContext, cause: Cause) -> Option<()> {
    let target = current_target()?;
    let (address, error) = (ctx.arg::<u64>(0), ctx.arg::<u64>(2));
    if address >= USER_END {
        return None;
    }
    growth::fault(ctx, target, cause, address, error);
    Some(())
}

#[tracepoint]
pub fn rss_changed(ctx: TracePointContext) -> u32 {
    try_rss_changed(&ctx);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_rss_changed(ctx: &TracePointContext) -> Option<()> {
    // SAFETY: the offsets are those of the running kernel, read from tracefs.
    let (mm_id, own) = unsafe {
        (
            ctx.read_at::<u32>(config::rss_mm_id_offset() as usize).ok()?,
            ctx.read_at::<u32>(config::rss_curr_offset() as usize).ok()? != 0,
        )
    };
    let target = if own { current_target()? } else { elsewhere(mm_id)? };
    // SAFETY: as above.
    let (kind, size) = unsafe {
        (
            ctx.read_at::<u32>(config::rss_member_offset() as usize).ok()?,
            ctx.read_at::<u64>(config::rss_size_offset() as usize).ok()?,
        )
    };
    growth::resized(ctx, target, own, mm_id, kind, size);
    Some(())
}

/// Whose address space it is.
#[inline(always)]
fn elsewhere(mm_id: u32) -> Option<TargetValue> {
    // SAFETY: copied out at once.
    unsafe { maps::ADDRESS_SPACES.get(&mm_id).copied() }
}

/// Numbers of system calls on x86-64.
mod call {
    pub(super) const MMAP: u32 = 9;
    pub(super) const MUNMAP: u32 = 11;
    pub(super) const BRK: u32 = 12;
    pub(super) const MREMAP: u32 = 25;
    pub(super) const MADVISE: u32 = 28;
}

#[tracepoint]
pub fn mapping_begins(ctx: TracePointContext) -> u32 {
    try_begins(&ctx);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_begins(ctx: &TracePointContext) -> Option<()> {
    let target = current_target()?.target;
    let (cause, kind) = match number(ctx)? {
        call::BRK => (Cause::Brk, None),
        call::MMAP => (Cause::Mmap, None),
        call::MUNMAP => (Cause::Munmap, Some(MapKind::MunmapBegins)),
        call::MREMAP => (Cause::Mremap, Some(MapKind::MremapBegins)),
        call::MADVISE => (Cause::Madvise, None),
        _ => return None,
    };
    let regs = growth::user_regs()?;
    let wanted = config::growth_paths() != 0;
    let path = if wanted { paths::of_user(&regs, target, false) } else { 0 };
    growth::begin(target, cause, path, 0);
    if let Some(kind) = kind {
        growth::record(kind, target, path, &regs);
    }
    Some(())
}

#[tracepoint]
pub fn mapping_ends(ctx: TracePointContext) -> u32 {
    try_ends(&ctx);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_ends(ctx: &TracePointContext) -> Option<()> {
    let target = current_target()?.target;
    let kind = match number(ctx)? {
        call::BRK => MapKind::Brk,
        call::MMAP => MapKind::Mmap,
        call::MUNMAP => MapKind::Munmap,
        call::MREMAP => MapKind::Mremap,
        call::MADVISE => MapKind::Madvise,
        _ => return None,
    };
    let path = growth::path_of(growth::end());
    let regs = growth::user_regs()?;
    growth::record(kind, target, path, &regs);
    Some(())
}

/// The system call's number.
#[inline(always)]
fn number(ctx: &TracePointContext) -> Option<u32> {
    // SAFETY: the offset is that of the running kernel, read from tracefs.
    unsafe { ctx.read_at::<u32>(config::syscall_number_offset() as usize).ok() }
}
