//! The interpreter on code that no compiler would emit: it is the last line against a broken spec.

use std::cell::Cell;

use drainprof_common::{
    interp::{Machine, Outcome, Values, run},
    spec::{Insn, MAX_CODE, MAX_CONSTS, op},
};
use proptest::prelude::*;

/// Answers everything, faults where an address is a multiple of 7, and counts what it is asked.
#[derive(Default)]
struct Counting {
    asked: Cell<usize>,
}

impl Counting {
    fn asked(&self) {
        self.asked.set(self.asked.get() + 1);
    }
}

impl Machine for Counting {
    fn arg(&self, index: u8) -> u64 {
        self.asked();
        u64::from(index) * 3
    }

    fn ret(&self) -> u64 {
        self.asked();
        u64::MAX
    }

    fn caller(&self) -> Option<u64> {
        self.asked();
        Some(0x1234)
    }

    fn read(&self, address: u64, size: u8) -> Option<u64> {
        self.asked();
        (!address.is_multiple_of(7)).then_some(address ^ u64::from(size))
    }
}

/// An instruction from random bits: known operations three times out of four, else most runs would end
/// at once.
fn insn(bits: u32) -> Insn {
    let [operation, arg, low, high] = bits.to_le_bytes();
    let target = u16::from_le_bytes([low, high & 0x0f]);
    let known = high & 0x30 != 0;
    Insn { op: if known { operation % (op::GUARD + 1) } else { operation }, arg, target }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// Any bytes as code: the run ends without a panic, and asks for no more than it has steps, even
    /// where jumps go in circles.
    #[test]
    fn any_code_ends(
        bits in prop::collection::vec(any::<u32>(), MAX_CODE),
        constant in any::<u64>(),
        start in any::<u16>(),
    ) {
        let mut code = [Insn::default(); MAX_CODE];
        for (slot, bits) in code.iter_mut().zip(bits) {
            *slot = insn(bits);
        }
        let machine = Counting::default();
        let mut values: Values = [0; drainprof_common::spec::value::COUNT];
        let outcome = run(&code, &[constant; MAX_CONSTS], start, &machine, &mut values);
        prop_assert!(matches!(outcome, Outcome::Accepted | Outcome::Rejected | Outcome::Fault));
        prop_assert!(machine.asked.get() <= MAX_CODE);
    }
}

/// A jump to itself runs out of steps and is a fault, not an endless loop.
#[test]
fn a_circle_runs_out_of_steps() {
    let jump = Insn { op: op::JUMP_IF_ZERO, arg: 0, target: 0 };
    let code = [jump; MAX_CODE];
    let outcome = run(
        &code,
        &[0; MAX_CONSTS],
        0,
        &Counting::default(),
        &mut [0; drainprof_common::spec::value::COUNT],
    );
    assert_eq!(outcome, Outcome::Fault);
}

/// Code that never says END is a fault where it runs off its end.
#[test]
fn running_off_the_end_is_a_fault() {
    let code = [Insn { op: op::RET, arg: 0, target: 0 }; MAX_CODE];
    let outcome = run(
        &code,
        &[0; MAX_CONSTS],
        90,
        &Counting::default(),
        &mut [0; drainprof_common::spec::value::COUNT],
    );
    assert_eq!(outcome, Outcome::Fault);
}
