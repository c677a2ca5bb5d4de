//! The loop around the interpreter's step, long enough for what walks over a list.
//!
//! The step is the same as on the host; only a walk's own step jumps back, and counts down the nodes that
//! are left to it, so every run ends. The verifier goes through every round of a loop with a known bound,
//! and there can be 491,520 steps: so short loops in global functions call one another, and each is
//! verified once, round by round, with nothing known of what it calls. (`bpf_loop` would do as well, but
//! came only with Linux 5.17.)
//!
//! Called by `hit` for every run; one that walks no list is at its end after the first of the loops.

use core::mem::MaybeUninit;

use drainprof_common::{
    interp::{self, MAX_RUN, Outcome, Values},
    spec::{MAX_STEPS, ProbeSpec},
};

use crate::{
    global::global,
    interpreter::{Operands, Progress, interpret},
};

/// Runs one phase's code. A function of its own, so that its stack is not added to its caller's frame.
#[inline(never)]
pub(crate) fn run(
    spec: *const ProbeSpec,
    start: u16,
    operands: *const Operands,
    values: *mut Values,
) -> Progress {
    let mut state = MaybeUninit::<interp::State>::uninit();
    let state = state.as_mut_ptr();
    // SAFETY: every field is written before it is read; the spec is a live value of the array map.
    unsafe {
        clear_words::<{ size_of::<interp::State>() / 8 }>(state.cast());
        (*state).pc = u32::from(start);
    }
    to_the_end(state, spec, operands, values)
}

#[inline(always)]
unsafe fn clear_words<const N: usize>(words: *mut u64) {
    for index in 0..N {
        // SAFETY: the caller's promise.
        unsafe { words.add(index).write_volatile(0) };
    }
}

/// Steps until the run has ended.
#[inline(always)]
fn to_the_end(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> Progress {
    let progress = run_some(state, spec, operands, values);
    if progress.has_ended() {
        return progress;
    }
    // This loop is no function of its own: each one takes at least 32 bytes of the 512 of the stack on
    // kernels that round up (seen: 6.1), and the longest chain of calls is near to them.
    for _ in 0..ROUNDS {
        let progress = walk_far(state, spec, operands, values);
        if progress.has_ended() {
            return progress;
        }
    }
    Progress::ended(Outcome::Fault)
}

/// Rounds of each outer loop.
const ROUNDS: usize = 64;
const _: () = assert!(MAX_STEPS * ROUNDS * ROUNDS + MAX_STEPS == MAX_RUN, "the steps of all loops");

global! {
    /// As many steps as a spec has instructions: every run, but those that walk, has ended after them.
    fn run_some(
        state: *mut interp::State, spec: *const ProbeSpec, operands: *const Operands, values: *mut Values
    ) -> Progress = steps;
    /// The middle loop.
    fn walk_far(
        state: *mut interp::State, spec: *const ProbeSpec, operands: *const Operands, values: *mut Values
    ) -> Progress = rounds;
}

/// Loops around a function: it goes on while that one has not ended, and may be entered again.
macro_rules! loops {
    ($($name:ident: $rounds:expr, $step:ident;)*) => {
        $(#[inline(always)]
        fn $name(
            state: *mut interp::State,
            spec: *const ProbeSpec,
            operands: *const Operands,
            values: *mut Values,
        ) -> Progress {
            for _ in 0..$rounds {
                let progress = $step(state, spec, operands, values);
                if progress.has_ended() {
                    return progress;
                }
            }
            Progress::GOES_ON
        })*
    };
}

loops! {
    steps: MAX_STEPS, interpret;
    rounds: ROUNDS, run_some;
}
