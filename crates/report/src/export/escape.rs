//! Text from a target (process names, paths, labels, symbols) on its way to a terminal.

use std::fmt::Write as _;

/// Characters that are shown of a name.
pub(super) const NAME: usize = 60;

/// Whether a terminal could take the character for a command, or show text in another order than it is.
pub(super) fn is_hostile(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// The text with hostile characters (and the backslash) escaped, cut at `most` characters.
#[must_use]
pub fn shown(text: &str, most: usize) -> String {
    let mut safe = String::with_capacity(text.len().min(most));
    for (index, c) in text.chars().enumerate() {
        if index == most {
            safe.push('…');
            break;
        }
        if c == '\\' || is_hostile(c) {
            safe.extend(c.escape_default());
        } else {
            safe.push(c);
        }
    }
    safe
}

/// JSON text in which hostile characters are written as `\u….`, which means the same to a parser.
///
/// `serde_json` has escaped those below U+0020; the others can only stand inside strings.
#[must_use]
pub fn json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let mut units = [0; 2];
    for c in text.chars() {
        if c >= '\u{7f}' && is_hostile(c) {
            for unit in c.encode_utf16(&mut units) {
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// Text between tags.
pub(super) fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Escape sequences, C1 controls, line breaks and direction marks are shown as text; others stay.
    #[test]
    fn hostile_characters_are_shown() {
        assert_eq!(shown("a\u{1b}[2Jb\n", 100), "a\\u{1b}[2Jb\\n");
        assert_eq!(shown("\u{9b}31m\u{7f}", 100), "\\u{9b}31m\\u{7f}");
        assert_eq!(shown("\u{202e}cba", 100), "\\u{202e}cba");
        assert_eq!(shown("größe → 字", 100), "größe → 字");
        assert_eq!(shown("a\\nb", 100), "a\\\\nb");
        assert_eq!(shown("abcdef", 3), "abc…");
    }

    proptest! {
        /// Whatever a name holds, nothing hostile comes out, and its length is bounded.
        #[test]
        fn nothing_hostile_comes_out(text in any::<String>(), most in 0usize..50) {
            let safe = shown(&text, most);
            prop_assert!(!safe.chars().any(is_hostile));
            prop_assert!(safe.chars().count() <= most * 10 + 1);
        }

        /// Escaped JSON is free of hostile characters and still means the same.
        #[test]
        fn json_keeps_its_meaning(text in any::<String>()) {
            let safe = json(&serde_json::to_string(&text).unwrap());
            prop_assert!(!safe.chars().any(is_hostile));
            prop_assert_eq!(serde_json::from_str::<String>(&safe).unwrap(), text);
        }
    }
}
