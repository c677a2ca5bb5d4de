//! Writes an expression as text that parses to the same tree, with no more parentheses than it needs.
//!
//! `profile show` and error messages print expressions through `Display`.

use std::fmt::{self, Display, Formatter};

use drainprof_common::spec::WALK_NODES;

use crate::model::{Expr, ReadType, UnaryOp, Walk};

/// Binds tighter than every binary operator.
const OPERAND: u8 = 11;

impl ReadType {
    const TABLE: [(Self, &'static str); 6] = [
        (Self::U8, "u8"),
        (Self::U16, "u16"),
        (Self::U32, "u32"),
        (Self::U64, "u64"),
        (Self::I32, "i32"),
        (Self::I64, "i64"),
    ];

    pub(super) fn from_name(name: &str) -> Option<Self> {
        Self::TABLE.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    fn name(self) -> &'static str {
        Self::TABLE.iter().find(|row| row.0 == self).map_or("?", |row| row.1)
    }
}

impl Display for Expr {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        write(self, 0, out)
    }
}

/// Writes `expr` where only what binds at least as tightly as `floor` stands without parentheses.
fn write(expr: &Expr, floor: u8, out: &mut Formatter<'_>) -> fmt::Result {
    match expr {
        Expr::Const(value) if *value < 1024 => write!(out, "{value}"),
        Expr::Const(value) => write!(out, "{value:#x}"),
        Expr::Arg(index) => write!(out, "arg{index}"),
        Expr::Ret => out.write_str("ret"),
        Expr::Caller => out.write_str("caller"),
        Expr::Read(read, address) => write!(out, "*({})({address})", read.name()),
        Expr::Unary(UnaryOp::Popcount, operand) => write!(out, "popcount({operand})"),
        Expr::Unary(operator, operand) => {
            out.write_str(match operator {
                UnaryOp::Not => "!",
                UnaryOp::Neg => "-",
                UnaryOp::BitNot => "~",
                UnaryOp::Popcount => "popcount ",
            })?;
            write(operand, OPERAND, out)
        }
        Expr::Var(symbol, _) => write!(out, "var(\"{symbol}\")"),
        Expr::OffsetOf { type_name, field, .. } => write!(out, "offsetof({type_name}, {field})"),
        Expr::It => out.write_str("it"),
        Expr::Walk(walk) => {
            let Walk { first, next, each, end, max } = &**walk;
            write!(out, "walk({first}, {next}, {each}")?;
            if let Some(end) = end {
                write!(out, ", end = {end}")?;
            }
            if *max != WALK_NODES {
                write!(out, ", max = {max}")?;
            }
            out.write_str(")")
        }
        Expr::Binary(operator, left, right) => {
            let (sign, binding) = operator.written();
            if binding < floor {
                out.write_str("(")?;
            }
            write(left, binding, out)?;
            write!(out, " {sign} ")?;
            // Operators group to the left, so an equal one on the right needs parentheses.
            write(right, binding + 1, out)?;
            if binding < floor {
                out.write_str(")")?;
            }
            Ok(())
        }
    }
}
