//! The loop around the interpreter's step, long enough for what walks over a list.
//!
//! The step is the same as on the host; only a walk's own step jumps back, and counts down the nodes that
//! are left to it, so every run ends. The verifier goes through every round of a loop with a known bound,
//! and there can be 393,216 steps: so short loops in global functions call one another, and each is
//! verified once, round by round, with nothing known of what it calls. (`bpf_loop` would do as well, but
//! came only with Linux 5.17.)
//!
//! Called by `hit` for every run; one that walks no list is at its end after the first of the loops.

use drainprof_common::{
    interp::{self, MAX_RUN, Outcome, Values},
    spec::{MAX_STEPS, ProbeSpec},
};

use crate::hit::{GO_ON, Operands, interpret};

/// Steps until the run has ended: its [`Outcome`].
#[inline(always)]
pub(crate) fn to_the_end(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> u32 {
    let outcome = run_some(state, spec, operands, values);
    if outcome != GO_ON {
        return outcome;
    }
    // This loop is no function of its own: each one takes at least 32 bytes of the 512 of the stack on
    // kernels that round up (seen: 6.1), and the longest chain of calls is near to them.
    for _ in 0..ROUNDS {
        let outcome = walk_far(state, spec, operands, values);
        if outcome != GO_ON {
            return outcome;
        }
    }
    Outcome::Fault as u32
}

/// Rounds of each outer loop.
const ROUNDS: usize = 64;
const _: () = assert!(MAX_STEPS * ROUNDS * ROUNDS + MAX_STEPS == MAX_RUN, "the steps of all loops");

/// A loop around a function: it goes on while that one says so, and may be entered again.
macro_rules! rounds {
    ($($(#[$doc:meta])* $name:ident: $rounds:expr, $step:ident;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        #[inline(never)]
        pub(crate) extern "C" fn $name(
            state: *mut interp::State,
            spec: *const ProbeSpec,
            operands: *const Operands,
            values: *mut Values,
        ) -> u32 {
            for _ in 0..$rounds {
                let outcome = $step(state, spec, operands, values);
                if outcome != GO_ON {
                    return outcome;
                }
            }
            GO_ON
        })*
    };
}

rounds! {
    /// As many steps as a spec has instructions: every run, but those that walk, has ended after them.
    run_some: MAX_STEPS, interpret;
    /// The middle loop.
    walk_far: ROUNDS, run_some;
}
