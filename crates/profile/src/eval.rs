//! What expressions mean, said in the plainest way: a recursive evaluator.
//!
//! The kernel side never runs this; it runs the byte code that `compile` makes. Property tests hold the
//! two against each other, and this one is short enough to be read as the definition.

use drainprof_common::interp::Machine;

use super::{
    model::{BinaryOp, Expr, ReadType, UnaryOp, Walk},
    resolver::Resolver,
};

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvalError {
    /// A read of target memory failed, or a division by zero.
    #[error("target memory is not readable, or a division by zero")]
    Fault,
    /// A list has more nodes than its walk may visit.
    #[error("a list is longer than its walk may go, or has no end")]
    Cut,
    /// A name of the binary is not known.
    #[error("{0}")]
    Unresolved(String),
}

/// The value of an expression on a machine.
pub fn eval<M: Machine>(
    expr: &Expr,
    machine: &M,
    resolver: &dyn Resolver,
) -> Result<u64, EvalError> {
    eval_at(expr, None, machine, resolver)
}

/// All values of an expression: a walk has those of each of its nodes, one after the other, instead of their sum.
pub fn eval_all<M: Machine>(
    expr: &Expr,
    machine: &M,
    resolver: &dyn Resolver,
) -> Result<Vec<u64>, EvalError> {
    let mut values = Vec::new();
    collect(expr, None, machine, resolver, &mut values)?;
    Ok(values)
}

fn collect<M: Machine>(
    expr: &Expr,
    it: Option<u64>,
    machine: &M,
    resolver: &dyn Resolver,
    values: &mut Vec<u64>,
) -> Result<(), EvalError> {
    let value = |expr: &Expr, it| eval_at(expr, it, machine, resolver);
    let Expr::Walk(walk) = expr else {
        values.push(value(expr, it)?);
        return Ok(());
    };
    let mut node = value(&walk.first, it)?;
    let end = walk.end.as_ref().map_or(Ok(0), |end| value(end, it))?;
    let mut left = walk.max;
    while node != 0 && node != end {
        left = left.checked_sub(1).ok_or(EvalError::Cut)?;
        collect(&walk.each, Some(node), machine, resolver, values)?;
        node = value(&walk.next, Some(node))?;
    }
    Ok(())
}

/// The value of an expression at a node of a list.
fn eval_at<M: Machine>(
    expr: &Expr,
    it: Option<u64>,
    machine: &M,
    resolver: &dyn Resolver,
) -> Result<u64, EvalError> {
    let value = |expr: &Expr| eval_at(expr, it, machine, resolver);
    Ok(match expr {
        Expr::Const(value) => *value,
        Expr::Arg(index) => machine.arg(*index),
        Expr::Ret => machine.ret(),
        Expr::Caller => machine.caller().ok_or(EvalError::Fault)?,
        Expr::Read(read, address) => {
            let address = value(address)?;
            let word = |size| machine.read(address, size).ok_or(EvalError::Fault);
            match read {
                ReadType::U8 => word(1)?,
                ReadType::U16 => word(2)?,
                ReadType::U32 => word(4)?,
                ReadType::U64 | ReadType::I64 => word(8)?,
                ReadType::I32 => i64::from((word(4)? as u32).cast_signed()).cast_unsigned(),
            }
        }
        Expr::Unary(UnaryOp::Not, operand) => u64::from(value(operand)? == 0),
        Expr::Unary(UnaryOp::Neg, operand) => value(operand)?.wrapping_neg(),
        Expr::Unary(UnaryOp::BitNot, operand) => !value(operand)?,
        Expr::Unary(UnaryOp::Popcount, operand) => u64::from(value(operand)?.count_ones()),
        Expr::Binary(BinaryOp::And, left, right) => {
            u64::from(value(left)? != 0 && value(right)? != 0)
        }
        Expr::Binary(BinaryOp::Or, left, right) => {
            u64::from(value(left)? != 0 || value(right)? != 0)
        }
        Expr::Binary(operator, left, right) => {
            let (left, right) = (value(left)?, value(right)?);
            apply(*operator, left, right).ok_or(EvalError::Fault)?
        }
        Expr::Var(symbol, _) => resolver
            .var(symbol)
            .ok_or_else(|| EvalError::Unresolved(format!("no global symbol `{symbol}`")))?,
        Expr::OffsetOf { type_name, field, .. } => {
            resolver.offset_of(type_name, field).map_err(EvalError::Unresolved)?
        }
        Expr::It => it.ok_or_else(|| EvalError::Unresolved("`it` outside of a walk".to_owned()))?,
        Expr::Walk(walk) => {
            let Walk { first, next, each, end, max } = &**walk;
            let (mut node, mut sum) = (value(first)?, 0u64);
            let end = end.as_ref().map_or(Ok(0), value)?;
            for _ in 0..*max {
                if node == 0 || node == end {
                    return Ok(sum);
                }
                let at_node = |expr| eval_at(expr, Some(node), machine, resolver);
                sum = sum.wrapping_add(at_node(each)?);
                node = at_node(next)?;
            }
            if node == 0 || node == end { sum } else { return Err(EvalError::Cut) }
        }
    })
}

/// A binary operation on two values, both of which were needed; `None` for a division by zero.
pub(super) fn apply(operator: BinaryOp, left: u64, right: u64) -> Option<u64> {
    Some(match operator {
        BinaryOp::Add => left.wrapping_add(right),
        BinaryOp::Sub => left.wrapping_sub(right),
        BinaryOp::Mul => left.wrapping_mul(right),
        BinaryOp::Mod => return left.checked_rem(right),
        BinaryOp::BitAnd => left & right,
        BinaryOp::BitOr => left | right,
        BinaryOp::BitXor => left ^ right,
        BinaryOp::Shl => left << (right % 64),
        BinaryOp::Shr => left >> (right % 64),
        BinaryOp::Eq => u64::from(left == right),
        BinaryOp::Ne => u64::from(left != right),
        BinaryOp::Lt => u64::from(left < right),
        BinaryOp::Le => u64::from(left <= right),
        BinaryOp::Gt => u64::from(left > right),
        BinaryOp::Ge => u64::from(left >= right),
        BinaryOp::And => u64::from(left != 0 && right != 0),
        BinaryOp::Or => u64::from(left != 0 || right != 0),
    })
}
