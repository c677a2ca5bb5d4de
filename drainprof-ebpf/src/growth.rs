//! Where memory grows: what a thread is doing that may add pages, and which pages it touches.
//!
//! Called by `probes/growth`. A cell counts what one call path does; while a thread is at it, the changes of its
//! process's resident memory are the cell's. No event shows that a fault has ended: the next fault or system call
//! of the thread replaces it.

use aya_ebpf::{
    bindings::pt_regs,
    helpers::{
        bpf_get_current_pid_tgid,
        generated::{bpf_get_current_task_btf, bpf_probe_read_kernel, bpf_task_pt_regs},
    },
    programs::tracing::StackIdContext,
};
use drainprof_common::{
    growth::{
        Cause, GROWTH_THREADS, GrowthCell, GrowthTarget, GrowthThread, KERNEL_STACKS, MapKind,
        MapRecord, PAGE, REGION, REGION_WORDS, RegionKey, RegionPages, cell_hash, fault, member,
        with_stack,
    },
    loss::Loss,
    maps::TargetValue,
};

use crate::{atomic, clock::now, config, global::global, losses, maps, paths};

const BPF_NOEXIST: u64 = 1;

/// The registers with which the thread has left its program.
#[inline(always)]
pub(crate) fn user_regs() -> Option<pt_regs> {
    let mut regs = core::mem::MaybeUninit::<pt_regs>::uninit();
    // SAFETY: the helpers give the thread's own saved registers; they are copied, with their length.
    unsafe {
        let from = bpf_task_pt_regs(bpf_get_current_task_btf());
        let size = size_of::<pt_regs>() as u32;
        if bpf_probe_read_kernel(regs.as_mut_ptr().cast(), size, from as *const _) != 0 {
            return None;
        }
        Some(regs.assume_init())
    }
}

global! {
    /// A cell by its number plus one; 0 where there is no room for it.
    fn growth_cell(target: u32, cause: u32, path: u32) -> u32 = find_cell;
    /// Notes that a page was touched, or (`whole`) its whole region.
    pub(crate) fn growth_touch(target: u32, address: u64, whole: bool) -> () = touch;
}

#[inline(always)]
fn find_cell(target: u32, cause: u32, path: u32) -> u32 {
    let Some(claimed) = paths::claim(paths::of::GROWTH, cell_hash(target, cause, path)) else {
        losses::count(Loss::GrowthCellsFull);
        return 0;
    };
    let number = claimed.number() + 1;
    if let Some(cell) = cell(number) {
        // The program that has entered the hash may be preempted before it has filled the cell: until that is done each
        // fills it, with the same words.
        // SAFETY: map memory.
        unsafe {
            if (&raw const (*cell).cause).read_volatile() == 0 {
                (&raw mut (*cell).target).write_volatile(target);
                (&raw mut (*cell).path).write_volatile(path);
                (&raw mut (*cell).cause).write_volatile(cause);
            }
        }
    }
    number
}

#[inline(always)]
fn cell(number: u32) -> Option<*mut GrowthCell> {
    maps::GROWTH_CELLS.get_ptr_mut(number.wrapping_sub(1))
}

#[inline(always)]
fn thread(pid_tgid: u64) -> Option<*mut GrowthThread> {
    maps::GROWTH_THREADS.get_ptr_mut(pid_tgid as u32 & (GROWTH_THREADS as u32 - 1))
}

/// The thread begins to touch a page, or a system call (`page` 0): its cell.
///
/// A fault of the kernel is counted once it has brought something: when one of our own programs reads what is not there,
/// that is such a fault too, and brings nothing.
#[inline(always)]
pub(crate) fn begin(target: u32, cause: Cause, path: u32, page: u64) -> u32 {
    let number = growth_cell(target, cause as u32, path);
    let pid_tgid = bpf_get_current_pid_tgid();
    if let Some(thread) = thread(pid_tgid) {
        // SAFETY: map memory. Another thread with the same low bits may take it meanwhile: then `pid_tgid` differs.
        unsafe {
            atomic::store(&raw mut (*thread).pid_tgid, pid_tgid);
            atomic::store(&raw mut (*thread).page, page);
            atomic::store(&raw mut (*thread).cell, u64::from(number));
        }
    }
    if cause != Cause::KernelFault
        && let Some(cell) = cell(number)
    {
        // SAFETY: map memory.
        unsafe { atomic::add(&raw mut (*cell).events, 1) };
    }
    number
}

/// The system call that the thread has begun is over: the number of its cell plus one, which is its no more.
#[inline(always)]
pub(crate) fn end() -> u32 {
    let pid_tgid = bpf_get_current_pid_tgid();
    let Some(thread) = thread(pid_tgid) else { return 0 };
    // SAFETY: map memory.
    unsafe {
        if atomic::load(&raw const (*thread).pid_tgid) != pid_tgid {
            return 0;
        }
        atomic::swap(&raw mut (*thread).cell, 0) as u32
    }
}

/// One more than the number of a cell's call path.
#[inline(always)]
pub(crate) fn path_of(number: u32) -> u32 {
    // SAFETY: map memory.
    cell(number).map_or(0, |cell| unsafe { (*cell).path })
}

/// One more than the number of the kernel's stack at this moment; 0 where it is not wanted, or has no room.
#[inline(always)]
fn kernel_stack(ctx: &impl StackIdContext) -> u32 {
    if config::kernel_stacks() == 0 {
        return 0;
    }
    let found = ctx.get_stackid(&maps::KERNEL_STACKS, 0);
    let number = found.map_or(0, |number| number.cast_unsigned() as u32 + 1);
    if number < KERNEL_STACKS { number } else { 0 }
}

/// A page fault at an address of the process.
#[inline(always)]
pub(crate) fn fault(
    ctx: &impl StackIdContext,
    target: TargetValue,
    cause: Cause,
    address: u64,
    error: u64,
) {
    let target = target.target;
    // Registers are not even read where the path is not wanted: a fault is short.
    let path = match if config::growth_paths() == 0 { None } else { user_regs() } {
        Some(regs) => paths::of_user(&regs, target, cause == Cause::Fault),
        None => 0,
    };
    // A fault of the program has always the same.
    let stack = if cause == Cause::KernelFault { kernel_stack(ctx) } else { 0 };
    let number = begin(target, cause, with_stack(path, stack), address & !(PAGE - 1));
    if cause == Cause::KernelFault {
        return;
    }
    if let Some(cell) = cell(number) {
        // SAFETY: map memory.
        unsafe {
            if error & fault::WRITE != 0 {
                atomic::add(&raw mut (*cell).writes, 1);
            }
            if error & fault::PRESENT != 0 {
                atomic::add(&raw mut (*cell).present, 1);
            }
            if error & fault::INSTRUCTION != 0 {
                atomic::add(&raw mut (*cell).instructions, 1);
            }
        }
    }
    growth_touch(target, address, false);
}

#[inline(always)]
fn touch(target: u32, address: u64, whole: bool) {
    let key = RegionKey { target, reserved: 0, region: address / REGION };
    let pages = if let Some(pages) = maps::TOUCHED.get_ptr_mut(&key) {
        pages
    } else {
        let none = RegionPages { words: [0; REGION_WORDS] };
        // Another CPU may be first; then it is there.
        let _ = maps::TOUCHED.insert(&key, &none, BPF_NOEXIST);
        let Some(pages) = maps::TOUCHED.get_ptr_mut(&key) else {
            losses::count(Loss::GrowthPagesFull);
            return;
        };
        pages
    };
    let words: *mut u64 = pages.cast();
    // SAFETY: map memory; the index is masked to the array's length.
    unsafe {
        if whole {
            for word in 0..REGION_WORDS {
                atomic::store(words.add(word), u64::MAX);
            }
            return;
        }
        let page = (address / PAGE) as usize;
        let word = words.add(core::hint::black_box(page / 64) & (REGION_WORDS - 1));
        let bit = 1u64 << (page & 63);
        if atomic::load(word) & bit == 0 {
            atomic::or(word, bit);
        }
    }
}

/// What is known of a target's memory, entered if it is new.
#[inline(always)]
fn memory(target: u32) -> Option<*mut GrowthTarget> {
    if let Some(memory) = maps::GROWTH_TARGETS.get_ptr_mut(&target) {
        return Some(memory);
    }
    let none =
        GrowthTarget { mm_id: 0, known: 0, last: [0; member::COUNT], peak: [0; member::COUNT] };
    // Another thread of it may be first.
    let _ = maps::GROWTH_TARGETS.insert(&target, &none, BPF_NOEXIST);
    let memory = maps::GROWTH_TARGETS.get_ptr_mut(&target);
    if memory.is_none() {
        losses::count(Loss::GrowthCellsFull);
    }
    memory
}

/// The address space of a target is now of this size in one kind of memory. `own`: one of its threads has changed it.
#[inline(always)]
pub(crate) fn resized(
    ctx: &impl StackIdContext,
    target: TargetValue,
    own: bool,
    mm_id: u32,
    kind: u32,
    size: u64,
) {
    let Some(memory) = memory(target.target) else { return };
    let kind = kind as usize;
    if kind >= member::COUNT {
        return;
    }
    let pid_tgid = bpf_get_current_pid_tgid();
    let mut number = 0;
    let mut page = 0;
    if own && let Some(thread) = thread(pid_tgid) {
        // SAFETY: map memory.
        unsafe {
            if atomic::load(&raw const (*thread).pid_tgid) == pid_tgid {
                number = atomic::load(&raw const (*thread).cell) as u32;
                page = atomic::load(&raw const (*thread).page);
            }
        }
    }
    if number == 0 {
        let (cause, stack) =
            if own { (Cause::Other, kernel_stack(ctx)) } else { (Cause::Outside, 0) };
        number = growth_cell(target.target, cause as u32, with_stack(0, stack));
    }
    // SAFETY: map memory; `kind` is below the arrays' length.
    let delta = unsafe {
        if own && atomic::load(&raw const (*memory).mm_id) != u64::from(mm_id) {
            atomic::store(&raw mut (*memory).mm_id, u64::from(mm_id));
            if maps::ADDRESS_SPACES.insert(&mm_id, &target, 0).is_err() {
                losses::count(Loss::GrowthCellsFull);
            }
        }
        let at = core::hint::black_box(kind) & (member::COUNT - 1);
        let last = (&raw mut (*memory).last).cast::<u64>().add(at);
        let before = atomic::swap(last, size);
        let known = 1u64 << at;
        atomic::raise((&raw mut (*memory).peak).cast::<u64>().add(at), size);
        if atomic::load(&raw const (*memory).known) & known == 0
            && atomic::or(&raw mut (*memory).known, known) & known == 0
            && before == 0
        {
            // What was there before is not known; one page more or less is what a change mostly is.
            if page == 0 { 0 } else { PAGE }
        } else {
            size.wrapping_sub(before)
        }
    };
    if let Some(cell) = cell(number) {
        // SAFETY: map memory.
        unsafe {
            let at = core::hint::black_box(kind) & (member::COUNT - 1);
            atomic::add((&raw mut (*cell).rss).cast::<u64>().add(at), delta);
            if delta.cast_signed() > 0 && (*cell).cause == Cause::KernelFault as u32 {
                atomic::add(&raw mut (*cell).events, 1);
                growth_touch(target.target, page, false);
            }
        }
    }
    if kind == member::ANON && page != 0 && delta.cast_signed() >= REGION.cast_signed() {
        // One fault has brought a huge page.
        growth_touch(target.target, page, true);
    }
}

/// Sends one record of a system call.
#[inline(always)]
pub(crate) fn record(kind: MapKind, target: u32, path: u32, regs: &pt_regs) {
    let Some(mut entry) = maps::MAPPINGS.reserve::<MapRecord>(0) else {
        losses::count(Loss::MappingsLost);
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the record that was reserved; every field is written.
    unsafe {
        (*record).kind = kind as u32;
        (*record).target = target;
        (*record).tid = bpf_get_current_pid_tgid() as u32;
        (*record).path = path;
        (*record).address = regs.rdi;
        (*record).length = regs.rsi;
        (*record).third = regs.rdx;
        (*record).flags = regs.r10;
        (*record).result = regs.rax;
        (*record).ns = now();
    }
    entry.submit(0);
}
