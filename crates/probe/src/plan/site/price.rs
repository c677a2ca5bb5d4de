//! What a probe on an instruction costs.

use iced_x86::{Decoder, DecoderOptions, FastFormatter, FlowControl, Instruction};

use super::kind;
use crate::plan::cost::{Costs, InstructionKind};

/// An instruction and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct InstructionCost {
    /// Its text, in the syntax of Intel's manuals.
    pub instruction: String,
    /// Its kind.
    pub kind: InstructionKind,
    /// Nanoseconds of a hit; infinite where no probe may sit on it.
    pub cost_ns: f64,
}

/// Whether a function's code calls others. Compilers keep something below the stack pointer only in one that does not.
pub(crate) fn calls(bytes: &[u8], address: u64) -> bool {
    let decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
    decoder.into_iter().any(|instruction| {
        matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
    })
}

pub(super) fn cost_of(
    instruction: &Instruction,
    bytes: &[u8],
    address: u64,
    costs: &Costs,
) -> InstructionCost {
    let start = usize::try_from(instruction.ip().wrapping_sub(address)).unwrap_or(usize::MAX);
    let own = bytes.get(start..).and_then(|rest| rest.get(..instruction.len())).unwrap_or_default();
    let kind = kind::of(instruction, own);
    InstructionCost { instruction: text(instruction), kind, cost_ns: costs.entry(kind) }
}

fn text(instruction: &Instruction) -> String {
    let mut formatter = FastFormatter::new();
    formatter.options_mut().set_space_after_operand_separator(true);
    formatter.options_mut().set_use_hex_prefix(true);
    formatter.options_mut().set_uppercase_hex(false);
    formatter.options_mut().set_rip_relative_addresses(true);
    let mut text = String::new();
    formatter.format(instruction, &mut text);
    text
}
