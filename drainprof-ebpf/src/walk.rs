//! Runs that take longer than a spec has instructions: those that walk over a list.
//!
//! The interpreter's step is the same as everywhere; only a walk's own step jumps back, and counts down
//! the nodes that are left to it, so every run ends. What stands here is the loop around the step. The
//! verifier goes through every round of a loop with a known bound, and there can be 393,216 steps: so
//! three short loops in global functions call one another, and each is verified once, round by round,
//! with nothing known of what it calls. (`bpf_loop` would do as well, but came only with Linux 5.17.)
//!
//! Called by `hit` where a run is not at its end after as many steps as a spec has instructions.

use drainprof_common::{
    interp::{self, MAX_RUN, Outcome, Values},
    spec::{MAX_STEPS, ProbeSpec},
};

use crate::hit::{GO_ON, Operands, interpret};

/// Rounds of the two outer loops.
const ROUNDS: usize = 64;
const _: () = assert!(
    MAX_STEPS * (1 + ROUNDS * ROUNDS) == MAX_RUN,
    "the steps of `hit`, and those of the three loops"
);

/// Goes on with a run until it ends: its [`Outcome`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn walk_on(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> u32 {
    for _ in 0..ROUNDS {
        let outcome = walk_far(state, spec, operands, values);
        if outcome != GO_ON {
            return outcome;
        }
    }
    Outcome::Fault as u32
}

/// The middle loop: an [`Outcome`] or [`GO_ON`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn walk_far(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> u32 {
    for _ in 0..ROUNDS {
        let outcome = walk_some(state, spec, operands, values);
        if outcome != GO_ON {
            return outcome;
        }
    }
    GO_ON
}

/// The inner loop: an [`Outcome`] or [`GO_ON`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn walk_some(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> u32 {
    for _ in 0..MAX_STEPS {
        let outcome = interpret(state, spec, operands, values);
        if outcome != GO_ON {
            return outcome;
        }
    }
    GO_ON
}
