//! The interpreter that runs a profile's expressions: in the kernel programs, and on the host in tests.
//!
//! Time is bounded twice: jumps go forward (the compiler emits no others), but for the step of a walk,
//! which counts down the nodes that the walk may visit; and no run takes more than [`MAX_RUN`] steps, or
//! [`MAX_STEPS`] outside of walks. Walks do not nest. Indices are masked instead of checked, because the BPF verifier must see at
//! every access that it is in bounds; code that the compiler emits never needs the mask.

use bytemuck::{Pod, Zeroable};

use crate::spec::{
    Insn, MAX_CODE, MAX_CONSTS, MAX_STACK, MAX_STEPS, MAX_WALK_NODES, ProbeSpec, Simple, op,
    simple, value,
};

/// What a spec's expressions computed; indices are [`value`]'s.
pub type Values = [u64; value::COUNT];

/// Inputs and values of one hit, in one row of words: a value that is just an input is read where the input
/// stands. [`crate::spec::ProbeSpec::locations`] counts in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Registers {
    /// Arguments 0 to 5 at entry, the return value and the return address (0: unknown or not wanted).
    pub inputs: [u64; INPUTS],
    /// What was computed.
    pub values: Values,
}

/// How many inputs there are.
pub const INPUTS: usize = 8;
/// Words of [`Registers`].
pub const REGISTER_WORDS: usize = INPUTS + value::COUNT;

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
    /// A read of target memory failed, or a division by zero. Nothing can be said about this hit, unless
    /// its live count alone is what failed: then that is [`value::UNREAD`].
    Fault = 2,
    /// A list has more nodes than its walk may visit: it is too long, or has no end. As [`Outcome::Fault`].
    Cut = 3,
}

/// Computes one simple value or condition. `Some` where it ends the phase; a live count that cannot be read is
/// [`value::UNREAD`] then.
#[inline(always)]
pub fn run_simple<M: Machine>(
    simple: &Simple,
    machine: &M,
    values: &mut Values,
) -> Option<Outcome> {
    let Some(word) = simple_word(simple, machine) else {
        if simple.value == value::LIVE {
            values[value::LIVE as usize] = value::UNREAD;
        }
        return Some(Outcome::Fault);
    };
    if let Some(value) = values.get_mut(simple.value as usize) {
        *value = word;
        return None;
    }
    let rejects_equal = simple.value == simple::REJECT_IF_EQUAL;
    if (word == simple.operand) == rejects_equal { Some(Outcome::Rejected) } else { None }
}

#[inline(always)]
fn simple_word<M: Machine>(simple: &Simple, machine: &M) -> Option<u64> {
    let index = (machine.input(simple.index) & simple.index_mask) << (simple.shift & 63);
    let mut word = machine.input(simple.input).wrapping_add(index).wrapping_add(simple.add);
    if simple.read != 0 {
        word = extend(machine.read(word, simple.read & 15)?, simple.read);
        if simple.read_2 != 0 {
            let address = word.wrapping_add(simple.add_2);
            word = extend(machine.read(address, simple.read_2 & 15)?, simple.read_2);
        }
    }
    Some((word.wrapping_add(simple.bias) & simple.mask).wrapping_add(simple.plus))
}

/// Sign extension without a branch: bit 4 of a read's operand shifts the sign down from bit 31.
#[inline(always)]
const fn extend(word: u64, read: u8) -> u64 {
    let shift = ((read & 16) as u32) << 1;
    ((word << shift).cast_signed() >> shift).cast_unsigned()
}

const CODE_MASK: usize = 127;
const STACK_MASK: usize = MAX_STACK - 1;
/// Steps that one phase can take: each instruction once, and those of walks once more for each node.
pub const MAX_RUN: usize = MAX_STEPS + MAX_CODE * MAX_WALK_NODES as usize;

/// Runs a spec's code from `start`, storing into `values`.
#[inline(always)]
pub fn run<M: Machine>(spec: &ProbeSpec, start: u16, machine: &M, values: &mut Values) -> Outcome {
    let mut state = State { pc: u32::from(start), ..State::default() };
    for _ in 0..MAX_RUN {
        if let Some(outcome) = step(&mut state, spec, machine, values) {
            return outcome;
        }
    }
    Outcome::Fault
}

/// Where a run is; it begins with zeros, but for the place of its first instruction.
///
/// On the kernel side every eight bytes count: the stack of all functions that call one another has 512,
/// and some kernels (seen: 6.1) round each one's part up to a multiple of 32, and to 32 at least.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct State {
    /// The next instruction's index.
    pub pc: u32,
    /// How many more nodes the current walk may visit.
    pub left: u32,
    /// The stack's depth.
    pub sp: u64,
    /// The stack.
    pub stack: [u64; MAX_STACK],
    /// The node that the current walk is at.
    pub node: u64,
    /// The node at which it ends, other than 0.
    pub end: u64,
}
const _: () = assert!(size_of::<State>() == 96, "three times 32");

/// One step; `Some` once the run has ended.
#[inline(always)]
pub fn step<M: Machine>(
    state: &mut State,
    spec: &ProbeSpec,
    machine: &M,
    values: &mut Values,
) -> Option<Outcome> {
    let outcome = execute(state, &spec.code, &spec.consts, machine, values)?;
    let failed = outcome as u32 >= Outcome::Fault as u32;
    if failed && spec.live_start != 0 && u64::from(state.pc) > spec.live_start {
        values[value::LIVE as usize] = value::UNREAD;
    }
    Some(outcome)
}

/// The instruction of one step.
///
/// It is written for the BPF verifier, which follows every path through every step: operations are
/// grouped so that a step has few paths, and results are picked from a table instead of by branches.
#[inline(always)]
fn execute<M: Machine>(
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
    state.pc = pc as u32 + 1;
    let sp = state.sp as usize;
    if insn.op <= op::CALLER || insn.op == op::IT {
        return push(state, insn, consts, machine);
    }
    let top_index = sp.wrapping_sub(1) & STACK_MASK;
    let top = state.stack[top_index];
    if insn.op >= op::WALK {
        return walk(state, insn, consts, top_index);
    }
    if insn.op >= op::POP {
        if insn.op == op::JUMP_IF_ZERO || insn.op == op::JUMP_IF_NONZERO {
            if (top == 0) == (insn.op == op::JUMP_IF_ZERO) {
                state.pc = u32::from(insn.target);
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
    // Unary operations leave the stack as deep as it was, and change its top only.
    let is_binary = insn.op < op::NOT;
    let left_index = top_index.wrapping_sub(usize::from(is_binary)) & STACK_MASK;
    let left = state.stack[left_index];
    state.stack[left_index] = if insn.op == op::MOD {
        match left.checked_rem(top) {
            Some(remainder) => remainder,
            None => return Some(Outcome::Fault),
        }
    } else {
        let number = insn.op.wrapping_sub(op::ADD);
        let table = match number >> 2 & 3 {
            0 => sums(left, top),
            1 => bits(left, top),
            2 => orders(left, top),
            _ => rest(left, top),
        };
        table[number as usize & 3]
    };
    state.sp = (left_index + 1) as u64;
    None
}

/// [`op::END`], and the operations that push.
#[inline(always)]
fn push<M: Machine>(
    state: &mut State,
    insn: Insn,
    consts: &[u64; MAX_CONSTS],
    machine: &M,
) -> Option<Outcome> {
    if insn.op == op::END {
        return Some(Outcome::Accepted);
    }
    let word = if insn.op == op::CONST {
        let index = insn.arg as usize;
        if index >= MAX_CONSTS {
            return Some(Outcome::Fault);
        }
        consts[index]
    } else if insn.op == op::IT {
        state.node
    } else {
        machine.input(insn.arg)
    };
    if word == 0 && insn.op == op::CALLER {
        return Some(Outcome::Fault);
    }
    let sp = state.sp as usize & STACK_MASK;
    state.stack[sp] = word;
    state.sp = (sp + 1) as u64;
    None
}

/// [`op::WALK`] and [`op::STEP`]: goes to the node on top of the stack, or to where the walk has ended.
#[inline(always)]
fn walk(
    state: &mut State,
    insn: Insn,
    consts: &[u64; MAX_CONSTS],
    top_index: usize,
) -> Option<Outcome> {
    let begins = insn.op == op::WALK;
    let mut node_index = top_index;
    if begins {
        state.end = state.stack[top_index];
        node_index = top_index.wrapping_sub(1) & STACK_MASK;
        let limit = insn.arg as usize;
        if limit >= MAX_CONSTS {
            return Some(Outcome::Fault);
        }
        state.left = consts[limit] as u32;
    }
    let node = state.stack[node_index];
    state.node = node;
    state.sp = node_index as u64;
    let ended = node == 0 || node == state.end;
    if ended == begins {
        state.pc = u32::from(insn.target);
    }
    if ended {
        return None;
    }
    if state.left == 0 {
        return Some(Outcome::Cut);
    }
    state.left -= 1;
    None
}

/// The results of [`op::ADD`] to [`op::AND`], in the order of their codes; so for the next three. Four at
/// once, because a table is as many words of the stack.
#[inline(always)]
fn sums(left: u64, right: u64) -> [u64; 4] {
    [left.wrapping_add(right), left.wrapping_sub(right), left.wrapping_mul(right), left & right]
}

/// The results of [`op::OR`] to [`op::SHR`].
#[inline(always)]
fn bits(left: u64, right: u64) -> [u64; 4] {
    [left | right, left ^ right, left << (right & 63), left >> (right & 63)]
}

/// The results of [`op::MOD`] (which is not computed here) to [`op::LT`]; without branches.
#[inline(always)]
fn orders(left: u64, right: u64) -> [u64; 4] {
    let equal = is_zero(left ^ right);
    [0, equal, equal ^ 1, less_than(left, right)]
}

/// The results of [`op::LE`] to [`op::POPCOUNT`]; without branches.
#[inline(always)]
fn rest(left: u64, right: u64) -> [u64; 4] {
    let zero = is_zero(right);
    [less_than(right, left) ^ 1, zero, zero ^ 1, popcount(right)]
}

const _: () = assert!(op::AND - op::ADD == 3 && op::OR - op::ADD == 4, "the first table's order");
const _: () = assert!(op::SHR - op::ADD == 7 && op::MOD - op::ADD == 8, "the second's");
const _: () = assert!(op::LT - op::ADD == 11 && op::LE - op::ADD == 12, "the third's");
const _: () = assert!(op::POPCOUNT - op::ADD == 15, "the fourth's");

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
