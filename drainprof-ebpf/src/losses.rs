//! Counting what was lost.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use drainprof_common::{
    loss::{LOSS_SLOTS, Loss},
    maps::cursor,
};

use crate::{atomic, clock::now, config, diagnostics, global::global, maps};

/// Adds one to a loss.
#[inline(always)]
pub(crate) fn count(loss: Loss) {
    count_many(loss, 1);
}

/// Adds to a loss.
#[inline(always)]
pub(crate) fn count_many(loss: Loss, number: u64) {
    loss_add(loss as u32, number);
}

global! {
    /// Out of line: losses are rare, and counted nearly everywhere.
    fn loss_add(loss: u32, number: u64) -> () = add;
}

#[inline(always)]
fn add(loss: u32, number: u64) {
    diagnostics::note(loss);
    if let Some(slots) = maps::LOSSES.get_ptr_mut(counter_slot()) {
        // SAFETY: `slots` is map memory; the index is masked to its length.
        unsafe {
            atomic::add(
                slots.cast::<u64>().add(core::hint::black_box(loss) as usize & (LOSS_SLOTS - 1)),
                number,
            );
        }
    }
}

/// How often the time of a lost call is noted against other CPUs'.
const TRIES: usize = 4;

/// Counts a call whose entry is not followed. It may be about any object, so that the close of every granule that is
/// open now is unknown.
#[inline(always)]
pub(crate) fn count_call(loss: Loss) {
    count(loss);
    loss_call();
}

/// The return of a call whose entry was not followed: so it is for granules that were opened meanwhile.
#[inline(always)]
pub(crate) fn count_return(loss: Loss) {
    count(loss);
    // Before the first loss, it was entered before the attach.
    if last_call() != 0 {
        loss_call();
    }
}

/// When a call was last lost; 0: never.
#[inline(always)]
pub(crate) fn last_call() -> u64 {
    // SAFETY: map memory, one word.
    maps::CURSORS.get_ptr(cursor::LOST_CALL).map_or(0, |at| unsafe { atomic::load(at) })
}

global! {
    /// Notes the time of a lost call.
    fn loss_call() -> () = note_call;
}

#[inline(always)]
fn note_call() {
    let Some(at) = maps::CURSORS.get_ptr_mut(cursor::LOST_CALL) else { return };
    let time = now();
    for _ in 0..TRIES {
        // SAFETY: map memory, one word.
        let done = unsafe {
            let seen = atomic::load(at);
            seen >= time || atomic::compare_swap(at, seen, time) == seen
        };
        if done {
            break;
        }
    }
}

/// [`count_many`] without a call, where calls are nested so deep that the stack has no room for one more.
#[inline(always)]
pub(crate) fn count_here(loss: Loss, number: u64) {
    diagnostics::note(loss as u32);
    if let Some(slots) = maps::LOSSES.get_ptr_mut(counter_slot()) {
        // SAFETY: `slots` is map memory; a loss's number is below its length.
        unsafe { atomic::add(slots.cast::<u64>().add(loss as usize), number) };
    }
}

/// Which of the slots of counters is this CPU's; on large machines CPUs share them. They share with programs that
/// preempt them as well: a program's migration is off, its preemption is not, so that all counting is atomic.
#[inline(always)]
pub(crate) fn counter_slot() -> u32 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_get_smp_processor_id() & config::counter_slot_mask() }
}
