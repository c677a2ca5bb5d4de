//! Cuts an expression into tokens, one at a time.
//!
//! Called by `parser` only. Knows nothing of grammar, except that it names the mistake where a character
//! cannot begin any token.

use super::ExprError;

/// A token with the bytes that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    Integer(u64),
    Name(&'a str),
    /// A quoted text, without its quotes.
    Text(&'a str),
    /// An operator, a parenthesis, a comma or `=`.
    Sign(&'static str),
    End,
}

impl Kind<'_> {
    /// How an error message names what was found.
    pub(super) fn describe(&self) -> String {
        match self {
            Kind::Integer(value) => format!("the number {value}"),
            Kind::Name(name) => format!("`{name}`"),
            Kind::Text(text) => format!("the text \"{text}\""),
            Kind::Sign("=") => "a single `=`; comparing is written `==`".to_owned(),
            Kind::Sign(sign) => format!("`{sign}`"),
            Kind::End => "the end of the expression".to_owned(),
        }
    }
}

/// Longer signs before their own beginnings.
const SIGNS: [&str; 23] = [
    "<<", ">>", "==", "!=", "<=", ">=", "&&", "||", "+", "-", "*", "&", "|", "^", "%", "<", ">",
    "!", "~", "(", ")", ",", "=",
];

pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Where the next token is searched for.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Takes the text up to the parenthesis that closes the one just read, and that parenthesis too.
    pub(super) fn until_closing(&mut self) -> Option<&'a str> {
        let mut depth = 0usize;
        for (index, letter) in self.rest().char_indices() {
            match letter {
                '(' => depth += 1,
                ')' if depth == 0 => {
                    let inner = &self.rest()[..index];
                    self.at += index + 1;
                    return Some(inner);
                }
                ')' => depth -= 1,
                _ => {}
            }
        }
        None
    }

    pub(super) fn next(&mut self) -> Result<Token<'a>, ExprError> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
        let (rest, start) = (self.rest(), self.at);
        let Some(first) = rest.chars().next() else {
            return Ok(Token { kind: Kind::End, start, end: start });
        };
        let (kind, length) = if first.is_ascii_digit() {
            let word = word_of(rest);
            (Kind::Integer(integer(word, start)?), word.len())
        } else if first.is_ascii_alphabetic() || first == '_' {
            let word = word_of(rest);
            (Kind::Name(word), word.len())
        } else if first == '"' || first == '\'' {
            let inner = &rest[1..];
            let Some(end) = inner.find(first) else {
                return Err(ExprError::new(start, format!("this {first} is never closed")));
            };
            (Kind::Text(&inner[..end]), end + 2)
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            (Kind::Sign(sign), sign.len())
        } else {
            return Err(ExprError::new(start, stray(first)));
        };
        self.at += length;
        Ok(Token { kind, start, end: self.at })
    }
}

/// The letters, digits and underscores at the beginning.
fn word_of(text: &str) -> &str {
    let end = text.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    &text[..end.unwrap_or(text.len())]
}

fn stray(letter: char) -> String {
    match letter {
        '/' => "there is no division; shift right with `>>`, or take the rest with `%`".to_owned(),
        '[' | ']' => {
            "there are no subscripts; add the offset: `*(u64)(arg0 + 8 * arg1)`".to_owned()
        }
        '?' | ':' => "there is no `?:`; use `&&` and `||`".to_owned(),
        '.' => "there are no fields; write `*(u32)(arg0 + offsetof(type, field))`".to_owned(),
        _ => format!("`{}` cannot stand in an expression", letter.escape_debug()),
    }
}

/// An integer of any base: `12`, `0x1f`, `0o17`, `0b101`, with underscores between digits.
fn integer(word: &str, start: usize) -> Result<u64, ExprError> {
    let lower = word.to_ascii_lowercase();
    let (digits, radix) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0o") {
        (digits, 8)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else {
        (&*lower, 10)
    };
    let mut value = 0u64;
    let mut seen = 0;
    for (index, digit) in digits.char_indices().filter(|pair| pair.1 != '_') {
        let at = start + (word.len() - digits.len()) + index;
        let Some(digit) = digit.to_digit(radix) else {
            return Err(ExprError::new(
                at,
                format!("`{digit}` is no digit of a number of base {radix}"),
            ));
        };
        seen += 1;
        value = value
            .checked_mul(u64::from(radix))
            .and_then(|scaled| scaled.checked_add(u64::from(digit)))
            .ok_or_else(|| ExprError::new(start, format!("`{word}` does not fit in 64 bits")))?;
    }
    if seen == 0 {
        return Err(ExprError::new(start, format!("`{word}` has no digits")));
    }
    if radix == 10 && seen > 1 && word.starts_with('0') {
        // C reads it as octal, people read it as decimal: neither is taken.
        return Err(ExprError::new(
            start,
            format!("`{word}` begins with 0: write 0o… for octal, or leave the 0 out"),
        ));
    }
    Ok(value)
}
