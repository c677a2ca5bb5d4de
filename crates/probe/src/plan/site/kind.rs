//! Which kind an instruction is of, for its cost.
//!
//! Only exact shapes get a kind other than [`InstructionKind::Other`]: kernels decide by opcode bytes and
//! prefixes, and refuse to probe some prefixes altogether. Called by `site`.

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::plan::cost::InstructionKind;

/// The nops that every kernel emulates.
const NOPS: [&[u8]; 2] = [&[0x90], &[0x66, 0x90]];
/// Longer ones that every kernel accepts; older ones single-step them.
const LONG_NOPS: [&[u8]; 3] = [
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];
/// The one of five bytes that compilers and kernels mean by it.
const NOP5: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// How the only one of ten bytes begins that a kernel replaces by a call; it keeps a call in the five bytes behind, which
/// are operands. Compilers pad with it, and clang's `-fpatchable-function-entry` makes it.
const NOP10: [u8; 5] = [0x66, 0x2e, 0x0f, 0x1f, 0x84];
const NOP10_BYTES: u64 = 10;
/// A kernel that knows the nop of ten bytes does not replace one that lies in two pages, but refuses it.
const PAGE_BYTES: u64 = 4096;

/// The kind of `instruction`, which was decoded from `bytes`.
pub(super) fn of(instruction: &Instruction, bytes: &[u8]) -> InstructionKind {
    if bytes == NOP5 {
        return InstructionKind::Nop5;
    }
    if is_nop10(bytes, instruction.ip()) {
        return InstructionKind::Nop10;
    }
    if NOPS.contains(&bytes) {
        return InstructionKind::Nop;
    }
    if LONG_NOPS.contains(&bytes) {
        return InstructionKind::LongNop;
    }
    if is_prefixed(instruction) {
        return InstructionKind::Other;
    }
    match instruction.mnemonic() {
        // `push r64` without further prefixes: 50+r, or 41 50+r.
        Mnemonic::Push if instruction.code() == Code::Push_r64 => match bytes {
            [0x50..=0x57] | [0x41, 0x50..=0x57] => InstructionKind::Push,
            _ => InstructionKind::Other,
        },
        Mnemonic::Endbr64 => InstructionKind::Endbr,
        Mnemonic::Ret if bytes == [0xc3] => InstructionKind::Return,
        Mnemonic::Mov => moved(instruction),
        Mnemonic::Test | Mnemonic::Cmp => InstructionKind::Compare,
        Mnemonic::Lea => InstructionKind::Lea,
        Mnemonic::Add | Mnemonic::Sub | Mnemonic::And | Mnemonic::Or | Mnemonic::Xor => {
            InstructionKind::Arithmetic
        }
        _ if is_relative_branch(bytes) => InstructionKind::Branch,
        _ => InstructionKind::Other,
    }
}

/// Segments begin at the same place in a page of the file as in one of memory, so the address in the file says it.
fn is_nop10(bytes: &[u8], address: u64) -> bool {
    bytes.len() as u64 == NOP10_BYTES
        && bytes.starts_with(&NOP10)
        && address % PAGE_BYTES <= PAGE_BYTES - NOP10_BYTES
}

/// Prefixes that kernels refuse, or that change what an opcode is taken for.
fn is_prefixed(instruction: &Instruction) -> bool {
    let refused = matches!(
        instruction.segment_prefix(),
        Register::ES | Register::CS | Register::SS | Register::DS
    );
    refused
        || instruction.has_lock_prefix()
        || instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
}

fn moved(instruction: &Instruction) -> InstructionKind {
    let kinds = [instruction.op0_kind(), instruction.op1_kind()];
    let special = |operand: u32| {
        let register = instruction.op_register(operand);
        register.is_segment_register() || register.is_cr() || register.is_dr() || register.is_tr()
    };
    match kinds {
        _ if special(0) || special(1) => InstructionKind::Other,
        [OpKind::Memory, _] | [_, OpKind::Memory] => InstructionKind::Memory,
        // `mov reg, imm` is as cheap or expensive as one between registers: no kernel emulates either.
        _ => InstructionKind::Move,
    }
}

/// `jmp`, `jcc` and `call` with a displacement, without any prefix.
fn is_relative_branch(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [0xeb | 0x70..=0x7f, _] | [0xe9 | 0xe8, _, _, _, _] | [0x0f, 0x80..=0x8f, _, _, _, _]
    )
}

/// Whether a probe may sit on such an instruction behind a function's first one; `untouched` says that only empty ones
/// precede it.
pub(super) const fn is_eligible(kind: InstructionKind, untouched: bool) -> bool {
    match kind {
        // The call that replaces a 5-byte nop overwrites what a leaf function keeps below its stack pointer. The one
        // that replaces a 10-byte nop moves the stack pointer first; calibration has tried it.
        InstructionKind::Nop5 => untouched,
        // Others were never measured, and kernels refuse some.
        InstructionKind::Other => false,
        _ => true,
    }
}

/// Whether it does nothing, so that a function has nothing on its stack behind it that was not there before.
pub(super) const fn is_empty(kind: InstructionKind) -> bool {
    is_nop(kind) || matches!(kind, InstructionKind::Endbr)
}

/// Whether it is a nop that kernels treat as one.
pub(super) const fn is_nop(kind: InstructionKind) -> bool {
    matches!(
        kind,
        InstructionKind::Nop
            | InstructionKind::LongNop
            | InstructionKind::Nop5
            | InstructionKind::Nop10
    )
}
