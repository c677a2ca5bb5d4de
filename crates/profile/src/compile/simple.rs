//! Finds what needs no interpreter: arguments, fields of what they point to, constants, and comparisons of
//! these with constants. The kernel side computes them without a single call, which is what a hit's cost is
//! made of.

use drainprof_common::{
    interp::INPUTS,
    spec::{MAX_SIMPLE, NOWHERE, ProbeSpec, Simple, op, simple},
};

use super::emit::read_arg;
use crate::model::{BinaryOp, Expr, UnaryOp};

/// The simple form of one phase while it grows; gives up at the first expression that has none.
#[derive(Default)]
pub(super) struct SimplePhase {
    ops: Vec<Simple>,
    /// Values and where they stand.
    located: Vec<(u8, u8)>,
    failed: bool,
}

/// Writes both phases into a spec: as simple forms if all has one, else as what the code computes.
pub(super) fn put(spec: &mut ProbeSpec, entry: SimplePhase, last: SimplePhase, at_return: bool) {
    let fits = entry.ops.len() + last.ops.len() <= MAX_SIMPLE;
    let is_simple = fits && !entry.failed && !last.failed;
    spec.is_simple = u32::from(is_simple);
    spec.locations = [NOWHERE; 16];
    for (value, location) in entry.located.iter().chain(&last.located) {
        let computed = INPUTS as u8 + value;
        spec.locations[usize::from(*value)] = if is_simple { *location } else { computed };
    }
    if is_simple {
        let counts = (entry.ops.len() as u16, last.ops.len() as u16);
        (spec.entry_simple, spec.return_simple) =
            if at_return { counts } else { (counts.0 + counts.1, 0) };
        for (slot, simple) in spec.simple.iter_mut().zip(entry.ops.into_iter().chain(last.ops)) {
            *slot = simple;
        }
    }
}

impl SimplePhase {
    /// Rejects the hit unless the (folded) expression holds.
    pub(super) fn guard(&mut self, when: &Expr) {
        if matches!(when, Expr::Const(1..)) {
            return;
        }
        if self.conditions(when).is_none() {
            self.failed = true;
        }
    }

    fn conditions(&mut self, when: &Expr) -> Option<()> {
        match when {
            // A hit that the left side rejects is rejected before the right side is examined.
            Expr::Binary(BinaryOp::And, left, right) => {
                self.conditions(left)?;
                self.conditions(right)
            }
            Expr::Binary(BinaryOp::Ne, left, right) => {
                self.compare(left, right, simple::REJECT_IF_EQUAL)
            }
            Expr::Binary(BinaryOp::Eq, left, right) => {
                self.compare(left, right, simple::REJECT_UNLESS_EQUAL)
            }
            Expr::Unary(UnaryOp::Not, operand) => {
                self.compare(operand, &Expr::Const(0), simple::REJECT_UNLESS_EQUAL)
            }
            other => self.compare(other, &Expr::Const(0), simple::REJECT_IF_EQUAL),
        }
    }

    fn compare(&mut self, left: &Expr, right: &Expr, how: u8) -> Option<()> {
        let (word, constant) = match (left, right) {
            (Expr::Const(constant), word) | (word, Expr::Const(constant)) => (word, *constant),
            _ => return None,
        };
        self.ops.push(Simple { value: how, operand: constant, ..form(word)? });
        Some(())
    }

    /// Computes a value from the (folded) expression.
    pub(super) fn store(&mut self, expr: &Expr, index: u8) {
        let mut location = INPUTS as u8 + index;
        match expr {
            Expr::Arg(input) => location = *input,
            Expr::Ret => location = op::INPUT_RET,
            _ => match form(expr) {
                Some(word) => self.ops.push(Simple { value: index, ..word }),
                None => self.failed = true,
            },
        }
        self.located.push((index, location));
    }
}

/// The simple form of an expression; its value is still to be set.
fn form(expr: &Expr) -> Option<Simple> {
    let whole = Simple { mask: u64::MAX, ..Simple::default() };
    Some(match expr {
        Expr::Const(constant) => Simple { plus: *constant, ..Simple::default() },
        Expr::Arg(index) => Simple { input: *index, ..whole },
        Expr::Ret => Simple { input: op::INPUT_RET, ..whole },
        Expr::Binary(BinaryOp::Add, left, right) => match (&**left, &**right) {
            (Expr::Const(constant), word) | (word, Expr::Const(constant)) => {
                plus(form(word)?, *constant)
            }
            (base, index) => indexed(base, index).or_else(|| indexed(index, base))?,
        },
        Expr::Binary(BinaryOp::Sub, left, right) => match &**right {
            Expr::Const(constant) => plus(form(left)?, constant.wrapping_neg()),
            _ => return None,
        },
        Expr::Binary(BinaryOp::BitAnd, left, right) => match (&**left, &**right) {
            (Expr::Const(mask), word) | (word, Expr::Const(mask)) => masked(form(word)?, *mask)?,
            _ => return None,
        },
        // The remainder of an unsigned division by a power of two is its low bits.
        Expr::Binary(BinaryOp::Mod, left, right) => match &**right {
            Expr::Const(modulus) if modulus.is_power_of_two() => masked(form(left)?, modulus - 1)?,
            _ => return None,
        },
        Expr::Read(read, address) => {
            let address = form(address)?;
            if address.mask != u64::MAX || address.plus != 0 {
                return None;
            }
            if address.read == 0 {
                Simple {
                    read: read_arg(*read),
                    add: address.add.wrapping_add(address.bias),
                    bias: 0,
                    ..address
                }
            } else if address.read_2 == 0 {
                Simple { read_2: read_arg(*read), add_2: address.bias, bias: 0, ..address }
            } else {
                return None;
            }
        }
        _ => return None,
    })
}

/// Adds a constant: before the mask as long as there is none, so that it can still be masked or an address.
const fn plus(word: Simple, constant: u64) -> Simple {
    if word.mask == u64::MAX && word.plus == 0 {
        Simple { bias: word.bias.wrapping_add(constant), ..word }
    } else {
        Simple { plus: word.plus.wrapping_add(constant), ..word }
    }
}

fn masked(word: Simple, mask: u64) -> Option<Simple> {
    if word.plus == 0 { Some(Simple { mask: word.mask & mask, ..word }) } else { None }
}

/// `base + index`, where the index is an input, perhaps masked, then perhaps times a power of two.
fn indexed(base: &Expr, index: &Expr) -> Option<Simple> {
    let base = form(base)?;
    if base.read != 0 || base.index_mask != 0 || base.mask != u64::MAX || base.plus != 0 {
        return None;
    }
    let (input, mask, shift) = scaled(index)?;
    Some(Simple { index: input, index_mask: mask, shift, ..base })
}

fn scaled(index: &Expr) -> Option<(u8, u64, u8)> {
    let masked_input = |expr: &Expr| {
        let input = form(expr)?;
        let is_input =
            input.read == 0 && input.index_mask == 0 && input.bias == 0 && input.plus == 0;
        (is_input && input.mask != 0).then_some((input.input, input.mask))
    };
    let shift = match index {
        Expr::Binary(BinaryOp::Mul, left, right) => match (&**left, &**right) {
            (Expr::Const(factor), word) | (word, Expr::Const(factor))
                if factor.is_power_of_two() =>
            {
                Some((word, factor.trailing_zeros() as u8))
            }
            _ => return None,
        },
        Expr::Binary(BinaryOp::Shl, left, right) => match &**right {
            Expr::Const(count) => Some((&**left, (count & 63) as u8)),
            _ => return None,
        },
        _ => None,
    };
    let (word, shift) = shift.unwrap_or((index, 0));
    let (input, mask) = masked_input(word)?;
    Some((input, mask, shift))
}
