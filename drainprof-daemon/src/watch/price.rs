//! What a hit costs at a planned probe's place: the price of the instruction that stands there.

use std::{fs::File, os::unix::fs::FileExt as _};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic, OpKind};

use crate::plan::{
    PlannedProbe,
    cost::{Costs, InstructionKind},
};

/// The longest instruction.
const LONGEST: usize = 15;

/// Nanoseconds of a hit at the probe's place. What cannot be read or decoded costs as much as the dearest
/// kind.
pub(super) fn entry_ns(probe: &PlannedProbe, costs: &Costs) -> f64 {
    let mut bytes = [0; LONGEST];
    let read = File::open(&probe.site.open_path)
        .and_then(|file| file.read_at(&mut bytes, probe.site.file_offset))
        .unwrap_or(0);
    costs.entry(kind(&bytes[..read]))
}

/// The kind of the first instruction.
fn kind(bytes: &[u8]) -> InstructionKind {
    let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
    let to_memory = [instruction.op0_kind(), instruction.op1_kind()].contains(&OpKind::Memory);
    let relative = instruction.is_jcc_short_or_near()
        || instruction.is_jmp_short_or_near()
        || instruction.is_call_near();
    match instruction.mnemonic() {
        Mnemonic::Nop if bytes.starts_with(&[0x0f, 0x1f, 0x44, 0, 0]) => InstructionKind::Nop5,
        Mnemonic::Nop => InstructionKind::Nop,
        Mnemonic::Push if instruction.op0_kind() == OpKind::Register => InstructionKind::Push,
        Mnemonic::Endbr64 => InstructionKind::Endbr,
        Mnemonic::Mov if to_memory => InstructionKind::Memory,
        Mnemonic::Mov => InstructionKind::Move,
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => {
            InstructionKind::Arithmetic
        }
        Mnemonic::Test | Mnemonic::Cmp => InstructionKind::Compare,
        Mnemonic::Lea => InstructionKind::Lea,
        _ if relative => InstructionKind::Branch,
        _ if instruction.flow_control() == FlowControl::Return => InstructionKind::Return,
        _ => InstructionKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first instructions of real functions are what the calibration has a price for.
    #[test]
    fn kinds() {
        let cases: [(&[u8], InstructionKind); 13] = [
            (&[0x0f, 0x1f, 0x44, 0x00, 0x00], InstructionKind::Nop5),
            (&[0x90], InstructionKind::Nop),
            (&[0x41, 0x57], InstructionKind::Push),
            (&[0xeb, 0x10], InstructionKind::Branch),
            (&[0xf3, 0x0f, 0x1e, 0xfa], InstructionKind::Endbr),
            (&[0x48, 0x89, 0xf8], InstructionKind::Move),
            (&[0x48, 0x8b, 0x47, 0x08], InstructionKind::Memory),
            (&[0x48, 0x83, 0xec, 0x18], InstructionKind::Arithmetic),
            (&[0x48, 0x85, 0xff], InstructionKind::Compare),
            (&[0x48, 0x8d, 0x47, 0x08], InstructionKind::Lea),
            (&[0xc3], InstructionKind::Return),
            (&[0x0f, 0xa2], InstructionKind::Other),
            (&[], InstructionKind::Other),
        ];
        for (bytes, expected) in cases {
            assert_eq!(kind(bytes), expected, "{bytes:x?}");
        }
    }
}
