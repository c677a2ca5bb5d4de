//! Arguments that are no longer in their registers where the probe sits.
//!
//! The planner says of each where it is at the chosen instruction (`ProbeSpec::arg_locations`); this fetches it.
//! Called by `hit` for the few probes whose spec says that an argument has moved.

use core::mem::MaybeUninit;

use aya_ebpf::bindings::pt_regs;
use drainprof_common::{
    loss::Loss,
    spec::{ArgLocation, ProbeSpec},
};

use crate::{losses, memory::read_user};

/// Arguments in registers.
const ARGUMENTS: usize = 6;

/// Overwrites the arguments that have moved among the six words at `inputs`; `false`: one cannot be read, which is counted.
///
/// A function of its own, so that the copy of the registers is not in its caller's stack frame; and not a
/// global one, because older kernels do not take a context as an argument of those.
#[inline(never)]
pub(crate) fn fetch(regs: *const pt_regs, spec: *const ProbeSpec, inputs: *mut u64) -> bool {
    let mut copy = MaybeUninit::<[u64; 16]>::uninit();
    let copy: *mut u64 = copy.as_mut_ptr().cast();
    // SAFETY: a uprobe's context is `pt_regs`, of which the verifier checks each load; all sixteen words
    // are written before one is read; the spec is a live value of the array map; the caller passes eight
    // words for its inputs.
    unsafe {
        // The order in which x86 encodes registers. The context can only be read at constant offsets.
        copy.write_volatile((*regs).rax);
        copy.add(1).write_volatile((*regs).rcx);
        copy.add(2).write_volatile((*regs).rdx);
        copy.add(3).write_volatile((*regs).rbx);
        copy.add(4).write_volatile((*regs).rsp);
        copy.add(5).write_volatile((*regs).rbp);
        copy.add(6).write_volatile((*regs).rsi);
        copy.add(7).write_volatile((*regs).rdi);
        copy.add(8).write_volatile((*regs).r8);
        copy.add(9).write_volatile((*regs).r9);
        copy.add(10).write_volatile((*regs).r10);
        copy.add(11).write_volatile((*regs).r11);
        copy.add(12).write_volatile((*regs).r12);
        copy.add(13).write_volatile((*regs).r13);
        copy.add(14).write_volatile((*regs).r14);
        copy.add(15).write_volatile((*regs).r15);
        for argument in 0..ARGUMENTS {
            if (*spec).moved >> argument & 1 == 0 {
                continue;
            }
            let location = (*spec).arg_locations[argument];
            let word = if location.register < ArgLocation::ON_STACK {
                copy.add(location.register as usize & 15).read_volatile()
            } else {
                let address = (*regs).rsp.wrapping_add_signed(i64::from(location.offset));
                // What the function has just pushed is there; if it is not, nothing is known of the hit.
                let Some(word) = read_user(address, 8) else {
                    losses::count(Loss::ReadFault);
                    return false;
                };
                word
            };
            inputs.add(argument).write(word);
        }
    }
    true
}
