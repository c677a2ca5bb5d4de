//! The nop behind a USDT probe's own that the kernel replaces by a call: pure.
//!
//! Headers put a nop of one byte where the note says, which every kernel emulates, and one behind it that newer ones
//! replace by a call: of five bytes, later of ten. A probe may sit on either, if nothing jumps between them: an
//! alignment's padding looks the same. Called by `sites` for each site of a USDT probe.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use super::{
    jumps::Inner,
    kind::is_nop,
    price::{InstructionCost, calls, cost_of},
};
use crate::plan::cost::{Costs, InstructionKind, Treatment};

/// Most nops in a row that are examined, the probe's own included.
const MAX_NOPS: usize = 3;

/// The nop behind the one at `own` that is replaced by a call, and its distance from `own`; `None` where there is none, or
/// where it is not certain that each pass over one is a pass over the other.
///
/// `code` is the whole function, which begins at `start`. `jumps` says whether anything in the object could jump to an
/// address between two others, both included; it is asked at most once.
#[must_use]
pub(crate) fn call_beside(
    (code, start): (&[u8], u64),
    own: u64,
    costs: &Costs,
    jumps: &dyn Fn(u64, u64) -> bool,
) -> Option<(u32, InstructionCost)> {
    let behind = code.get(usize::try_from(own.checked_sub(start)?).ok()?..)?;
    let nops = Decoder::with_ip(64, behind, own, DecoderOptions::NONE)
        .into_iter()
        .take(MAX_NOPS)
        .map(|instruction| (cost_of(&instruction, code, start, costs), instruction))
        .take_while(|(here, _)| is_nop(here.kind));
    let is_call = |here: &InstructionCost| costs.treatment(here.kind) == Treatment::Call;
    // The call that replaces a nop of five bytes overwrites what lies below the stack pointer.
    let is_safe = |kind| kind != InstructionKind::Nop5 || calls(code, start);
    let (here, instruction) = nops.skip(1).find(|(here, _)| is_call(here) && is_safe(here.kind))?;
    let (first, last) = (own + 1, instruction.ip());
    let inner = Inner::of(code, start);
    let certain = inner.whole && !inner.indirect && !inner.reaches(first, last);
    (certain && !jumps(first, last)).then(|| (distance(own, &instruction), here))
}

/// The nops are few.
const fn distance(own: u64, instruction: &Instruction) -> u32 {
    (instruction.ip() - own) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 0x1000;
    const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    const NOP10: [u8; 10] = [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0];
    /// `call` to what follows, and `ret`.
    const CALLS: &[u8] = &[0xe8, 0, 0, 0, 0, 0xc3];
    const LEAF: &[u8] = &[0xc3];

    /// What a nop of five and one of ten bytes cost, beside 500 ns for a trap.
    fn costs(nop5: Option<f64>, nop10: Option<f64>) -> Costs {
        let mut costs = Costs::assumed();
        costs.entry_ns[InstructionKind::Nop5 as usize] = nop5;
        costs.entry_ns[InstructionKind::Nop10 as usize] = nop10;
        costs
    }

    fn five() -> Costs {
        costs(Some(250.0), None)
    }

    fn ten() -> Costs {
        costs(Some(550.0), Some(250.0))
    }

    /// Where a probe on the nop in front of these bytes goes, in a function that begins with `push rbx`.
    fn chosen(pieces: &[&[u8]], costs: &Costs) -> Option<(u32, InstructionKind)> {
        let code = [&[0x53, 0x90], pieces.concat().as_slice()].concat();
        let found = call_beside((&code, START), START + 1, costs, &|_, _| false)?;
        Some((found.0, found.1.kind))
    }

    /// The nop that this kernel replaces by a call is taken, and no other: the one of ten bytes also in a function that
    /// calls no other one.
    #[test]
    fn by_the_kernel() {
        assert_eq!(chosen(&[&NOP5, CALLS], &five()), Some((1, InstructionKind::Nop5)));
        assert_eq!(chosen(&[&NOP5, CALLS], &ten()), None);
        assert_eq!(chosen(&[&NOP10, CALLS], &five()), None);
        assert_eq!(chosen(&[&NOP10, LEAF], &ten()), Some((1, InstructionKind::Nop10)));
        assert_eq!(chosen(&[&NOP10, &NOP5, CALLS], &five()), Some((11, InstructionKind::Nop5)));
        assert_eq!(chosen(&[&NOP10, &NOP5, CALLS], &ten()), Some((1, InstructionKind::Nop10)));
        for costs in [Costs::assumed(), costs(Some(550.0), Some(550.0))] {
            assert_eq!(chosen(&[&NOP10, &NOP5, CALLS], &costs), None);
        }
        assert_eq!(chosen(&[CALLS], &ten()), None);
        assert_eq!(chosen(&[&[0x55], &NOP10, CALLS], &ten()), None, "a push is between");
    }

    /// A nop of five bytes is never taken in a function that may keep something below its stack pointer.
    #[test]
    fn red_zone() {
        assert_eq!(chosen(&[&NOP5, LEAF], &five()), None);
        assert_eq!(chosen(&[&NOP10, &NOP5, LEAF], &five()), None);
    }

    /// What jumps between the two, or could, would be counted at the second only.
    #[test]
    fn jumped_to() {
        // A jump back to the second nop, one through a register, and bytes that are no code.
        assert_eq!(chosen(&[&NOP10, &[0xeb, 0xf4, 0xc3]], &ten()), None);
        assert_eq!(chosen(&[&NOP10, &[0xff, 0xe0]], &ten()), None);
        assert_eq!(chosen(&[&NOP10, &[0x06]], &ten()), None);
        // A jump back to the probe's own nop passes both.
        assert!(chosen(&[&NOP10, &[0xeb, 0xf3, 0xc3]], &ten()).is_some());
        let code = [&[0x90], &NOP10[..], &[0xc3]].concat();
        let far = |first: u64, last: u64| (first..=last).contains(&(START + 1));
        assert!(call_beside((&code, START), START, &ten(), &far).is_none());
        assert!(call_beside((&code, START), START + 99, &ten(), &|_, _| false).is_none());
        assert!(call_beside((&code, START), START - 1, &ten(), &|_, _| false).is_none());
    }
}
