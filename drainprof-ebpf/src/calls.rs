//! Calls from entry to return: one stack of frames per thread.
//!
//! A thread's state is touched by that thread only, and its hits do not nest (a uprobe does not fire
//! inside a uprobe program), so nothing here needs to be atomic.

mod frames;

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::bpf_get_current_pid_tgid};
use drainprof_common::{
    loss::Loss,
    maps::{Frame, MAX_FRAMES, ObjectKey, ThreadState},
    spec::{Role, op},
};

use self::frames::{LEFT, call_pop, call_push, call_trim, fill, frame, returns_to};
use crate::{
    atomic, config,
    global::{global, scalars},
    hit::Hit,
    losses, maps, series,
};

const BPF_NOEXIST: u64 = 1;

/// The slot that the thread may have.
#[inline(always)]
fn slot(pid_tgid: u64) -> Option<*mut ThreadState> {
    maps::THREAD_SLOTS.get_ptr_mut(pid_tgid as u32 & config::thread_slot_mask())
}

/// What is known of a thread.
#[inline(always)]
fn thread_of(pid_tgid: u64) -> Option<*mut ThreadState> {
    let slot = slot(pid_tgid)?;
    // SAFETY: map memory, one word.
    if unsafe { atomic::load(&raw const (*slot).owner) } == pid_tgid {
        return Some(slot);
    }
    maps::THREADS.get_ptr_mut(pid_tgid)
}

#[inline(always)]
fn thread() -> Option<*mut ThreadState> {
    thread_of(bpf_get_current_pid_tgid())
}

#[inline(always)]
fn thread_or_make(pid_tgid: u64) -> Option<*mut ThreadState> {
    match thread_of(pid_tgid) {
        Some(state) => Some(state),
        None => make_thread(pid_tgid),
    }
}

/// Takes a slot for the thread if it is free, else makes an entry in the map.
#[inline(always)]
fn make_thread(pid_tgid: u64) -> Option<*mut ThreadState> {
    let slot = slot(pid_tgid)?;
    // SAFETY: map memory; the slot is this thread's alone once the swap has succeeded.
    unsafe {
        if atomic::compare_swap(&raw mut (*slot).owner, 0, pid_tgid) == 0 {
            (*slot).depth = 0;
            return Some(slot);
        }
    }
    let zero = maps::ZERO_THREAD.get_ptr(0)?;
    // SAFETY: a live value of the array map, which no program writes.
    let inserted = unsafe { maps::THREADS.insert(pid_tgid, &*zero, BPF_NOEXIST) };
    if inserted.is_err() {
        return None;
    }
    maps::THREADS.get_ptr_mut(pid_tgid)
}

/// Pushes the frame of a call that is followed to its return; the hit's operands are kept there. `None`: a
/// counted loss.
#[inline(always)]
pub(crate) fn enter<C: EbpfContext>(ctx: &C, hit: &mut Hit) -> Option<*mut Frame> {
    let Some(state) = thread_or_make(hit.pid_tgid) else {
        losses::count_call(Loss::ThreadMapFull);
        return None;
    };
    let caller = hit.enter(ctx);
    // SAFETY: map memory that only this thread touches.
    let outermost = unsafe { (*state).target == hit.target && (*state).depth == 0 };
    let regs: *const pt_regs = ctx.as_ptr().cast();
    // SAFETY: a uprobe's context is `pt_regs`.
    let rip = unsafe { (*regs).rip };
    let index = if outermost {
        // SAFETY: as above.
        unsafe { fill(state, 0, hit.index, hit.rsp, caller) };
        Some(0)
    } else {
        let whose = u64::from(hit.target) << 32 | u64::from(hit.index);
        call_push(state, whose, hit.rsp, caller, rip)
    };
    let Some(index) = index else {
        losses::count_call(Loss::NestingTooDeep);
        return None;
    };
    let new = frame(state, index);
    // SAFETY: map memory that only this thread touches; a uprobe's context is `pt_regs`.
    unsafe {
        (*new).rip = rip;
        (*new).role = (*hit.spec).role;
        (*new).allocator = (*hit.spec).allocator;
        (*new).registers.inputs[0] = (*regs).rdi;
        (*new).registers.inputs[1] = (*regs).rsi;
        (*new).registers.inputs[2] = (*regs).rdx;
        (*new).registers.inputs[3] = (*regs).rcx;
        (*new).registers.inputs[4] = (*regs).r8;
        (*new).registers.inputs[5] = (*regs).r9;
        hit.registers = &raw mut (*new).registers;
    }
    Some(new)
}

/// Pops the frame of the call that returns now. `None`: its entry was not followed.
#[inline(always)]
pub(crate) fn leave<C: EbpfContext>(ctx: &C, hit: &mut Hit) -> Option<*mut Frame> {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    // SAFETY: a uretprobe's context is `pt_regs`.
    let (rsp, ret) = unsafe { ((*regs).rsp, (*regs).rax) };
    let state = thread_of(hit.pid_tgid).unwrap_or(core::ptr::null_mut());
    // SAFETY: map memory that only this thread touches.
    let index = unsafe {
        if state.is_null() {
            None
        } else if returns_to(state, hit, rsp) {
            let index = (*state).depth - 1;
            (*state).depth = index;
            if index != 0 && (*frame(state, index - 1)).spec == LEFT {
                call_trim(state);
            }
            Some(index)
        } else {
            call_pop(state, hit.target, hit.index, rsp)
        }
    };
    let Some(index) = index else {
        losses::count_return(Loss::ReturnUnmatched);
        return None;
    };
    let own = frame(state, index);
    // SAFETY: map memory that only this thread touches.
    unsafe {
        (*own).registers.inputs[op::INPUT_RET as usize] = ret;
        hit.rsp = (*own).rsp;
        hit.registers = &raw mut (*own).registers;
        hit.nested = (*own).nested_allocs;
        Some(own)
    }
}

/// Notes in the enclosing call of the same allocator, if one is followed, that an alloc was counted inside it.
#[inline(always)]
pub(crate) fn note_in_outer_call(hit: &Hit) {
    call_nested(hit.target, hit.allocator(), hit.rsp);
}

global! {
    /// Counts an alloc in the innermost live frame of the allocator around the call that was entered with stack pointer
    /// `rsp`.
    fn call_nested(target: u32, allocator: u32, rsp: u64) -> () = count_nested;
    /// Whether a live frame around the call that was entered with stack pointer `rsp` has taken the object.
    fn call_has_taken(target: u32, scope: u32, id: u64, rsp: u64) -> bool = has_taken;
    /// The return address of the innermost call of ours that was entered with stack pointer `rsp`, 0 where there is
    /// none or it was not read.
    pub(crate) fn call_return_address(pid_tgid: u64, target: u32, rsp: u64) -> u64 = find_return_address;
}

#[inline(always)]
fn count_nested(target: u32, allocator: u32, rsp: u64) {
    let found = innermost(target, |frame| {
        // SAFETY: `innermost` passes frames of this thread's live state.
        unsafe { (*frame).allocator == allocator && (*frame).rsp >= rsp }
    });
    if let Some(outer) = found {
        // SAFETY: as above.
        unsafe { (*outer).nested_allocs += 1 };
    }
}

/// A call that opens a granule and has not returned: its return address, which may not be known.
pub(crate) struct OpenCall(u64);

impl OpenCall {
    /// Instead of a return address.
    const NOT_WANTED: u64 = 1;

    /// The return address; 0 where it was not wanted.
    #[inline(always)]
    pub(crate) fn caller(self) -> u64 {
        if self.0 == Self::NOT_WANTED { 0 } else { self.0 }
    }
}

scalars! {
    Option<OpenCall> as u64: |call: Option<OpenCall>| call.map_or(0, |call| call.0), |raw| match raw {
        0 => None,
        caller => Some(OpenCall(caller)),
    };
}

global! {
    /// The call of the series' allocator that opens a granule and that this thread is inside of, if any.
    pub(crate) fn open_in_flight(series: u32, rsp: u64) -> Option<OpenCall> = find_open_call;
}

#[inline(always)]
fn find_open_call(series: u32, rsp: u64) -> Option<OpenCall> {
    let state = series::state(series)?;
    // SAFETY: map memory; the key is written before the series is handed out.
    let (target, allocator) = unsafe { ((*state).key.target, (*state).key.allocator) };
    let found = innermost(target, |frame| {
        // SAFETY: `innermost` passes frames of this thread's live state.
        unsafe {
            (*frame).role == Role::Open as u32
                && (*frame).allocator == allocator
                && (*frame).rsp >= rsp
        }
    })?;
    // SAFETY: as above.
    let caller = unsafe { (*found).registers.inputs[op::INPUT_CALLER as usize] };
    Some(OpenCall(if caller == 0 { OpenCall::NOT_WANTED } else { caller }))
}

/// Whether an enclosing call of this thread has taken the object out already: a wrapper's inner free.
#[inline(always)]
pub(crate) fn taken_by_outer(hit: &Hit, key: &ObjectKey) -> bool {
    call_has_taken(key.target, key.scope, key.id, hit.rsp)
}

#[inline(always)]
fn has_taken(target: u32, scope: u32, id: u64, rsp: u64) -> bool {
    let found = innermost(target, |frame| {
        // SAFETY: `innermost` passes frames of this thread's live state.
        unsafe {
            (*frame).taken == 1
                && (*frame).spec != LEFT
                && (*frame).taken_key.id == id
                && (*frame).taken_key.scope == scope
                && (*frame).rsp >= rsp
        }
    });
    found.is_some()
}

#[inline(always)]
fn innermost(target: u32, holds: impl Fn(*mut Frame) -> bool) -> Option<*mut Frame> {
    let state = thread()?;
    // SAFETY: map memory that only this thread touches.
    unsafe {
        if (*state).target != target {
            return None;
        }
        let mut index = (*state).depth;
        for _ in 0..MAX_FRAMES {
            if index == 0 {
                break;
            }
            index -= 1;
            let candidate = frame(state, index);
            if holds(candidate) {
                return Some(candidate);
            }
        }
    }
    None
}

#[inline(always)]
fn find_return_address(pid_tgid: u64, target: u32, rsp: u64) -> u64 {
    let mut found = 0;
    for number in 0..MAX_FRAMES {
        let (at, caller) = call_at(pid_tgid, target, number);
        if at == rsp && caller != 0 {
            found = caller;
        }
    }
    found
}

/// Stack pointer at entry and return address of a thread's call by its number, the outermost first; zeros where it is
/// in none, or the return address was not read.
#[inline(always)]
pub(crate) fn call_at(pid_tgid: u64, target: u32, number: usize) -> (u64, u64) {
    let Some(state) = thread_of(pid_tgid) else { return (0, 0) };
    // SAFETY: map memory that only this thread touches.
    unsafe {
        if (*state).target != target || number as u32 >= (*state).depth {
            return (0, 0);
        }
        let frame = frame(state, number as u32);
        ((*frame).rsp, (*frame).registers.inputs[op::INPUT_CALLER as usize])
    }
}

/// Forgets a thread; returns how many of its calls had not returned.
#[inline(always)]
pub(crate) fn forget(pid_tgid: u64) -> u32 {
    if let Some(slot) = slot(pid_tgid) {
        // SAFETY: map memory of a thread that is ending: no other touches it until it has no owner.
        unsafe {
            if atomic::load(&raw const (*slot).owner) == pid_tgid {
                let depth = (*slot).depth;
                atomic::store(&raw mut (*slot).owner, 0);
                return depth;
            }
        }
    }
    let Some(state) = maps::THREADS.get_ptr_mut(pid_tgid) else { return 0 };
    // SAFETY: map memory of a thread that is ending: no other touches it.
    let depth = unsafe { (*state).depth };
    // The entry was just found, and only this thread removes it.
    let _ = maps::THREADS.remove(pid_tgid);
    depth
}
