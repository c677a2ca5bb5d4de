//! The interpreter that runs a profile's expressions: in the kernel programs, and on the host in tests.
//!
//! Time is bounded twice: jumps only go forward (the compiler emits no others), and no run takes more
//! than [`MAX_CODE`] steps. Indices are masked instead of checked, because the BPF verifier must see at
//! every access that it is in bounds; code that the compiler emits never needs the mask.

use crate::spec::{Insn, MAX_CODE, MAX_CONSTS, MAX_STACK, op, value};

/// What a spec's expressions computed; indices are [`value`]'s.
///
/// Sixteen, not [`value::COUNT`], so that an index can be masked.
pub type Values = [u64; 16];

/// Where the expressions get their operands from.
pub trait Machine {
    /// Argument `index` (0–5) at entry.
    fn arg(&self, index: u8) -> u64;
    /// The return value.
    fn ret(&self) -> u64;
    /// The return address of the probed call; `None` where it could not be read.
    fn caller(&self) -> Option<u64>;
    /// `size` (1, 2, 4 or 8) bytes of the target's memory, little-endian, zero-extended; `None` on a fault.
    fn read(&self, address: u64, size: u8) -> Option<u64>;
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// All expressions were computed and `when` held.
    Accepted = 0,
    /// `when` did not hold.
    Rejected = 1,
    /// A read of target memory failed, or a division by zero: nothing can be said about this hit.
    Fault = 2,
}

const CODE_MASK: usize = 127;
const STACK_MASK: usize = MAX_STACK - 1;

/// Runs the code from `start`, storing into `values`.
///
/// `MAX_CODE` is not a power of two; code indices at or beyond it end the run as a fault.
#[inline(always)]
pub fn run<M: Machine>(
    code: &[Insn; MAX_CODE],
    consts: &[u64; MAX_CONSTS],
    start: u16,
    machine: &M,
    values: &mut Values,
) -> Outcome {
    let mut stack = [0u64; MAX_STACK];
    let mut sp = 0usize;
    let mut pc = start as usize & CODE_MASK;
    let mut steps = 0;
    while steps < MAX_CODE {
        steps += 1;
        if pc >= MAX_CODE {
            return Outcome::Fault;
        }
        let insn = code[pc];
        pc = (pc + 1) & CODE_MASK;
        // Operations without operands on the stack.
        let pushed = match insn.op {
            op::END => return Outcome::Accepted,
            op::CONST => {
                let index = insn.arg as usize;
                if index >= MAX_CONSTS {
                    return Outcome::Fault;
                }
                Some(consts[index])
            }
            op::ARG => Some(machine.arg(insn.arg)),
            op::RET => Some(machine.ret()),
            op::CALLER => match machine.caller() {
                Some(address) => Some(address),
                None => return Outcome::Fault,
            },
            _ => None,
        };
        if let Some(word) = pushed {
            stack[sp & STACK_MASK] = word;
            sp = (sp + 1) & STACK_MASK;
            continue;
        }
        // Operations on the top.
        let top_index = sp.wrapping_sub(1) & STACK_MASK;
        let top = stack[top_index];
        let replaced = match insn.op {
            op::READ => {
                let Some(word) = machine.read(top, insn.arg & 15) else { return Outcome::Fault };
                Some(if insn.arg == 4 | 16 { sign_extend_32(word) } else { word })
            }
            op::NOT => Some(u64::from(top == 0)),
            op::BOOL => Some(u64::from(top != 0)),
            op::POPCOUNT => Some(popcount(top)),
            _ => None,
        };
        if let Some(word) = replaced {
            stack[top_index] = word;
            continue;
        }
        match insn.op {
            op::JUMP_IF_ZERO => {
                if top == 0 {
                    pc = insn.target as usize & CODE_MASK;
                }
                continue;
            }
            op::JUMP_IF_NONZERO => {
                if top != 0 {
                    pc = insn.target as usize & CODE_MASK;
                }
                continue;
            }
            _ => {}
        }
        // Everything else pops the top.
        sp = top_index;
        match insn.op {
            op::POP => continue,
            op::STORE => {
                values[insn.arg as usize & 15] = top;
                continue;
            }
            op::GUARD => {
                if top == 0 {
                    return Outcome::Rejected;
                }
                continue;
            }
            _ => {}
        }
        let left_index = sp.wrapping_sub(1) & STACK_MASK;
        let left = stack[left_index];
        let Some(word) = binary(insn.op, left, top) else { return Outcome::Fault };
        stack[left_index] = word;
    }
    Outcome::Fault
}

/// The result of a binary operation; `None` for a division by zero or an unknown operation.
#[inline(always)]
#[must_use]
pub fn binary(operation: u8, left: u64, right: u64) -> Option<u64> {
    Some(match operation {
        op::ADD => left.wrapping_add(right),
        op::SUB => left.wrapping_sub(right),
        op::MUL => left.wrapping_mul(right),
        op::AND => left & right,
        op::OR => left | right,
        op::XOR => left ^ right,
        op::SHL => left << (right & 63),
        op::SHR => left >> (right & 63),
        op::MOD => {
            if right == 0 {
                return None;
            }
            left % right
        }
        op::EQ => u64::from(left == right),
        op::NE => u64::from(left != right),
        op::LT => u64::from(left < right),
        op::LE => u64::from(left <= right),
        _ => return None,
    })
}

#[inline(always)]
const fn sign_extend_32(word: u64) -> u64 {
    ((word << 32) as i64 >> 32) as u64
}

/// Counts set bits by parallel sums; BPF has no instruction for it.
#[inline(always)]
#[must_use]
pub const fn popcount(word: u64) -> u64 {
    let pairs = word - ((word >> 1) & 0x5555_5555_5555_5555);
    let nibbles = (pairs & 0x3333_3333_3333_3333) + ((pairs >> 2) & 0x3333_3333_3333_3333);
    let bytes = (nibbles + (nibbles >> 4)) & 0x0f0f_0f0f_0f0f_0f0f;
    bytes.wrapping_mul(0x0101_0101_0101_0101) >> 56
}

const _: () = assert!(value::COUNT <= 16, "Values holds sixteen");
const _: () = assert!(MAX_CODE <= CODE_MASK + 1, "code indices are masked");
const _: () = assert!(MAX_STACK.is_power_of_two(), "the stack pointer is masked");
