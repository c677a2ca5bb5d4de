//! Call paths: the callers of a hit.
//!
//! The stack is unwound here, by the rules of the code addresses on it, which user space teaches as they are
//! met. Where a rule is missing, what is left of the stack is sent to user space, once per shape of
//! stack; until the rule is there, the path is known by that shape.
//!
//! A walk works in a piece of map memory of its own: the programs can be preempted, and the BPF stack is small.

mod snapshot;
mod table;
mod unwind;

use aya_ebpf::{EbpfContext, bindings::pt_regs, helpers::bpf_get_current_pid_tgid};
use drainprof_common::{
    loss::Loss,
    paths::{SPACES, WalkState, end},
    spec::AT_SITE,
    unwind::{Cursor, PATH_SEED, path_hash, step},
};

pub(crate) use self::table::{claim, of};
use crate::{
    atomic, config,
    global::{global, scalars},
    hit::Hit,
    losses, maps,
};

/// How many pieces of working memory are tried that lie beside the CPU's, and are warm in its cache.
const NEAR: u32 = 4;
/// How many in all. A thread can be preempted in a walk, for seconds where others have a higher priority, and holds its
/// piece meanwhile; so the further ones are tried from where the thread's number leads: few threads begin in one place.
const TRIES: u32 = 16;

/// The call path of a hit: one more than its number, 0 for none. Of a probe at return, the path begins with the
/// caller, as it does of one at entry.
#[inline(always)]
pub(crate) fn of_hit<C: EbpfContext>(ctx: &C, hit: &Hit, at_return: bool) -> u32 {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    // SAFETY: a uprobe's context is `pt_regs`; the verifier checks each load.
    let (pc, sp, bp) = unsafe { ((*regs).rip, (*regs).rsp, (*regs).rbp) };
    // SAFETY: the spec is a live value of the array map.
    let moved = unsafe { (*hit.spec).stack_moved };
    // 0: at the function's first instruction, or as good as that.
    let begin = if at_return {
        Begin::AtCaller
    } else if moved == AT_SITE {
        Begin::AtPlace
    } else if moved == 0 {
        Begin::AtEntry
    } else {
        Begin::Inside
    };
    let Some(walk) = take() else {
        losses::count(Loss::PathNotWalked);
        return 0;
    };
    // SAFETY: map memory that is ours until `busy` is 0 again.
    unsafe {
        (*walk).at = Cursor { pc, sp, bp, interrupted: 0 };
        (*walk).target = hit.target;
        let path = path_find(walk, begin);
        atomic::store(&raw mut (*walk).busy, 0);
        path
    }
}

/// The call path at which a thread has left its program, for a fault (`interrupted`) or a system call: one more than its
/// number, 0 for none.
#[inline(always)]
pub(crate) fn of_user(regs: &pt_regs, target: u32, interrupted: bool) -> u32 {
    path_of_user(regs.rip, regs.rsp, regs.rbp, target, interrupted)
}

global! {
    /// [`of_user`], out of line for the sake of its callers' stacks.
    fn path_of_user(pc: u64, sp: u64, bp: u64, target: u32, interrupted: bool) -> u32 = find_of_user;
    /// Walks up the stack from the walk's cursor: one more than the path's number, 0 for none.
    fn path_find(walk: *mut WalkState, begin: Begin) -> u32 = find;
}

#[inline(always)]
fn find_of_user(pc: u64, sp: u64, bp: u64, target: u32, interrupted: bool) -> u32 {
    let Some(walk) = take() else {
        losses::count(Loss::PathNotWalked);
        return 0;
    };
    // A system call's address is the one behind it, as that of any call.
    let begin = if interrupted { Begin::AtPlace } else { Begin::AtCaller };
    // SAFETY: map memory that is ours until `busy` is 0 again.
    unsafe {
        (*walk).at = Cursor { pc, sp, bp, interrupted: 0 };
        (*walk).target = target;
        let path = path_find(walk, begin);
        atomic::store(&raw mut (*walk).busy, 0);
        path
    }
}

/// Where a walk's cursor stands at first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// At the caller already.
    AtCaller,
    /// At the first instruction of a function: the return address stands at the stack pointer.
    AtEntry,
    /// Further inside: a rule says where the return address is.
    Inside,
    /// Somewhere in a function, and this place is the first frame.
    AtPlace,
}

scalars! {
    Begin as u32: |begin| begin as u32, |raw| match raw {
        0 => Begin::AtCaller,
        1 => Begin::AtEntry,
        2 => Begin::Inside,
        _ => Begin::AtPlace,
    };
}

/// Takes a piece of working memory.
#[inline(always)]
fn take() -> Option<*mut WalkState> {
    let (near, far) = (losses::counter_slot() * NEAR, bpf_get_current_pid_tgid() as u32);
    for number in 0..TRIES {
        let index = if number < NEAR { near + number } else { far.wrapping_add(number) };
        let walk = maps::WALKS.get_ptr_mut(index & config::walk_mask())?;
        // SAFETY: map memory, one word.
        if unsafe { atomic::compare_swap(&raw mut (*walk).busy, 0, 1) } == 0 {
            return Some(walk);
        }
    }
    None
}

#[inline(always)]
fn find(walk: *mut WalkState, begin: Begin) -> u32 {
    if walk.is_null() {
        return 0;
    }
    // SAFETY: map memory that the caller has taken.
    unsafe {
        (*walk).space = space((*walk).target);
        (*walk).pid_tgid = bpf_get_current_pid_tgid();
        (*walk).frames = 0;
        (*walk).hash = PATH_SEED;
        (*walk).window_len = 0;
        (*walk).end = step::CALLER;
        if begin == Begin::AtCaller {
            unwind::add(walk);
        } else if begin == Begin::AtEntry {
            unwind::enter(walk);
        } else {
            (*walk).at.interrupted = 1;
            if begin == Begin::AtPlace {
                unwind::add(walk);
            }
        }
        unwind::path_walk(walk);
        let reason = (*walk).end;
        if reason == step::UNKNOWN {
            return snapshot::path_unknown(walk);
        }
        let reason = if reason == step::START {
            end::START
        } else if reason == step::STOP {
            end::STOP
        } else if reason == step::UNREADABLE {
            end::UNREADABLE
        } else {
            end::TOO_DEEP
        };
        (*walk).hash = path_hash((*walk).hash, u64::from(reason));
        table::path_enter(walk, reason)
    }
}

/// The address space of a target: that of the process that it was forked by, or its own.
#[inline(always)]
fn space(target: u32) -> u32 {
    let own = target & (SPACES as u32 - 1);
    match maps::SPACES.get_ptr(own) {
        // SAFETY: map memory, one word.
        Some(space) => match unsafe { atomic::load(space) } as u32 {
            0 => own,
            space => space,
        },
        None => own,
    }
}

/// A new image has an address space of its own, whatever the number stood for before.
#[inline(always)]
pub(crate) fn own_space(target: u32) {
    if let Some(at) = maps::SPACES.get_ptr_mut(target & (SPACES as u32 - 1)) {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(at, 0) };
    }
}

/// A child works in a copy of its parent's memory: what is known of that holds for it.
#[inline(always)]
pub(crate) fn inherit(parent: u32, child: u32) {
    if let Some(at) = maps::SPACES.get_ptr_mut(child & (SPACES as u32 - 1)) {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(at, u64::from(space(parent))) };
    }
}
