//! What a probe's spec computes: its few simple forms in place, and one step of its byte code.
//!
//! `walk` repeats the step; `hit` decides which of the two a spec needs. What they mean is in `drainprof_common::interp`.

use drainprof_common::{
    interp::{self, INPUTS, Machine, Outcome, Registers, Values},
    spec::{MAX_SIMPLE, ProbeSpec, Simple, op},
};

use crate::{
    global::{global, scalars},
    memory::read_user,
};

/// What the interpreter works on: the inputs of a [`Registers`].
#[repr(C)]
pub(crate) struct Operands([u64; INPUTS]);

impl Machine for Operands {
    #[inline(always)]
    fn arg(&self, index: u8) -> u64 {
        self.input(index)
    }

    #[inline(always)]
    fn ret(&self) -> u64 {
        self.input(op::INPUT_RET)
    }

    #[inline(always)]
    fn caller(&self) -> Option<u64> {
        Some(self.input(op::INPUT_CALLER))
    }

    #[inline(always)]
    fn read(&self, address: u64, size: u8) -> Option<u64> {
        read_user(address, u32::from(size))
    }

    #[inline(always)]
    fn input(&self, index: u8) -> u64 {
        self.0[index as usize & 7]
    }
}

/// Computes one phase that needs no code, without a single call but the reads of target memory.
#[inline(always)]
pub(crate) fn run_simple(
    spec: *const ProbeSpec,
    registers: *mut Registers,
    first: u32,
    count: u32,
) -> Progress {
    // SAFETY: the spec is a live value of the array map; the registers live as long as the hit.
    let (all, operands, values) = unsafe {
        let all: *const Simple = (&raw const (*spec).simple).cast();
        let operands: *const Operands = (&raw const (*registers).inputs).cast();
        (all, &*operands, &mut (*registers).values)
    };
    for number in 0..MAX_SIMPLE as u32 {
        if number >= count {
            break;
        }
        let index = core::hint::black_box(first + number) & (MAX_SIMPLE as u32 - 1);
        // SAFETY: the index is masked to the array's length.
        let simple = unsafe { &*all.add(index as usize) };
        if let Some(outcome) = interp::run_simple(simple, operands, values) {
            return Progress::ended(outcome);
        }
    }
    Progress::ended(Outcome::Accepted)
}

/// How far a run has come. Not an enum: to decode one in the loops takes stack that there is not.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Progress(u32);

scalars! {
    Progress as u32: |progress: Progress| progress.0, Progress;
}

impl Progress {
    /// The run has not ended.
    pub(crate) const GOES_ON: Self = Self(u32::MAX);

    #[inline(always)]
    pub(crate) fn ended(outcome: Outcome) -> Self {
        Self(outcome as u32)
    }

    #[inline(always)]
    pub(crate) fn has_ended(self) -> bool {
        self.0 != Self::GOES_ON.0
    }

    /// Whether the run has ended so.
    #[inline(always)]
    pub(crate) fn is(self, outcome: Outcome) -> bool {
        self.0 == outcome as u32
    }
}

global! {
    /// One step: the verifier follows it once, instead of once per step with all that it could know of the stack.
    pub(crate) fn interpret(
        state: *mut interp::State, spec: *const ProbeSpec, operands: *const Operands, values: *mut Values
    ) -> Progress = step;
}

#[inline(always)]
fn step(
    state: *mut interp::State,
    spec: *const ProbeSpec,
    operands: *const Operands,
    values: *mut Values,
) -> Progress {
    if state.is_null() || spec.is_null() || operands.is_null() || values.is_null() {
        return Progress::ended(Outcome::Fault);
    }
    // SAFETY: `run` passes its own; the spec is a live value of the array map.
    let outcome = unsafe { interp::step(&mut *state, &*spec, &*operands, &mut *values) };
    outcome.map_or(Progress::GOES_ON, Progress::ended)
}
