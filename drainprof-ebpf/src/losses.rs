//! Counting what was lost.

use aya_ebpf::helpers::bpf_get_smp_processor_id;
use drainprof_common::loss::{LOSS_COUNT, Loss};

use crate::{atomic, diagnostics, global::global, maps};

const _: () = assert!(LOSS_COUNT <= 32, "LossSlots holds 32");

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
    if let Some(slots) = maps::LOSSES.get_ptr_mut(cpu()) {
        // SAFETY: `slots` is map memory; the index is masked to its length.
        unsafe {
            atomic::add(slots.cast::<u64>().add(core::hint::black_box(loss) as usize & 31), number);
        }
    }
}

/// [`count_many`] without a call, where calls are nested so deep that the stack has no room for one more.
#[inline(always)]
pub(crate) fn count_here(loss: Loss, number: u64) {
    diagnostics::note(loss as u32);
    if let Some(slots) = maps::LOSSES.get_ptr_mut(cpu()) {
        // SAFETY: `slots` is map memory; a loss's number is below its length.
        unsafe { atomic::add(slots.cast::<u64>().add(loss as usize), number) };
    }
}

/// The CPU that this runs on. Migration is off while a program runs, preemption is not.
#[inline(always)]
pub(crate) fn cpu() -> u32 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_get_smp_processor_id() }
}
