//! One thread's stack of frames: which of them live, pushing and popping.
//!
//! A function may be followed to its return for several specs: two roles of one profile, or two profiles. Its call then
//! has one frame for each, side by side, which leave in whatever order the kernel runs the programs. Called by `calls`,
//! which knows whose stack it is.

use drainprof_common::{
    loss::Loss,
    maps::{Frame, MAX_FRAMES, ThreadState},
    spec::{op, value},
};

use crate::{global::global, hit::Hit, losses, memory::return_address};

global! {
    /// Drops dead frames and pushes a new one, of the target (upper half of `whose`) and the spec (lower half): its
    /// index. `None`: there is no more room.
    pub(super) fn call_push(
        state: *mut ThreadState, whose: u64, rsp: u64, caller: u64, rip: u64
    ) -> Option<u32> = push;
    /// How many of the `depth` topmost frames are of the call of the function at `rip` that was entered with stack
    /// pointer `rsp`. If one of them is of the spec, they are of an earlier call, which was left without a return: none then.
    fn call_beside(state: *mut ThreadState, depth: u32, spec: u32, rsp: u64, rip: u64) -> u32 = beside;
    /// Finds and pops the frame of a call that has returned to stack pointer `rsp`: its index.
    pub(super) fn call_pop(state: *mut ThreadState, target: u32, spec: u32, rsp: u64) -> Option<u32> = pop;
    /// Drops the topmost frames if they have been left.
    pub(super) fn call_trim(state: *mut ThreadState) -> () = trim;
}

/// Instead of a spec's index: the frame has been left, but one beside it has not.
pub(super) const LEFT: u32 = u32::MAX;
const FRAME_MASK: u32 = MAX_FRAMES as u32 - 1;
const _: () = assert!(MAX_FRAMES.is_power_of_two(), "frame indices are masked");

#[inline(always)]
pub(super) fn frame(state: *mut ThreadState, index: u32) -> *mut Frame {
    // The compiler must not see where the index comes from: it would fold `depth - 1` and the mask into
    // an offset that the verifier takes for negative.
    let index = (core::hint::black_box(index) & FRAME_MASK) as usize;
    // SAFETY: the index is masked to the array's length.
    unsafe { (&raw mut (*state).frames).cast::<Frame>().add(index) }
}

/// A tail call finds the address of the kernel's return trampoline, which starts a page, where its
/// return address should be: then the frame at the same stack pointer is its caller's and lives.
#[inline(always)]
pub(super) fn is_chained(caller: u64) -> bool {
    caller << 52 == 0
}

/// Whether the call of a frame can still return, as seen by a call that was entered with stack pointer
/// `rsp`: frames below have been left by longjmp or an exception. The kernel drops its own records of
/// them by the same rule.
#[inline(always)]
pub(super) unsafe fn lives(frame: *const Frame, rsp: u64, chained: bool) -> bool {
    // SAFETY: the caller passes a frame of this thread's state.
    let at = unsafe { (*frame).rsp };
    at > rsp || (at == rsp && chained)
}

/// Makes the frame with this index the topmost one.
#[inline(always)]
pub(super) unsafe fn fill(state: *mut ThreadState, index: u32, spec: u32, rsp: u64, caller: u64) {
    let new = frame(state, index);
    // SAFETY: the caller's promise: map memory that only this thread touches.
    unsafe {
        (*new).spec = spec;
        (*new).taken = 0;
        (*new).rsp = rsp;
        (*new).registers.inputs[op::INPUT_CALLER as usize] = caller;
        // Else a hit that computes nothing would find what another one could not read.
        (*new).registers.values[value::LIVE as usize] = 0;
        (*new).nested_allocs = 0;
        (*state).depth = index + 1;
    }
}

#[inline(always)]
fn beside(state: *mut ThreadState, depth: u32, spec: u32, rsp: u64, rip: u64) -> u32 {
    if state.is_null() {
        return 0;
    }
    let mut count = 0;
    for _ in 0..MAX_FRAMES {
        if count >= depth {
            break;
        }
        let other = frame(state, depth - 1 - count);
        // SAFETY: map memory that only this thread touches.
        unsafe {
            if (*other).rsp != rsp || (*other).rip != rip {
                break;
            }
            if (*other).spec == spec || (*other).spec == LEFT {
                return 0;
            }
        }
        count += 1;
    }
    count
}

#[inline(always)]
fn push(state: *mut ThreadState, whose: u64, rsp: u64, caller: u64, rip: u64) -> Option<u32> {
    if state.is_null() {
        return None;
    }
    let (target, spec) = ((whose >> 32) as u32, whose as u32);
    // SAFETY: map memory that only this thread touches.
    unsafe {
        let mut depth = (*state).depth;
        if (*state).target != target {
            (*state).target = target;
            depth = 0;
        }
        let mut caller = caller;
        let mut chained = false;
        if depth > 0 && (*frame(state, depth - 1)).rsp == rsp {
            let found = if caller == 0 { return_address(rsp) } else { caller };
            chained = is_chained(found);
        }
        let mut abandoned = 0;
        if call_beside(state, depth, spec, rsp, rip) == 0 {
            for _ in 0..MAX_FRAMES {
                if depth == 0 || lives(frame(state, depth - 1), rsp, chained) {
                    break;
                }
                depth -= 1;
                abandoned += u64::from((*frame(state, depth)).spec != LEFT);
            }
        }
        if abandoned != 0 {
            losses::count_many(Loss::CallAbandoned, abandoned);
        }
        (*state).depth = depth;
        if depth >= MAX_FRAMES as u32 {
            return None;
        }
        if chained && depth > 0 {
            caller = (*frame(state, depth - 1)).registers.inputs[op::INPUT_CALLER as usize];
        }
        fill(state, depth, spec, rsp, caller);
        Some(depth)
    }
}

/// Whether the topmost frame is the one of the call that returns: nearly always.
#[inline(always)]
pub(super) unsafe fn returns_to(state: *mut ThreadState, hit: &Hit, rsp: u64) -> bool {
    // SAFETY: the caller's promise: map memory that only this thread touches.
    unsafe {
        let depth = (*state).depth;
        let top = frame(state, depth.wrapping_sub(1));
        (*state).target == hit.target && depth != 0 && is_of(top, hit.index, rsp)
    }
}

/// Whether a frame is of this probe's call that has returned to stack pointer `rsp`.
#[inline(always)]
pub(super) unsafe fn is_of(frame: *const Frame, spec: u32, rsp: u64) -> bool {
    // The return instruction has popped the return address.
    // SAFETY: the caller passes a frame of this thread's state.
    unsafe { (*frame).spec == spec && (*frame).rsp.wrapping_add(8) == rsp }
}

#[inline(always)]
fn pop(state: *mut ThreadState, target: u32, spec: u32, rsp: u64) -> Option<u32> {
    if state.is_null() {
        return None;
    }
    // SAFETY: map memory that only this thread touches.
    unsafe {
        let depth = if (*state).target == target { (*state).depth } else { 0 };
        let mut index = depth;
        for _ in 0..MAX_FRAMES {
            if index == 0 {
                break;
            }
            index -= 1;
            let candidate = frame(state, index);
            if is_of(candidate, spec, rsp) {
                leave_at(state, index, depth);
                return Some(index);
            }
        }
    }
    None
}

/// Takes the frame with this index off, of `depth`. Frames above it of the same call stay; others can no longer return.
#[inline(always)]
pub(super) unsafe fn leave_at(state: *mut ThreadState, index: u32, depth: u32) {
    // SAFETY: the caller's promise: map memory that only this thread touches.
    unsafe {
        let own = frame(state, index);
        let mut kept = index + 1;
        for _ in 0..MAX_FRAMES {
            let next = frame(state, kept);
            if kept >= depth || (*next).rsp != (*own).rsp || (*next).rip != (*own).rip {
                break;
            }
            kept += 1;
        }
        if kept < depth {
            losses::count_many(Loss::CallAbandoned, u64::from(depth - kept));
        }
        if kept == index + 1 {
            (*state).depth = index;
        } else {
            // The thread has left it.
            (*own).spec = LEFT;
            (*own).role = 0;
            (*own).allocator = LEFT;
            (*state).depth = kept;
        }
    }
    call_trim(state);
}

#[inline(always)]
fn trim(state: *mut ThreadState) {
    if state.is_null() {
        return;
    }
    // SAFETY: map memory that only this thread touches.
    unsafe {
        for _ in 0..MAX_FRAMES {
            let depth = (*state).depth;
            if depth == 0 || (*frame(state, depth - 1)).spec != LEFT {
                break;
            }
            (*state).depth = depth - 1;
        }
    }
}
