//! The interpreter that runs a profile's expressions: in the kernel programs, and on the host in tests.
//!
//! Time is bounded twice: jumps only go forward (the compiler emits no others), and no run takes more
//! than [`MAX_STEPS`] steps. Indices are masked instead of checked, because the BPF verifier must see at
//! every access that it is in bounds; code that the compiler emits never needs the mask.

use bytemuck::{Pod, Zeroable};

use crate::spec::{Insn, MAX_CODE, MAX_CONSTS, MAX_STACK, MAX_STEPS, Simple, op, simple, value};

/// What a spec's expressions computed; indices are [`value`]'s.
pub type Values = [u64; value::COUNT];

/// Inputs and values of one hit, in one file of words: a value that is just an input is read where the input
/// stands. [`crate::spec::ProbeSpec::locations`] counts in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct File {
    /// Arguments 0 to 5 at entry, the return value and the return address (0: unknown or not wanted).
    pub inputs: [u64; INPUTS],
    /// What was computed.
    pub values: Values,
}

/// How many inputs there are.
pub const INPUTS: usize = 8;
/// Words in a [`File`].
pub const FILE_WORDS: usize = INPUTS + value::COUNT;

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

    /// All inputs under one number: arguments, [`op::INPUT_RET`] and [`op::INPUT_CALLER`] (0: unknown).
    #[inline(always)]
    fn input(&self, index: u8) -> u64 {
        match index & 7 {
            op::INPUT_RET => self.ret(),
            op::INPUT_CALLER => self.caller().unwrap_or(0),
            index => self.arg(index),
        }
    }
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

/// Computes one simple value or condition. `Some` where it ends the phase.
#[inline(always)]
pub fn run_simple<M: Machine>(
    simple: &Simple,
    machine: &M,
    values: &mut Values,
) -> Option<Outcome> {
    let index = (machine.input(simple.index) & simple.index_mask) << (simple.shift & 63);
    let mut word = machine.input(simple.input).wrapping_add(index).wrapping_add(simple.add);
    if simple.read != 0 {
        let Some(read) = machine.read(word, simple.read & 15) else { return Some(Outcome::Fault) };
        word = extend(read, simple.read);
        if simple.read_2 != 0 {
            let address = word.wrapping_add(simple.add_2);
            let Some(read) = machine.read(address, simple.read_2 & 15) else {
                return Some(Outcome::Fault);
            };
            word = extend(read, simple.read_2);
        }
    }
    word = (word.wrapping_add(simple.bias) & simple.mask).wrapping_add(simple.plus);
    if let Some(value) = values.get_mut(simple.value as usize) {
        *value = word;
        return None;
    }
    let rejects_equal = simple.value == simple::REJECT_IF_EQUAL;
    if (word == simple.operand) == rejects_equal { Some(Outcome::Rejected) } else { None }
}

/// Sign extension without a branch: bit 4 of a read's operand shifts the sign down from bit 31.
#[inline(always)]
const fn extend(word: u64, read: u8) -> u64 {
    let shift = ((read & 16) as u32) << 1;
    ((word << shift).cast_signed() >> shift).cast_unsigned()
}

const CODE_MASK: usize = 127;
const STACK_MASK: usize = MAX_STACK - 1;

/// Runs the code from `start`, storing into `values`.
#[inline(always)]
pub fn run<M: Machine>(
    code: &[Insn; MAX_CODE],
    consts: &[u64; MAX_CONSTS],
    start: u16,
    machine: &M,
    values: &mut Values,
) -> Outcome {
    let mut state = State { pc: u64::from(start), sp: 0, stack: [0; MAX_STACK] };
    for _ in 0..MAX_STEPS {
        if let Some(outcome) = step(&mut state, code, consts, machine, values) {
            return outcome;
        }
    }
    Outcome::Fault
}

/// Where a run is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct State {
    /// The next instruction's index.
    pub pc: u64,
    /// The stack's depth. The kernel side starts with a zero that the verifier does not know as one: else
    /// it would follow every depth, and every content of the stack, apart.
    pub sp: u64,
    /// The stack.
    pub stack: [u64; MAX_STACK],
}

/// One step; `Some` once the run has ended.
///
/// It is written for the BPF verifier, which follows every path through every step: operations are
/// grouped so that a step has few paths, and results are picked from a table instead of by branches.
#[inline(always)]
pub fn step<M: Machine>(
    state: &mut State,
    code: &[Insn; MAX_CODE],
    consts: &[u64; MAX_CONSTS],
    machine: &M,
    values: &mut Values,
) -> Option<Outcome> {
    let pc = state.pc as usize & CODE_MASK;
    if pc >= MAX_CODE {
        return Some(Outcome::Fault);
    }
    let insn = code[pc];
    state.pc = pc as u64 + 1;
    let sp = state.sp as usize;
    if insn.op <= op::CALLER {
        if insn.op == op::END {
            return Some(Outcome::Accepted);
        }
        let word = if insn.op == op::CONST {
            let index = insn.arg as usize;
            if index >= MAX_CONSTS {
                return Some(Outcome::Fault);
            }
            consts[index]
        } else {
            machine.input(insn.arg)
        };
        if word == 0 && insn.op == op::CALLER {
            return Some(Outcome::Fault);
        }
        state.stack[sp & STACK_MASK] = word;
        state.sp = ((sp & STACK_MASK) + 1) as u64;
        return None;
    }
    let top_index = sp.wrapping_sub(1) & STACK_MASK;
    let top = state.stack[top_index];
    if insn.op >= op::POP {
        if insn.op == op::JUMP_IF_ZERO || insn.op == op::JUMP_IF_NONZERO {
            if (top == 0) == (insn.op == op::JUMP_IF_ZERO) {
                state.pc = u64::from(insn.target);
            }
            return None;
        }
        if insn.op == op::GUARD && top == 0 {
            return Some(Outcome::Rejected);
        }
        if insn.op == op::STORE {
            let Some(value) = values.get_mut(insn.arg as usize) else {
                return Some(Outcome::Fault);
            };
            *value = top;
        }
        state.sp = top_index as u64;
        return None;
    }
    if insn.op == op::READ {
        let Some(word) = machine.read(top, insn.arg & 15) else { return Some(Outcome::Fault) };
        state.stack[top_index] = extend(word, insn.arg);
        return None;
    }
    // Unary operations leave the stack as deep as it was, and only look at the top.
    let is_binary = insn.op < op::NOT;
    let left_index = top_index.wrapping_sub(usize::from(is_binary)) & STACK_MASK;
    let left = state.stack[left_index];
    state.stack[left_index] = if insn.op == op::MOD {
        match left.checked_rem(top) {
            Some(remainder) => remainder,
            None => return Some(Outcome::Fault),
        }
    } else {
        let table = if insn.op < op::MOD { arithmetic(left, top) } else { relations(left, top) };
        table[insn.op.wrapping_sub(op::ADD) as usize & 7]
    };
    state.sp = (left_index + 1) as u64;
    None
}

/// The results of [`op::ADD`] to [`op::SHR`], in the order of their codes.
#[inline(always)]
fn arithmetic(left: u64, right: u64) -> [u64; 8] {
    [
        left.wrapping_add(right),
        left.wrapping_sub(right),
        left.wrapping_mul(right),
        left & right,
        left | right,
        left ^ right,
        left << (right & 63),
        left >> (right & 63),
    ]
}

/// The results of [`op::MOD`] (which is not computed here) to [`op::POPCOUNT`], in the order of their
/// codes; without branches.
#[inline(always)]
fn relations(left: u64, right: u64) -> [u64; 8] {
    let equal = is_zero(left ^ right);
    let less = less_than(left, right);
    let zero = is_zero(right);
    [0, equal, equal ^ 1, less, less | equal, zero, zero ^ 1, popcount(right)]
}

const _: () = assert!(op::SHR - op::ADD == 7 && op::MOD - op::ADD == 8, "the first table's order");
const _: () = assert!(op::LE - op::MOD == 4 && op::POPCOUNT - op::MOD == 7, "the second's");

/// 1 for 0, else 0.
#[inline(always)]
const fn is_zero(word: u64) -> u64 {
    ((word | word.wrapping_neg()) >> 63) ^ 1
}

/// 1 where `left < right`, else 0: the borrow of the subtraction.
#[inline(always)]
const fn less_than(left: u64, right: u64) -> u64 {
    ((!left & right) | ((!left | right) & left.wrapping_sub(right))) >> 63
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

const _: () = assert!(MAX_CODE <= CODE_MASK + 1, "code indices are masked");
const _: () = assert!(MAX_STACK.is_power_of_two(), "the stack pointer is masked");
