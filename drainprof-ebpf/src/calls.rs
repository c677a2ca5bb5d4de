//! Calls from entry to return: one stack of frames per thread.
//!
//! A thread's state is touched by that thread only, and its hits do not nest (a uprobe does not fire
//! inside a uprobe program), so nothing here needs to be atomic.

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::bpf_get_current_pid_tgid};
use drainprof_common::{
    loss::Loss,
    maps::{Frame, MAX_FRAMES, ObjectKey, ThreadState},
    spec::Role,
};

use crate::{
    hit::{Hit, Operands},
    losses, maps,
};

const BPF_NOEXIST: u64 = 1;
const FRAME_MASK: u32 = MAX_FRAMES as u32 - 1;
const _: () = assert!(MAX_FRAMES.is_power_of_two(), "frame indices are masked");

#[inline(always)]
fn thread() -> Option<*mut ThreadState> {
    maps::THREADS.get_ptr_mut(bpf_get_current_pid_tgid())
}

#[inline(always)]
fn thread_or_make() -> Option<*mut ThreadState> {
    if let Some(state) = thread() {
        return Some(state);
    }
    let zero = maps::ZERO_THREAD.get_ptr(0)?;
    // SAFETY: a live value of the array map, which nobody writes.
    let inserted = unsafe { maps::THREADS.insert(bpf_get_current_pid_tgid(), &*zero, BPF_NOEXIST) };
    if inserted.is_err() {
        return None;
    }
    thread()
}

#[inline(always)]
fn frame(state: *mut ThreadState, index: u32) -> *mut Frame {
    // The compiler must not see where the index comes from: it would fold `depth - 1` and the mask into
    // an offset that the verifier takes for negative.
    let index = (core::hint::black_box(index) & FRAME_MASK) as usize;
    // SAFETY: the index is masked to the array's length.
    unsafe { (&raw mut (*state).frames).cast::<Frame>().add(index) }
}

/// Pushes the frame of a call that is followed to its return. `None`: a counted loss.
#[inline(always)]
pub(crate) fn enter(hit: &Hit, operands: &Operands) -> Option<*mut Frame> {
    let Some(state) = thread_or_make() else {
        losses::count(Loss::ThreadMapFull);
        return None;
    };
    // A tail call finds the address of the kernel's return trampoline, which starts a page, where its
    // return address should be: then the frame at the same stack pointer is its caller's and lives.
    let chained = hit.caller & 0xfff == 0;
    // SAFETY: map memory that only this thread touches.
    unsafe {
        if (*state).target != hit.target {
            (*state).target = hit.target;
            (*state).depth = 0;
        }
        let mut depth = (*state).depth;
        let mut abandoned = 0;
        // Frames below the stack pointer can never return: longjmp or an exception has left them. The
        // kernel drops its own records of them by the same rule.
        for _ in 0..MAX_FRAMES {
            if depth == 0 {
                break;
            }
            let top = frame(state, depth - 1);
            let dead = (*top).rsp < hit.rsp || ((*top).rsp == hit.rsp && !chained);
            if !dead {
                break;
            }
            depth -= 1;
            abandoned += 1;
        }
        if abandoned != 0 {
            losses::count_many(Loss::CallAbandoned, abandoned);
        }
        if depth >= MAX_FRAMES as u32 {
            (*state).depth = depth;
            losses::count(Loss::NestingTooDeep);
            return None;
        }
        let new = frame(state, depth);
        let caller =
            if chained && depth > 0 { (*frame(state, depth - 1)).caller } else { hit.caller };
        (*new).spec = hit.index;
        (*new).taken = 0;
        (*new).role = (*hit.spec).role;
        (*new).allocator = (*hit.spec).allocator;
        (*new).rsp = hit.rsp;
        (*new).args[0] = operands.0[0];
        (*new).args[1] = operands.0[1];
        (*new).args[2] = operands.0[2];
        (*new).args[3] = operands.0[3];
        (*new).args[4] = operands.0[4];
        (*new).args[5] = operands.0[5];
        (*new).caller = caller;
        (*new).nested_allocs = 0;
        (*state).depth = depth + 1;
        Some(new)
    }
}

/// Pops the frame of the call that returns now. `None`: its entry was not followed.
#[inline(always)]
pub(crate) fn leave<C: EbpfContext>(ctx: &C, hit: &mut Hit) -> Option<(*mut Frame, Operands)> {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    // SAFETY: a uretprobe's context is `pt_regs`.
    let (rsp, ret) = unsafe { ((*regs).rsp, (*regs).rax) };
    let Some(state) = thread() else {
        losses::count(Loss::ReturnUnmatched);
        return None;
    };
    // SAFETY: map memory that only this thread touches.
    unsafe {
        let depth = if (*state).target == hit.target { (*state).depth } else { 0 };
        let mut index = depth;
        let mut found = false;
        for _ in 0..MAX_FRAMES {
            if index == 0 {
                break;
            }
            index -= 1;
            let candidate = frame(state, index);
            // The return instruction has popped the return address.
            if (*candidate).spec == hit.index && (*candidate).rsp.wrapping_add(8) == rsp {
                found = true;
                break;
            }
        }
        if !found {
            losses::count(Loss::ReturnUnmatched);
            return None;
        }
        let abandoned = depth - 1 - index;
        if abandoned != 0 {
            losses::count_many(Loss::CallAbandoned, u64::from(abandoned));
        }
        (*state).depth = index;
        let own = frame(state, index);
        hit.rsp = (*own).rsp;
        hit.caller = (*own).caller;
        hit.nested = (*own).nested_allocs;
        let operands = Operands([
            (*own).args[0],
            (*own).args[1],
            (*own).args[2],
            (*own).args[3],
            (*own).args[4],
            (*own).args[5],
            ret,
            (*own).caller,
        ]);
        Some((own, operands))
    }
}

/// Tells the enclosing call, if one is followed, that an alloc was counted inside it.
#[inline(always)]
pub(crate) fn tell_outer_of_alloc() {
    let Some(state) = thread() else { return };
    // SAFETY: map memory that only this thread touches.
    unsafe {
        let depth = (*state).depth;
        if depth > 0 {
            let outer = frame(state, depth - 1);
            (*outer).nested_allocs += 1;
        }
    }
}

/// Whether this thread is inside a call that opens a granule of the allocator.
#[inline(never)]
pub(crate) fn open_in_flight(target: u32, allocator: u32) -> bool {
    any_frame(target, |frame| {
        // SAFETY: `any_frame` passes frames of this thread's live state.
        unsafe { (*frame).role == Role::Open as u32 && (*frame).allocator == allocator }
    })
}

/// Whether an enclosing call of this thread has taken the object out already: a wrapper's inner free.
#[inline(never)]
pub(crate) fn taken_by_outer(key: &ObjectKey) -> bool {
    any_frame(key.target, |frame| {
        // SAFETY: `any_frame` passes frames of this thread's live state.
        unsafe {
            (*frame).taken == 1
                && (*frame).taken_key.id == key.id
                && (*frame).taken_key.scope == key.scope
        }
    })
}

#[inline(always)]
fn any_frame(target: u32, holds: impl Fn(*mut Frame) -> bool) -> bool {
    let Some(state) = thread() else { return false };
    // SAFETY: map memory that only this thread touches.
    unsafe {
        if (*state).target != target {
            return false;
        }
        let depth = (*state).depth;
        for index in 0..MAX_FRAMES as u32 {
            if index >= depth {
                break;
            }
            if holds(frame(state, index)) {
                return true;
            }
        }
    }
    false
}

/// Forgets a thread; returns how many of its calls had not returned.
#[inline(always)]
pub(crate) fn forget(pid_tgid: u64) -> u32 {
    let Some(state) = maps::THREADS.get_ptr_mut(pid_tgid) else { return 0 };
    // SAFETY: map memory of a thread that is ending: nobody else touches it.
    let depth = unsafe { (*state).depth };
    // The entry was just found, and only this thread removes it.
    let _ = maps::THREADS.remove(pid_tgid);
    depth
}
