//! The interpreter on code that no compiler would emit: it is the last line against a broken spec.

use std::cell::Cell;

use bytemuck::Zeroable;
use drainprof_common::{
    interp::{MAX_RUN, Machine, Outcome, Values, run},
    spec::{Insn, MAX_CODE, MAX_CONSTS, ProbeSpec, op, value},
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
    Insn { op: if known { operation % (op::IT + 1) } else { operation }, arg, target }
}

fn spec(code: &[Insn; MAX_CODE], constant: u64) -> ProbeSpec {
    ProbeSpec { code: *code, consts: [constant; MAX_CONSTS], ..ProbeSpec::zeroed() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Any bytes as code: the run ends without a panic, and asks for no more than it has steps, even
    /// where jumps go in circles.
    #[test]
    fn any_code_ends(
        bits in prop::collection::vec(any::<u32>(), MAX_CODE),
        constant in prop_oneof![0u64..10, any::<u64>()],
        start in any::<u16>(),
    ) {
        let mut code = [Insn::default(); MAX_CODE];
        for (slot, bits) in code.iter_mut().zip(bits) {
            *slot = insn(bits);
        }
        let machine = Counting::default();
        let mut values: Values = [0; value::COUNT];
        let outcome = run(&spec(&code, constant), start, &machine, &mut values);
        prop_assert!(outcome as u32 <= Outcome::Cut as u32);
        prop_assert!(machine.asked.get() <= MAX_RUN);
    }
}

/// A jump to itself runs out of steps and is a fault, not an endless loop.
#[test]
fn a_circle_runs_out_of_steps() {
    let jump = Insn { op: op::JUMP_IF_ZERO, arg: 0, target: 0 };
    let mut values = [0; value::COUNT];
    let outcome = run(&spec(&[jump; MAX_CODE], 0), 0, &Counting::default(), &mut values);
    assert_eq!(outcome, Outcome::Fault);
}

/// Code that never says END is a fault where it runs off its end.
#[test]
fn running_off_the_end_is_a_fault() {
    let code = [Insn { op: op::RET, arg: 0, target: 0 }; MAX_CODE];
    let mut values = [0; value::COUNT];
    let outcome = run(&spec(&code, 0), 90, &Counting::default(), &mut values);
    assert_eq!(outcome, Outcome::Fault);
}

/// What fails before the live count's code is the whole hit, what fails in it is that count alone.
#[test]
fn only_the_live_count_is_lost_with_itself() {
    // Two reads at address 0, which faults; the second one belongs to the live count.
    let mut code = [Insn::default(); MAX_CODE];
    for (slot, op) in code.iter_mut().zip([op::CONST, op::READ, op::STORE, op::CONST, op::READ]) {
        *slot = Insn { op, arg: 8 * u8::from(op == op::READ), target: 0 };
    }
    for (start, live_start, live) in [(0, 3, 0), (3, 3, value::UNREAD), (3, 0, 0)] {
        let spec = ProbeSpec { live_start, ..spec(&code, 0) };
        let mut values = [0; value::COUNT];
        assert_eq!(run(&spec, start, &Counting::default(), &mut values), Outcome::Fault);
        assert_eq!(values[usize::from(value::LIVE)], live, "from {start}");
    }
}
