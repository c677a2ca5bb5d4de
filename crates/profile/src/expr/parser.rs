//! Builds an expression's tree: precedence climbing over the lexer's tokens.
//!
//! Called through [`super::parse`] and [`super::parse_label`]. Hostile text is bounded: by its length
//! first, then by nesting ([`MAX_EXPR_DEPTH`]), so that neither this parser nor what walks the tree
//! later can exhaust the stack.

use drainprof_common::spec::{MAX_WALK_NODES, WALK_NODES};

use super::{
    ExprError, MAX_EXPR_BYTES, MAX_EXPR_DEPTH,
    lexer::{Kind, Lexer, Token},
};
use crate::model::{BinaryOp, Expr, ReadType, UnaryOp, Walk};

const OPERAND: &str = "a number, arg0…arg5, ret, caller, a read such as `*(u32)(arg0 + 8)`, \
                       `offsetof(type, field)`, `var(\"symbol\")`, `popcount(…)`, `walk(…)` or `(`";

pub(super) fn parse(text: &str) -> Result<Expr, ExprError> {
    let mut parser = Parser::new(text)?;
    let expr = parser.expression(0)?;
    parser.end()?;
    Ok(expr)
}

/// An expression that user space computes: there a walk may stand inside another.
pub(super) fn parse_pages(text: &str) -> Result<Expr, ExprError> {
    let mut parser = Parser { walks_nest: true, ..Parser::new(text)? };
    let expr = parser.expression(0)?;
    parser.end()?;
    Ok(expr)
}

pub(super) fn parse_label(text: &str) -> Result<Expr, ExprError> {
    let mut parser = Parser::new(text)?;
    let first = parser.take()?;
    if first.kind != Kind::Name("str") {
        return Err(expected("`str(address)`, the address of the label's text", &first));
    }
    parser.sign("(", "`(` after `str`")?;
    let expr = parser.expression(0)?;
    parser.sign(")", "an operator, or `)` at the end of `str(…)`")?;
    parser.end()?;
    Ok(expr)
}

struct Parser<'a> {
    lexer: Lexer<'a>,
    next: Option<Token<'a>>,
    depth: usize,
    scope: Scope,
    walks_nest: bool,
}

/// What the expression that is being read is part of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// No walk.
    Hit,
    /// A walk's first node or its end: computed once.
    List,
    /// What is computed for each node of a walk: `it` is the node.
    Node,
}

fn expected(what: &str, found: &Token<'_>) -> ExprError {
    ExprError::new(found.start, format!("expected {what}, found {}", found.kind.describe()))
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, ExprError> {
        if text.len() > MAX_EXPR_BYTES {
            return Err(ExprError::new(
                0,
                format!(
                    "the expression has {} bytes; at most {MAX_EXPR_BYTES} are taken",
                    text.len()
                ),
            ));
        }
        let lexer = Lexer::new(text);
        Ok(Self { lexer, next: None, depth: 0, scope: Scope::Hit, walks_nest: false })
    }

    fn peek(&mut self) -> Result<Token<'a>, ExprError> {
        if let Some(token) = &self.next {
            return Ok(token.clone());
        }
        let token = self.lexer.next()?;
        self.next = Some(token.clone());
        Ok(token)
    }

    fn take(&mut self) -> Result<Token<'a>, ExprError> {
        let token = self.peek()?;
        self.next = None;
        Ok(token)
    }

    fn sign(&mut self, sign: &'static str, what: &str) -> Result<Token<'a>, ExprError> {
        let token = self.take()?;
        if token.kind == Kind::Sign(sign) { Ok(token) } else { Err(expected(what, &token)) }
    }

    fn end(&mut self) -> Result<(), ExprError> {
        let token = self.take()?;
        match token.kind {
            Kind::End => Ok(()),
            _ => Err(expected("an operator or the end of the expression", &token)),
        }
    }

    /// Binary operators that bind at least as tightly as `floor`.
    fn expression(&mut self, floor: u8) -> Result<Expr, ExprError> {
        let mut left = self.operand()?;
        while let Kind::Sign(sign) = self.peek()?.kind {
            let Some((operator, binding)) = BinaryOp::from_text(sign) else { break };
            if binding < floor {
                break;
            }
            self.take()?;
            // One more than its own: operators of one precedence group to the left.
            let right = self.expression(binding + 1)?;
            left = Expr::Binary(operator, Box::new(left), Box::new(right));
        }
        Ok(left)
    }

    /// One operand; every nesting goes through here, so this is where it is bounded.
    fn operand(&mut self) -> Result<Expr, ExprError> {
        self.depth += 1;
        let token = self.take()?;
        if self.depth > MAX_EXPR_DEPTH {
            return Err(ExprError::new(
                token.start,
                format!("nested deeper than {MAX_EXPR_DEPTH} levels"),
            ));
        }
        let expr = match token.kind {
            Kind::Integer(value) => Expr::Const(value),
            Kind::Name(name) => self.name(name, &token)?,
            Kind::Sign("(") => {
                let inner = self.expression(0)?;
                self.sign(")", "an operator or `)`")?;
                inner
            }
            Kind::Sign("!") => self.unary(UnaryOp::Not)?,
            Kind::Sign("-") => self.unary(UnaryOp::Neg)?,
            Kind::Sign("~") => self.unary(UnaryOp::BitNot)?,
            Kind::Sign("*") => self.read()?,
            Kind::Sign("&") => {
                return Err(ExprError::new(
                    token.start,
                    "there is no address-of; the address of a global is `var(\"symbol\")`",
                ));
            }
            _ => return Err(expected(OPERAND, &token)),
        };
        self.depth -= 1;
        Ok(expr)
    }

    fn unary(&mut self, operator: UnaryOp) -> Result<Expr, ExprError> {
        Ok(Expr::Unary(operator, Box::new(self.operand()?)))
    }

    /// `*(u32)(address)`, after the star.
    fn read(&mut self) -> Result<Expr, ExprError> {
        self.sign("(", "`(` and a type after `*`: a read is written `*(u32)(address)`")?;
        let token = self.take()?;
        let read = match token.kind {
            Kind::Name(name) => ReadType::from_name(name),
            _ => None,
        };
        let Some(read) = read else {
            return Err(expected("a type: u8, u16, u32, u64, i32 or i64", &token));
        };
        self.sign(")", "`)` after the type")?;
        self.sign("(", "`(` and the address: a read is written `*(u32)(address)`")?;
        let address = self.expression(0)?;
        self.sign(")", "an operator, or `)` after the address")?;
        Ok(Expr::Read(read, Box::new(address)))
    }

    fn name(&mut self, name: &str, token: &Token<'a>) -> Result<Expr, ExprError> {
        match name {
            "ret" => Ok(Expr::Ret),
            "caller" => Ok(Expr::Caller),
            "popcount" => {
                self.sign("(", "`(` after `popcount`")?;
                let operand = self.expression(0)?;
                self.sign(")", "an operator, or `)` at the end of `popcount(…)`")?;
                Ok(Expr::Unary(UnaryOp::Popcount, Box::new(operand)))
            }
            "var" => self.var(token),
            "offsetof" => self.offset_of(token),
            "walk" => self.walk(token),
            "it" if self.scope == Scope::Node => Ok(Expr::It),
            "it" => Err(ExprError::new(
                token.start,
                "`it` is the node of a list: it is known only in the second and third argument of \
                 `walk(first, next, expr)`",
            )),
            "str" => Err(ExprError::new(
                token.start,
                "`str(…)` stands only in `label`, around the whole: label = \"str(arg4)\"",
            )),
            _ => match name.strip_prefix("arg") {
                Some(digits) if digits.len() == 1 && ("0"..="5").contains(&digits) => {
                    Ok(Expr::Arg(digits.as_bytes()[0] - b'0'))
                }
                Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => Err(
                    ExprError::new(token.start, format!("`{name}`: arguments are arg0 to arg5")),
                ),
                _ => Err(expected(OPERAND, token)),
            },
        }
    }

    /// `walk(first, next, expr)`, after `walk`.
    fn walk(&mut self, token: &Token<'a>) -> Result<Expr, ExprError> {
        const FORM: &str = "a walk is written `walk(first, next, expr)`";
        if self.scope == Scope::Node && !self.walks_nest {
            return Err(ExprError::new(
                token.start,
                "a `walk(…)` cannot stand inside another; add them up side by side",
            ));
        }
        self.sign("(", "`(` after `walk`")?;
        let comma = format!("an operator or `,`: {FORM}");
        // What is computed before the first node may name the node of a walk outside.
        let outside = if self.scope == Scope::Node { Scope::Node } else { Scope::List };
        let first = self.within(outside)?;
        self.sign(",", &comma)?;
        let next = self.within(Scope::Node)?;
        self.sign(",", &comma)?;
        let each = self.within(Scope::Node)?;
        let (mut end, mut max) = (None, None);
        loop {
            let token = self.take()?;
            match token.kind {
                Kind::Sign(")") => break,
                Kind::Sign(",") => {}
                _ => {
                    return Err(expected(
                        "an operator, `,`, or `)` at the end of `walk(…)`",
                        &token,
                    ));
                }
            }
            let name = self.take()?;
            match name.kind {
                Kind::Name("end") if end.is_none() => {
                    self.sign("=", "`=` after `end`")?;
                    end = Some(self.within(outside)?);
                }
                Kind::Name("max") if max.is_none() => {
                    self.sign("=", "`=` after `max`")?;
                    max = Some(self.max()?);
                }
                _ => return Err(expected("`end = address` or `max = number`, each once", &name)),
            }
        }
        let max = max.unwrap_or(WALK_NODES);
        Ok(Expr::Walk(Box::new(Walk { first, next, each, end, max })))
    }

    /// An expression that is part of a walk.
    fn within(&mut self, scope: Scope) -> Result<Expr, ExprError> {
        let outside = std::mem::replace(&mut self.scope, scope);
        let expr = self.expression(0)?;
        self.scope = outside;
        Ok(expr)
    }

    /// The nodes that a walk may visit.
    fn max(&mut self) -> Result<u16, ExprError> {
        let token = self.take()?;
        match token.kind {
            Kind::Integer(number @ 1..) if number <= u64::from(MAX_WALK_NODES) => Ok(number as u16),
            _ => Err(expected(&format!("a number from 1 to {MAX_WALK_NODES}"), &token)),
        }
    }

    /// `var("symbol")`, after `var`.
    fn var(&mut self, token: &Token<'a>) -> Result<Expr, ExprError> {
        self.sign("(", "`(` after `var`")?;
        let name = self.take()?;
        let Kind::Text(symbol) = name.kind else {
            return Err(expected("a symbol in quotes: `var(\"symbol\")`", &name));
        };
        let printable = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\'';
        if symbol.is_empty() || !symbol.bytes().all(printable) {
            return Err(ExprError::new(
                name.start,
                "a symbol is at least one printable character, without spaces and quotes",
            ));
        }
        let end = self.sign(")", "`)` after the symbol")?.end;
        Ok(Expr::Var(symbol.to_owned(), token.start..end))
    }

    /// `offsetof(type, field.path)`, after `offsetof`. Type names have signs of their own (`a::b<c, d>`),
    /// so this examines the text: the path is what stands behind the last comma.
    fn offset_of(&mut self, token: &Token<'a>) -> Result<Expr, ExprError> {
        self.sign("(", "`(` after `offsetof`")?;
        let start = self.lexer.position();
        let fail = |at: usize, message: &str| Err(ExprError::new(at, message));
        let Some(inner) = self.lexer.until_closing() else {
            return fail(token.start, "this `offsetof(` is never closed");
        };
        let Some((type_name, field)) = inner.rsplit_once(',') else {
            return fail(start, "expected a type and a field: `offsetof(struct pool, d.last)`");
        };
        let field_at = start + type_name.len() + 1;
        let type_name = type_name.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
        let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if type_name.is_empty()
            || !type_name.bytes().all(|byte| is_word(byte) || b" :<>,*&()[]-".contains(&byte))
        {
            return fail(start, "expected a type's name, such as `struct pool` or `ns::Pool`");
        }
        let field = field.trim();
        let is_member = |member: &str| {
            member.bytes().all(is_word)
                && member.bytes().next().is_some_and(|b| !b.is_ascii_digit())
        };
        if !field.split('.').all(is_member) {
            return fail(field_at, "expected a field's name, or a path such as `d.last`");
        }
        Ok(Expr::OffsetOf {
            type_name,
            field: field.to_owned(),
            span: token.start..self.lexer.position(),
        })
    }
}
