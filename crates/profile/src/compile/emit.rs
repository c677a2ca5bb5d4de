//! Writes byte code: one expression after the other, within the interpreter's bounds.
//!
//! Operands are computed from left to right, as they are written. Jumps only go forward, but for the step
//! of a walk, which goes back to the beginning of what is done for each node.

use drainprof_common::spec::{Insn, MAX_CODE, MAX_CONSTS, MAX_STACK, op};

use super::{error::Refusal, fold::is_truth};
use crate::model::{BinaryOp, Expr, ReadType, UnaryOp, Walk};

/// Code and constants of one spec while they grow; never beyond the interpreter's bounds.
#[derive(Default)]
pub(super) struct Emitter {
    code: Vec<Insn>,
    consts: Vec<u64>,
    depth: usize,
}

impl Emitter {
    /// Rejects the hit unless the (folded) expression holds.
    pub(super) fn guard(&mut self, when: &Expr) -> Result<(), Refusal> {
        // A guard that always holds is none; one that never does is left to reject at run time.
        if !matches!(when, Expr::Const(1..)) {
            self.expr(when)?;
            self.pop(op::GUARD, 0)?;
        }
        Ok(())
    }

    /// Computes a value from the (folded) expression.
    pub(super) fn store(&mut self, expr: &Expr, index: u8) -> Result<(), Refusal> {
        self.expr(expr)?;
        self.pop(op::STORE, index)
    }

    /// Ends a phase.
    pub(super) fn end(&mut self) -> Result<(), Refusal> {
        self.put(op::END, 0)
    }

    /// Instructions so far.
    pub(super) fn len(&self) -> u16 {
        self.code.len() as u16
    }

    /// The code, as specs hold it.
    pub(super) fn code(&self) -> [Insn; MAX_CODE] {
        let mut code = [Insn::default(); MAX_CODE];
        for (slot, insn) in code.iter_mut().zip(&self.code) {
            *slot = *insn;
        }
        code
    }

    /// The constants, as specs hold them.
    pub(super) fn consts(&self) -> [u64; MAX_CONSTS] {
        let mut consts = [0; MAX_CONSTS];
        for (slot, value) in consts.iter_mut().zip(&self.consts) {
            *slot = *value;
        }
        consts
    }

    fn put(&mut self, operation: u8, arg: u8) -> Result<(), Refusal> {
        if self.code.len() >= MAX_CODE {
            return Err(format!(
                "the probe's expressions need more than {MAX_CODE} instructions together; shorten \
                 them, or leave out values that are not needed"
            )
            .into());
        }
        self.code.push(Insn { op: operation, arg, target: 0 });
        Ok(())
    }

    fn push(&mut self, operation: u8, arg: u8) -> Result<(), Refusal> {
        self.depth += 1;
        if self.depth > MAX_STACK {
            return Err(format!(
                "more than {MAX_STACK} operands wait at once; put the longer operand on the left"
            )
            .into());
        }
        self.put(operation, arg)
    }

    fn pop(&mut self, operation: u8, arg: u8) -> Result<(), Refusal> {
        self.depth -= 1;
        self.put(operation, arg)
    }

    fn constant(&mut self, value: u64) -> Result<(), Refusal> {
        let index = self.index_of(value)?;
        self.push(op::CONST, index)
    }

    /// The index of a constant, which is kept once.
    fn index_of(&mut self, value: u64) -> Result<u8, Refusal> {
        let known = self.consts.iter().position(|known| *known == value);
        let index = known.unwrap_or(self.consts.len());
        if index >= MAX_CONSTS {
            return Err(format!(
                "the probe's expressions have more than {MAX_CONSTS} different constants together"
            )
            .into());
        }
        if known.is_none() {
            self.consts.push(value);
        }
        Ok(index as u8)
    }

    /// Leaves the expression's value on the stack.
    fn expr(&mut self, expr: &Expr) -> Result<(), Refusal> {
        match expr {
            Expr::Const(value) => self.constant(*value),
            Expr::Arg(index) => self.push(op::ARG, *index),
            Expr::Ret => self.push(op::RET, op::INPUT_RET),
            Expr::Caller => self.push(op::CALLER, op::INPUT_CALLER),
            Expr::Read(read, address) => {
                self.expr(address)?;
                self.put(op::READ, read_arg(*read))
            }
            Expr::Unary(operator, operand) => self.unary(*operator, operand),
            Expr::Binary(BinaryOp::And, left, right) => self.lazy(op::JUMP_IF_ZERO, left, right),
            Expr::Binary(BinaryOp::Or, left, right) => self.lazy(op::JUMP_IF_NONZERO, left, right),
            Expr::Binary(operator, left, right) => {
                self.expr(left)?;
                self.expr(right)?;
                self.binary(*operator)
            }
            Expr::It => self.push(op::IT, 0),
            Expr::Walk(walk) => self.walk(walk),
            Expr::Var(name, span) | Expr::OffsetOf { type_name: name, span, .. } => Err(Refusal {
                message: format!("`{name}` was not resolved"),
                span: Some(span.clone()),
            }),
        }
    }

    fn unary(&mut self, operator: UnaryOp, operand: &Expr) -> Result<(), Refusal> {
        match operator {
            UnaryOp::Not => {
                if let Expr::Unary(UnaryOp::Not, inner) = operand {
                    return self.truth(inner);
                }
                self.expr(operand)?;
                self.put(op::NOT, 0)
            }
            UnaryOp::Popcount => {
                self.expr(operand)?;
                self.put(op::POPCOUNT, 0)
            }
            UnaryOp::Neg => {
                self.constant(0)?;
                self.expr(operand)?;
                self.pop(op::SUB, 0)
            }
            UnaryOp::BitNot => {
                self.expr(operand)?;
                self.constant(u64::MAX)?;
                self.pop(op::XOR, 0)
            }
        }
    }

    fn binary(&mut self, operator: BinaryOp) -> Result<(), Refusal> {
        let operation = match operator {
            BinaryOp::Add => op::ADD,
            BinaryOp::Sub => op::SUB,
            BinaryOp::Mul => op::MUL,
            BinaryOp::Mod => op::MOD,
            BinaryOp::BitAnd => op::AND,
            BinaryOp::BitOr => op::OR,
            BinaryOp::BitXor => op::XOR,
            BinaryOp::Shl => op::SHL,
            BinaryOp::Shr => op::SHR,
            BinaryOp::Eq => op::EQ,
            BinaryOp::Ne => op::NE,
            BinaryOp::Lt | BinaryOp::Ge => op::LT,
            BinaryOp::Le | BinaryOp::Gt => op::LE,
            BinaryOp::And | BinaryOp::Or => return Err("`&&` and `||` are lazy".to_owned().into()),
        };
        self.pop(operation, 0)?;
        // Swapping the operands instead would change the order of their reads.
        if matches!(operator, BinaryOp::Gt | BinaryOp::Ge) {
            self.put(op::NOT, 0)?;
        }
        Ok(())
    }

    /// The expression's value as 0 or 1.
    fn truth(&mut self, expr: &Expr) -> Result<(), Refusal> {
        self.expr(expr)?;
        if is_truth(expr) { Ok(()) } else { self.put(op::BOOL, 0) }
    }

    /// `&&` and `||`: where the left side decides, its value stays and the right side is jumped over.
    fn lazy(&mut self, jump: u8, left: &Expr, right: &Expr) -> Result<(), Refusal> {
        self.truth(left)?;
        let from = self.code.len();
        self.put(jump, 0)?;
        self.pop(op::POP, 0)?;
        self.truth(right)?;
        self.aim(from, self.len());
        Ok(())
    }

    /// A walk: its sum stays on the stack while the nodes pass by above it.
    fn walk(&mut self, walk: &Walk) -> Result<(), Refusal> {
        let Walk { first, next, each, end, max } = walk;
        self.constant(0)?;
        self.expr(first)?;
        match end {
            Some(end) => self.expr(end)?,
            None => self.constant(0)?,
        }
        let max = self.index_of(u64::from(*max))?;
        let begin = self.code.len();
        self.pop(op::WALK, max)?;
        self.depth -= 1;
        self.expr(each)?;
        self.pop(op::ADD, 0)?;
        self.expr(next)?;
        let step = self.code.len();
        self.pop(op::STEP, 0)?;
        self.aim(step, begin as u16 + 1);
        self.aim(begin, self.len());
        Ok(())
    }

    fn aim(&mut self, jump: usize, target: u16) {
        if let Some(insn) = self.code.get_mut(jump) {
            insn.target = target;
        }
    }
}

/// [`op::READ`]'s operand: the size, and bit 4 for sign extension.
pub(super) fn read_arg(read: ReadType) -> u8 {
    match read {
        ReadType::U8 => 1,
        ReadType::U16 => 2,
        ReadType::U32 => 4,
        ReadType::U64 | ReadType::I64 => 8,
        ReadType::I32 => 4 | 16,
    }
}
