//! How deep the brackets of a TOML text nest.
//!
//! The `toml` crate bounds that itself, but brackets that do not match defeat its count (1.2.1): it then recurses once per
//! bracket, and a small file overflows the stack. So texts of strangers are examined here first.

use toml_parser::{
    Source,
    lexer::TokenKind::{
        LeftCurlyBracket, LeftSquareBracket, RightCurlyBracket, RightSquareBracket,
    },
};

/// Brackets that may be open at once. Ours have four.
const MAX_OPEN: usize = 64;

/// The byte of the first bracket that is nested too deep. A bracket counts as open until its own one closes it, so no
/// parser nests deeper than is counted here.
#[must_use]
pub fn too_deep(text: &str) -> Option<usize> {
    let mut open = Vec::new();
    for token in Source::new(text).lex() {
        let closes = match token.kind() {
            kind @ (LeftSquareBracket | LeftCurlyBracket) => {
                if open.len() == MAX_OPEN {
                    return Some(token.span().start());
                }
                open.push(kind);
                continue;
            }
            RightSquareBracket => LeftSquareBracket,
            RightCurlyBracket => LeftCurlyBracket,
            _ => continue,
        };
        if open.last() == Some(&closes) {
            open.pop();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only brackets that are open count, none in strings and comments; those of another kind close nothing.
    #[test]
    fn open_brackets() {
        let text = "[a]\nx = [[1], {b = '[{'}] # [{\n".repeat(1000);
        assert_eq!(too_deep(&text), None);
        assert_eq!(too_deep(&format!("x = {}", "[".repeat(65))), Some(68));
        assert_eq!(too_deep(&format!("x = {}{}", "[".repeat(64), "]".repeat(64))), None);
        assert!(too_deep(&"rules = [{ acbc\"]\n[select]\n".repeat(100)).is_some());
    }
}
