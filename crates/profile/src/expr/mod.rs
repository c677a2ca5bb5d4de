//! The profile language's expressions: text to [`Expr`] and back.
//!
//! `lexer` cuts the text into tokens as the parser asks for them, `parser` builds the tree with C's
//! precedences, `print` writes a tree so that it parses to itself again. Nothing here computes a value:
//! see `compile` (byte code for the kernel side) and `eval` (the plain meaning). `parse` calls this for
//! every expression of a profile; positions are bytes of the expression's own text, which
//! `Expr::relocate` turns into positions of the file.

mod lexer;
mod parser;
mod print;

use super::model::{BinaryOp, Expr, Span, Walk};

/// Bytes that an expression can have.
pub const MAX_EXPR_BYTES: usize = 1024;
/// How deep parentheses, reads, unary operators and functions can be nested.
pub const MAX_EXPR_DEPTH: usize = 32;

/// Why an expression is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExprError {
    /// Byte of the expression's text at which it happened.
    pub at: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl ExprError {
    fn new(at: usize, message: impl Into<String>) -> Self {
        Self { at, message: message.into() }
    }
}

/// Parses an expression.
pub fn parse(text: &str) -> Result<Expr, ExprError> {
    parser::parse(text)
}

/// Parses where the pages of a granule stand: `arg0` is the instance, `arg1` the granule's id.
pub fn parse_pages(text: &str) -> Result<Expr, ExprError> {
    let expr = parser::parse_pages(text)?;
    if expr.names_hit() {
        return Err(ExprError::new(
            0,
            "only `arg0` (the instance), `arg1` (the granule's id), reads and walks are known between hits",
        ));
    }
    Ok(expr)
}

/// Parses an expression about a structure that a census reads: `args` arguments are known, and nothing of a hit.
pub fn parse_of_structure(text: &str, args: u8) -> Result<Expr, ExprError> {
    fn knows(expr: &Expr, args: u8) -> bool {
        let knows_own = match expr {
            Expr::Arg(index) => *index < args,
            Expr::Ret | Expr::Caller => false,
            _ => true,
        };
        knows_own && expr.children().all(|child| knows(child, args))
    }
    let expr = parser::parse_pages(text)?;
    if knows(&expr, args) {
        return Ok(expr);
    }
    let known = if args > 0 { "`arg0` (the granule), `var`" } else { "`var`" };
    let message = format!("only {known}, `offsetof`, reads and walks are known in a structure");
    Err(ExprError::new(0, message))
}

/// Parses a label, `str(address)`, to the expression of the address.
pub fn parse_label(text: &str) -> Result<Expr, ExprError> {
    parser::parse_label(text)
}

impl Expr {
    /// The expressions that this one is made of.
    pub fn children(&self) -> impl Iterator<Item = &Self> {
        let children: [Option<&Self>; 4] = match self {
            Self::Const(_)
            | Self::Arg(_)
            | Self::Ret
            | Self::Caller
            | Self::Var(..)
            | Self::OffsetOf { .. }
            | Self::It => [None; 4],
            Self::Read(_, operand) | Self::Unary(_, operand) => [Some(operand), None, None, None],
            Self::Binary(_, left, right) => [Some(left), Some(right), None, None],
            Self::Walk(walk) => {
                let Walk { first, next, each, end, max: _ } = &**walk;
                [Some(first), Some(next), Some(each), end.as_ref()]
            }
        };
        children.into_iter().flatten()
    }

    /// Whether the expression names `ret`, and so can only be computed at the function's return.
    #[must_use]
    pub fn names_ret(&self) -> bool {
        matches!(self, Self::Ret) || self.children().any(Self::names_ret)
    }

    /// Whether the expression reads the target's memory.
    #[must_use]
    pub fn reads(&self) -> bool {
        matches!(self, Self::Read(..) | Self::Walk(_)) || self.children().any(Self::reads)
    }

    /// Whether the expression names `caller`.
    #[must_use]
    pub fn names_caller(&self) -> bool {
        matches!(self, Self::Caller) || self.children().any(Self::names_caller)
    }

    /// Whether it names what may be unknown of an object: `var(…)`, `offsetof(…)`.
    #[must_use]
    pub fn names_unknowns(&self) -> bool {
        matches!(self, Self::Var(..) | Self::OffsetOf { .. })
            || self.children().any(Self::names_unknowns)
    }

    /// Whether it names what only a hit or a matched object has.
    fn names_hit(&self) -> bool {
        matches!(
            self,
            Self::Arg(2..) | Self::Ret | Self::Caller | Self::Var(..) | Self::OffsetOf { .. }
        ) || self.children().any(Self::names_hit)
    }

    /// Maps every position that the expression carries.
    pub(super) fn relocate(&mut self, map: &dyn Fn(usize) -> usize) {
        let moved = |span: &mut Span| *span = map(span.start)..map(span.end);
        match self {
            Self::Const(_) | Self::Arg(_) | Self::Ret | Self::Caller | Self::It => {}
            Self::Var(_, span) | Self::OffsetOf { span, .. } => moved(span),
            Self::Read(_, operand) | Self::Unary(_, operand) => operand.relocate(map),
            Self::Binary(_, left, right) => {
                left.relocate(map);
                right.relocate(map);
            }
            Self::Walk(walk) => {
                let Walk { first, next, each, end, max: _ } = &mut **walk;
                [first, next, each].into_iter().chain(end).for_each(|part| part.relocate(map));
            }
        }
    }
}

impl BinaryOp {
    /// All operators with how they are written and how tightly they bind (higher: tighter), as in C.
    pub(super) const TABLE: [(Self, &'static str, u8); 17] = [
        (Self::Or, "||", 1),
        (Self::And, "&&", 2),
        (Self::BitOr, "|", 3),
        (Self::BitXor, "^", 4),
        (Self::BitAnd, "&", 5),
        (Self::Eq, "==", 6),
        (Self::Ne, "!=", 6),
        (Self::Lt, "<", 7),
        (Self::Le, "<=", 7),
        (Self::Gt, ">", 7),
        (Self::Ge, ">=", 7),
        (Self::Shl, "<<", 8),
        (Self::Shr, ">>", 8),
        (Self::Add, "+", 9),
        (Self::Sub, "-", 9),
        (Self::Mul, "*", 10),
        (Self::Mod, "%", 10),
    ];

    /// The operator that is written so, and how tightly it binds.
    fn from_text(text: &str) -> Option<(Self, u8)> {
        Self::TABLE.iter().find(|row| row.1 == text).map(|row| (row.0, row.2))
    }

    /// How the operator is written, and how tightly it binds.
    fn written(self) -> (&'static str, u8) {
        let row = Self::TABLE.iter().find(|row| row.0 == self);
        // The table has every operator (a test says so); an unknown one would bind loosest.
        row.map_or(("?", 0), |row| (row.1, row.2))
    }
}

#[cfg(test)]
mod tests;
