//! Processes fork, exec and exit.
//!
//! Hooked tracepoints: `task:task_newtask`, `sched:sched_process_exec`, `sched:sched_process_exit`, and
//! `syscalls:sys_enter_exit` (a thread that ends itself, as opposed to its process). Their
//! fields' offsets differ between kernels; user space reads them from tracefs and sets them at load.

use aya_ebpf::{
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid},
    macros::tracepoint,
    programs::TracePointContext,
};
use drainprof_common::{
    event::EventKind,
    loss::Loss,
    maps::{ProgramName, TargetValue, cursor, program_flags, target_flags, target_word},
};

use crate::{
    atomic, calls, clock::now, config, diagnostics, emit, hit::current_target, losses, maps, paths,
    series,
};

const CLONE_VM: u64 = 0x100;
const CLONE_THREAD: u64 = 0x1_0000;
const ANY: u64 = 0;

#[tracepoint]
pub fn newtask(ctx: TracePointContext) -> u32 {
    try_newtask(&ctx);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_newtask(ctx: &TracePointContext) -> Option<()> {
    let parent = current_target()?;
    // SAFETY: the offsets are those of the running kernel, read from tracefs.
    let (pid, clone_flags) = unsafe {
        (
            ctx.read_at::<u32>(config::newtask_pid_offset() as usize).ok()?,
            ctx.read_at::<u64>(config::newtask_flags_offset() as usize).ok()?,
        )
    };
    if clone_flags & CLONE_THREAD != 0 {
        return Some(());
    }
    if clone_flags & CLONE_VM != 0 {
        // vfork: until it calls exec the child works on its parent's memory, so its hits are the parent's.
        let value =
            TargetValue { target: parent.target, flags: parent.flags | target_flags::BORROWED };
        enter_target(pid, value);
        return Some(());
    }
    if parent.flags & target_flags::FOLLOW == 0 {
        return Some(());
    }
    // The child does not run yet: nothing of it is missed. What it inherited was opened before.
    let target = next_target()?;
    paths::inherit(parent.target, target);
    let value = TargetValue { target, flags: target_flags::FOLLOW };
    enter_target(pid, value);
    announce(EventKind::Fork, parent.target, target, pid, pid);
    Some(())
}

/// A process that finds no room is not seen from its start.
#[inline(always)]
fn enter_target(tgid: u32, value: TargetValue) {
    if maps::TARGETS.insert(tgid, value, ANY).is_err() {
        losses::count(Loss::AttachedLate);
        return;
    }
    set_word(tgid, target_word::pack(tgid, value));
    // User space may have taken it out in between: then it is not to be found here either.
    if maps::TARGETS.get_ptr(tgid).is_none() {
        set_word(tgid, 0);
    }
}

#[inline(always)]
fn remove_target(tgid: u32) {
    set_word(tgid, 0);
    // It may have been taken out by user space already.
    let _ = maps::TARGETS.remove(tgid);
}

/// Changes the word in front of `TARGETS`, unless it is another process's.
#[inline(always)]
fn set_word(tgid: u32, word: u64) {
    let Some(at) = maps::TARGET_WORDS.get_ptr_mut(target_word::index(tgid)) else { return };
    // SAFETY: map memory, one word. Where the swap fails another process has taken the place.
    unsafe {
        let seen = atomic::load(at);
        if seen == 0 || target_word::unpack(seen, tgid).is_some() {
            atomic::compare_swap(at, seen, word);
        }
    }
}

#[inline(always)]
fn next_target() -> Option<u32> {
    series::take_cursor(cursor::TARGET, u32::MAX - 1)
}

#[inline(always)]
fn announce(kind: EventKind, target: u32, target_b: u32, process: u32, thread: u32) {
    emit::send(kind, target, now(), |event| {
        // SAFETY: the record that `send` has reserved.
        unsafe {
            (*event).tgid = process;
            (*event).tid = thread;
            (*event).target_b = target_b;
        }
    });
}

#[tracepoint]
pub fn exec(ctx: TracePointContext) -> u32 {
    try_exec(&ctx);
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_exec(ctx: &TracePointContext) -> Option<()> {
    let Some(old) = current_target() else { return newcomer() };
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    // The thread that called exec has the leader's id by now; its calls were filed under its own.
    // SAFETY: the offset is that of the running kernel, read from tracefs.
    let old_tid = unsafe { ctx.read_at::<u32>(config::exec_old_pid_offset() as usize) }.ok()?;
    let cut = calls::forget((u64::from(tgid) << 32) | u64::from(old_tid));
    if cut != 0 {
        losses::count_many(Loss::CallCutByExec, u64::from(cut));
    }
    if old.flags & target_flags::BORROWED != 0 && old.flags & target_flags::FOLLOW == 0 {
        remove_target(tgid);
        return Some(());
    }
    // The new image has not run yet, so it is observed from its start, as far as its probes are in place.
    let target = next_target()?;
    paths::own_space(target);
    let flags = (old.flags & target_flags::FOLLOW) | target_flags::FROM_START;
    enter_target(tgid, TargetValue { target, flags });
    if old.flags & target_flags::BORROWED != 0 {
        // A child of vfork that has its own image now: thread 0 distinguishes it from one that shares its parent's.
        announce(EventKind::Fork, old.target, target, tgid, 0);
    } else {
        announce(EventKind::Exec, old.target, target, tgid, old_tid);
    }
    Some(())
}

/// The name of the program that runs now, if it is one that is watched and `flag` is wanted of its processes.
#[inline(always)]
fn watched_name(flag: u32) -> Option<ProgramName> {
    let name = bpf_get_current_comm().ok()?;
    // SAFETY: copied out at once.
    let wanted = unsafe { maps::PROGRAM_NAMES.get(&name).copied() }?;
    (wanted & flag != 0).then_some(name)
}

/// Another process executes a program whose probes are in place already: it is a target from its first instruction on.
#[inline(always)]
fn newcomer() -> Option<()> {
    let name = watched_name(program_flags::ENTER)?;
    let tgid = (bpf_get_current_pid_tgid() >> 32) as u32;
    let target = next_target()?;
    paths::own_space(target);
    let flags = target_flags::FOLLOW | target_flags::FROM_START;
    enter_target(tgid, TargetValue { target, flags });
    let (first, last) = name.split_at(8);
    emit::send(EventKind::Exec, 0, now(), |event| {
        // SAFETY: the record that `send` has reserved.
        unsafe {
            (*event).tid = tgid;
            (*event).target_b = target;
            (*event).granule = u64::from_ne_bytes(first.try_into().unwrap_or_default());
            (*event).live = u64::from_ne_bytes(last.try_into().unwrap_or_default());
        }
    });
    Some(())
}

#[tracepoint]
pub fn thread_exit(_ctx: TracePointContext) -> u32 {
    try_thread_exit();
    diagnostics::report_event();
    0
}

/// A thread ends itself: calls that it is in are abandoned. (When a whole process ends, its threads do
/// not come by here; their calls are cut off, which says nothing about the process.)
#[inline(always)]
fn try_thread_exit() -> Option<()> {
    current_target()?;
    let abandoned = calls::forget(bpf_get_current_pid_tgid());
    if abandoned != 0 {
        losses::count_many(Loss::CallAbandoned, u64::from(abandoned));
    }
    Some(())
}

#[tracepoint]
pub fn exit(_ctx: TracePointContext) -> u32 {
    try_exit();
    diagnostics::report_event();
    0
}

#[inline(always)]
fn try_exit() {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tgid = (pid_tgid >> 32) as u32;
    let is_leader = tgid == pid_tgid as u32;
    let Some(target) = current_target() else {
        if is_leader && watched_name(program_flags::REPORT).is_some() {
            emit::send(EventKind::Exit, 0, now(), |_| {});
        }
        return;
    };
    let cut = calls::forget(pid_tgid);
    if target.flags & target_flags::BORROWED != 0 && is_leader {
        remove_target(tgid);
    }
    if cut != 0 {
        losses::count_many(Loss::CallCutByExit, u64::from(cut));
    }
    if is_leader {
        emit::send(EventKind::Exit, target.target, now(), |_| {});
    }
}
