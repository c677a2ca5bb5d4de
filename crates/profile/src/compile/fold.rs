//! Puts in what the resolver knows and computes what is constant.
//!
//! Never changes what a hit does: a read stays a read (it may fault), `x % 0` stays a division by zero
//! at run time, and only what would not have been evaluated is left out.

use super::error::Refusal;
use crate::{
    eval::apply,
    model::{BinaryOp, Expr, UnaryOp, Walk},
    resolver::Resolver,
};

/// The expression with constants in place of names and of everything that is constant.
pub(super) fn fold(expr: &Expr, resolver: &dyn Resolver) -> Result<Expr, Refusal> {
    Ok(match expr {
        Expr::Const(_) | Expr::Arg(_) | Expr::Ret | Expr::Caller | Expr::It => expr.clone(),
        Expr::Var(symbol, span) => Expr::Const(resolver.var(symbol).ok_or_else(|| Refusal {
            message: format!(
                "the matched object has no global symbol `{symbol}`; name it in `match.symbols`, so \
                 that objects without it are left alone"
            ),
            span: Some(span.clone()),
        })?),
        Expr::OffsetOf { type_name, field, span } => {
            let offset = resolver.offset_of(type_name, field);
            Expr::Const(offset.map_err(|why| Refusal {
                message: format!("offsetof({type_name}, {field}): {why}"),
                span: Some(span.clone()),
            })?)
        }
        Expr::Read(read, address) => Expr::Read(*read, Box::new(fold(address, resolver)?)),
        Expr::Unary(operator, operand) => unary(*operator, fold(operand, resolver)?),
        Expr::Walk(walk) => Expr::Walk(Box::new(Walk {
            first: fold(&walk.first, resolver)?,
            next: fold(&walk.next, resolver)?,
            each: fold(&walk.each, resolver)?,
            end: walk.end.as_ref().map(|end| fold(end, resolver)).transpose()?,
            max: walk.max,
        })),
        Expr::Binary(operator, left, right) => {
            let left = fold(left, resolver)?;
            match (operator, &left) {
                (BinaryOp::And, Expr::Const(0)) => Expr::Const(0),
                (BinaryOp::Or, Expr::Const(1..)) => Expr::Const(1),
                (BinaryOp::And | BinaryOp::Or, Expr::Const(_)) => truth(fold(right, resolver)?),
                _ => binary(*operator, left, fold(right, resolver)?),
            }
        }
    })
}

fn unary(operator: UnaryOp, operand: Expr) -> Expr {
    let Expr::Const(value) = operand else {
        return Expr::Unary(operator, Box::new(operand));
    };
    Expr::Const(match operator {
        UnaryOp::Not => u64::from(value == 0),
        UnaryOp::Neg => value.wrapping_neg(),
        UnaryOp::BitNot => !value,
        UnaryOp::Popcount => u64::from(value.count_ones()),
    })
}

fn binary(operator: BinaryOp, left: Expr, right: Expr) -> Expr {
    match (operator, &left, &right) {
        (_, Expr::Const(a), Expr::Const(b)) => {
            if let Some(value) = apply(operator, *a, *b) {
                return Expr::Const(value);
            }
        }
        // `arg0 + offsetof(t, first)`: often nothing is added.
        (BinaryOp::Add | BinaryOp::Sub, _, Expr::Const(0)) => return left,
        (BinaryOp::Add, Expr::Const(0), _) => return right,
        _ => {}
    }
    Expr::Binary(operator, Box::new(left), Box::new(right))
}

/// 1 where the expression is not 0, else 0.
fn truth(expr: Expr) -> Expr {
    match expr {
        Expr::Const(value) => Expr::Const(u64::from(value != 0)),
        expr if is_truth(&expr) => expr,
        expr => Expr::Unary(UnaryOp::Not, Box::new(Expr::Unary(UnaryOp::Not, Box::new(expr)))),
    }
}

/// Whether the expression's value is 0 or 1 by its form.
pub(super) fn is_truth(expr: &Expr) -> bool {
    match expr {
        Expr::Const(value) => *value < 2,
        Expr::Unary(operator, _) => *operator == UnaryOp::Not,
        Expr::Binary(operator, ..) => matches!(
            operator,
            BinaryOp::Eq
                | BinaryOp::Ne
                | BinaryOp::Lt
                | BinaryOp::Le
                | BinaryOp::Gt
                | BinaryOp::Ge
                | BinaryOp::And
                | BinaryOp::Or
        ),
        _ => false,
    }
}
