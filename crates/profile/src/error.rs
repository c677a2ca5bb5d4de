//! Where a profile is wrong: places in its text, and the error that names them.
//!
//! Used by `parse`, `check` and `library`. Places are byte offsets until an error is made; only then are
//! they turned into lines and columns.

use std::fmt::{self, Display, Formatter};

use super::model::{Source, Span};

/// Why a profile is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}{}", Hint(hint.as_deref()))]
pub struct ProfileError {
    /// The file, or the name of the built-in.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What was expected, or what to do.
    pub hint: Option<String>,
}

struct Hint<'a>(Option<&'a str>);

impl Display for Hint<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |hint| write!(out, "; {hint}"))
    }
}

impl ProfileError {
    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Display for Source {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn(name) => write!(out, "<built-in>/{name}"),
            Self::File(path) => write!(out, "{}", path.display()),
        }
    }
}

/// A profile's text with the name under which errors speak of it.
#[derive(Clone, Copy)]
pub(super) struct Text<'a> {
    pub(super) text: &'a str,
    pub(super) source: &'a Source,
}

impl Text<'_> {
    /// An error at a byte of the text.
    pub(super) fn fail(&self, at: usize, message: impl Into<String>) -> ProfileError {
        let (line, column) = line_and_column(self.text, at);
        ProfileError {
            file: self.source.to_string(),
            line,
            column,
            message: message.into(),
            hint: None,
        }
    }

    /// Where byte `at` of a string's value stands in the text, given where the string stands. The two
    /// differ by the quotes, and by every escape before it.
    pub(super) fn inside(&self, string: &Span, at: usize) -> usize {
        let Some(raw) = self.text.get(string.clone()) else { return string.start };
        let quotes = if raw.starts_with("\"\"\"") || raw.starts_with("'''") { 3 } else { 1 };
        let escapes = raw.starts_with('"');
        let body = raw.get(quotes..).unwrap_or("");
        // A newline right after three quotes belongs to the quotes.
        let skipped = match quotes {
            3 => {
                body.len()
                    - body.strip_prefix("\r\n").or(body.strip_prefix('\n')).unwrap_or(body).len()
            }
            _ => 0,
        };
        let (mut from, mut value) = (skipped, 0);
        while value < at {
            let rest = body.get(from..).unwrap_or("");
            let Some(first) = rest.chars().next() else { break };
            if first == '\\' && escapes {
                let (length, yields) = escape(rest);
                from += length;
                value += yields;
            } else {
                from += first.len_utf8();
                value += first.len_utf8();
            }
        }
        string.start + quotes + from
    }
}

/// How long the escape at the beginning is, and how many bytes it stands for.
fn escape(text: &str) -> (usize, usize) {
    let digits = match text.as_bytes().get(1) {
        Some(b'x') => 2,
        Some(b'u') => 4,
        Some(b'U') => 8,
        // A line that is continued: the blanks after it go with it.
        Some(b'\n' | b'\r' | b' ' | b'\t') => {
            let rest = text.get(1..).unwrap_or("");
            return (1 + rest.len() - rest.trim_start().len(), 0);
        }
        _ => return (2, 1),
    };
    let code = text.get(2..2 + digits).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    (2 + digits, code.and_then(char::from_u32).map_or(1, char::len_utf8))
}

/// Line and column (in characters) of a byte, both from 1.
pub(super) fn line_and_column(text: &str, at: usize) -> (usize, usize) {
    let before: &str = (0..=at.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or("");
    let line = before.matches('\n').count() + 1;
    let start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (line, before[start..].chars().count() + 1)
}
