//! How every program that a uprobe or uretprobe runs is declared: so that no thread meets another one's stack frame.
//!
//! Since Linux 6.13 the kernel may give the functions of a program a *private stack*: one per program and CPU, instead of
//! the thread's kernel stack. It takes for granted that a program is not entered again on its CPU before it has ended.
//! Programs on kprobes and tracepoints are guarded against that, programs on uprobes are not, and they are preemptible: two
//! threads in the same program on one CPU would overwrite each other's frames, and the kernel would crash. A program that
//! may call another one by a *tail call* gets no private stack, nor do its functions. So each of these programs has such a
//! call, which it never makes. The loader makes sure of it again, from what the kernel has loaded.

use aya_ebpf::{EbpfContext, bindings::pt_regs};

use crate::maps;

/// Declares programs: `entry fn` for the entry of a function, or any other place in it, `return fn` for its return.
macro_rules! programs {
    () => {};
    ($(#[$doc:meta])* entry fn $name:ident($ctx:ident) { $($body:tt)* } $($more:tt)*) => {
        $(#[$doc])*
        #[aya_ebpf::macros::uprobe]
        pub fn $name($ctx: aya_ebpf::programs::ProbeContext) -> u32 {
            $crate::probes::program::use_the_threads_stack(&$ctx);
            $($body)*
            0
        }

        programs! { $($more)* }
    };
    ($(#[$doc:meta])* return fn $name:ident($ctx:ident) { $($body:tt)* } $($more:tt)*) => {
        $(#[$doc])*
        #[aya_ebpf::macros::uretprobe]
        pub fn $name($ctx: aya_ebpf::programs::RetProbeContext) -> u32 {
            $crate::probes::program::use_the_threads_stack(&$ctx);
            $($body)*
            0
        }

        programs! { $($more)* }
    };
}
pub(super) use programs;

/// A tail call that is never made: a program runs on behalf of a thread in user mode, whose code segment is never 0, which
/// the verifier does not know. Were it made, there would be no program to go to, and it would go on here.
#[inline(always)]
pub(super) fn use_the_threads_stack<C: EbpfContext>(ctx: &C) {
    let regs: *const pt_regs = ctx.as_ptr().cast();
    // SAFETY: a uprobe's context is `pt_regs`. The array of programs is empty.
    unsafe {
        if (*regs).cs == 0 {
            maps::NO_PROGRAM.tail_call(ctx, 0);
        }
    }
}
