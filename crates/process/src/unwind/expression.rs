//! DWARF expressions of unwind tables, for an address that is known: to a register, or a word of memory, and
//! a distance.
//!
//! Linkers describe PLT entries by an expression over the code address, compilers functions that align their
//! stack by one that reads memory, and glibc its return from signals likewise. They all come down to a simple
//! [`Value`] once the code address is put in; what does not is no rule. Called by `translate`.

use gimli::{EndianSlice, LittleEndian, Operation, Register, X86_64};

/// Bytes of unwind tables.
pub(super) type Bytes<'a> = EndianSlice<'a, LittleEndian>;

/// Longest expression that is evaluated; real ones have eight steps.
const MAX_STEPS: usize = 64;
/// Most values on the expression's stack.
const MAX_DEPTH: usize = 16;

/// What a value is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The stack pointer.
    Sp,
    /// The frame pointer register.
    Bp,
    /// The CFA of the frame.
    Cfa,
}

/// What an expression yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// A number.
    Number(u64),
    /// So far from a base.
    Near(Base, i64),
    /// The word of memory that lies so far from a base.
    Word(Base, i64),
}

impl Value {
    fn number(self) -> Option<u64> {
        if let Self::Number(number) = self { Some(number) } else { None }
    }

    fn plus(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Number(one), Self::Number(two)) => Some(Self::Number(one.wrapping_add(two))),
            (Self::Near(base, at), Self::Number(more))
            | (Self::Number(more), Self::Near(base, at)) => {
                Some(Self::Near(base, at.wrapping_add(more.cast_signed())))
            }
            _ => None,
        }
    }

    fn minus(self, other: Self) -> Option<Self> {
        let negative = other.number()?.wrapping_neg();
        self.plus(Self::Number(negative))
    }
}

/// Evaluates `expression` at the code address `pc`, with `first` on its stack; `None` for what has no simple
/// value.
pub(super) fn evaluate(
    expression: gimli::Expression<Bytes<'_>>,
    encoding: gimli::Encoding,
    pc: u64,
    first: Option<Value>,
) -> Option<Value> {
    let mut stack: Vec<Value> = first.into_iter().collect();
    let mut operations = expression.operations(encoding);
    for _ in 0..MAX_STEPS {
        let Some(operation) = operations.next().ok()? else { return stack.pop() };
        step(&operation, pc, &mut stack)?;
        if stack.len() > MAX_DEPTH {
            return None;
        }
    }
    None
}

fn step(operation: &Operation<Bytes<'_>>, pc: u64, stack: &mut Vec<Value>) -> Option<()> {
    let value = match *operation {
        Operation::Nop => return Some(()),
        Operation::UnsignedConstant { value } => Value::Number(value),
        Operation::SignedConstant { value } => Value::Number(value.cast_unsigned()),
        Operation::RegisterOffset { register, offset, base_type } if base_type.0 == 0 => {
            register_value(register, offset, pc)?
        }
        Operation::PlusConstant { value } => stack.pop()?.plus(Value::Number(value))?,
        Operation::Deref { base_type, size: 8, space: false } if base_type.0 == 0 => {
            match stack.pop()? {
                Value::Near(base, at) => Value::Word(base, at),
                Value::Number(_) | Value::Word(..) => return None,
            }
        }
        ref other => {
            let second = stack.pop()?;
            let first = stack.pop()?;
            match other {
                Operation::Plus => first.plus(second)?,
                Operation::Minus => first.minus(second)?,
                other => Value::Number(arithmetic(other, first.number()?, second.number()?)?),
            }
        }
    };
    stack.push(value);
    Some(())
}

fn register_value(register: Register, offset: i64, pc: u64) -> Option<Value> {
    Some(match register {
        X86_64::RSP => Value::Near(Base::Sp, offset),
        X86_64::RBP => Value::Near(Base::Bp, offset),
        X86_64::RA => Value::Number(pc.wrapping_add_signed(offset)),
        _ => return None,
    })
}

/// Two numbers; comparisons are signed.
fn arithmetic(operation: &Operation<Bytes<'_>>, one: u64, two: u64) -> Option<u64> {
    let (left, right) = (one.cast_signed(), two.cast_signed());
    let shift = || u32::try_from(two).ok();
    Some(match operation {
        Operation::And => one & two,
        Operation::Or => one | two,
        Operation::Xor => one ^ two,
        Operation::Mul => one.wrapping_mul(two),
        Operation::Shl => one.checked_shl(shift()?)?,
        Operation::Shr => one.checked_shr(shift()?)?,
        Operation::Eq => (left == right).into(),
        Operation::Ne => (left != right).into(),
        Operation::Ge => (left >= right).into(),
        Operation::Gt => (left > right).into(),
        Operation::Le => (left <= right).into(),
        Operation::Lt => (left < right).into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(bytes: &[u8], pc: u64) -> Option<Value> {
        let encoding =
            gimli::Encoding { format: gimli::Format::Dwarf32, version: 4, address_size: 8 };
        let expression = gimli::Expression(EndianSlice::new(bytes, LittleEndian));
        evaluate(expression, encoding, pc, None)
    }

    /// The expressions that linkers, compilers and glibc write have their values; the linkers' depends on
    /// where in the PLT entry the code is.
    #[test]
    fn known_shapes() {
        // breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(value(&plt, 0x1020), Some(Value::Near(Base::Sp, 8)));
        assert_eq!(value(&plt, 0x102a), Some(Value::Near(Base::Sp, 8)));
        assert_eq!(value(&plt, 0x102b), Some(Value::Near(Base::Sp, 16)));
        // breg6 -8; deref
        assert_eq!(value(&[0x76, 0x78, 6], 0), Some(Value::Word(Base::Bp, -8)));
        // breg7 160; deref
        assert_eq!(value(&[0x77, 0xa0, 1, 6], 0), Some(Value::Word(Base::Sp, 160)));
        // breg6 -24; plus_uconst 8
        assert_eq!(value(&[0x76, 0x68, 0x23, 8], 0), Some(Value::Near(Base::Bp, -16)));
        assert_eq!(value(&[0x76, 0x68, 0x38, 0x1c], 0), Some(Value::Near(Base::Bp, -32)));
    }

    /// What is not simple, empty, endless or malformed has no value.
    #[test]
    fn other_shapes() {
        // Another register; a word plus 8; two words added; a jump back to itself; a lone `plus`; cut short.
        for bytes in [
            &[0x7a, 0][..],
            &[0x76, 0, 6, 0x23, 8],
            &[0x76, 0, 6, 0x77, 0, 6, 0x22],
            &[0x2f, 0xfd, 0xff],
            &[0x22],
            &[0x77],
            &[],
            &[0x30, 0x30, 0x24, 0x77, 0, 0x1a],
            &[0x30; 100],
        ] {
            assert_eq!(value(bytes, 0), None, "{bytes:x?}");
        }
    }
}
