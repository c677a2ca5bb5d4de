//! Hostile text made safe to show.
//!
//! Process names, paths and symbol names can hold anything, terminal escape sequences included.

use std::fmt::Write as _;

/// Longest text that is shown; what is longer is cut and says so.
const MAX_CHARS: usize = 4096;

/// `text` with control characters, broken UTF-8 and characters that reorder or hide text escaped.
///
/// The result is one line without effect on a terminal. A backslash is doubled, so that two different
/// names never look the same.
#[must_use]
pub fn printable(text: impl AsRef<[u8]>) -> String {
    let bytes = text.as_ref();
    let mut out = String::with_capacity(bytes.len().min(MAX_CHARS));
    let mut shown = 0_usize;
    for chunk in bytes.utf8_chunks() {
        let broken = chunk.invalid().iter().map(|&byte| Err(byte));
        for piece in chunk.valid().chars().map(Ok).chain(broken) {
            if shown == MAX_CHARS {
                out.push('…');
                return out;
            }
            shown += 1;
            match piece {
                Ok('\\') => out.push_str("\\\\"),
                Ok(c) if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
                Ok(c) => out.push(c),
                // Writing to a String cannot fail.
                Err(byte) => _ = write!(out, "\\x{byte:02x}"),
            }
        }
    }
    out
}

/// `text` of several lines with everything escaped that has an effect on a terminal, newlines excepted. Backslashes
/// stay: text that was made printable before does not change.
#[must_use]
pub fn printable_lines(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            c if c.is_control() || is_invisible(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// Characters that change how the rest of the line reads without being seen themselves.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}'
    )
}

#[cfg(test)]
mod tests {
    use super::{printable, printable_lines};

    /// Nothing that moves the cursor, colours, reorders or hides text passes, and names stay apart.
    #[test]
    fn escapes_what_could_act_on_a_terminal() {
        assert_eq!(printable("svc-1 (été)"), "svc-1 (été)");
        assert_eq!(printable("a\x1b[2Jb\n\r\t\0"), "a\\u{1b}[2Jb\\n\\r\\t\\u{0}");
        assert_eq!(printable(b"a\xffb\xc3"), "a\\xffb\\xc3");
        assert_eq!(printable("x\u{202e}y\u{9b}"), "x\\u{202e}y\\u{9b}");
        assert_ne!(printable("a\\n"), printable("a\n"));
    }

    /// Lines stay lines, what was escaped before stays as it is, and nothing acts on a terminal.
    #[test]
    fn several_lines() {
        assert_eq!(printable_lines("a\x1b[2J\n  ^ b\\x1b\r"), "a\\u{1b}[2J\n  ^ b\\x1b\\r");
        assert_eq!(printable_lines("é\u{202e}"), "é\\u{202e}");
    }

    /// However long the name, what is shown is bounded.
    #[test]
    fn is_bounded() {
        let long = printable(vec![b'a'; 1 << 20]);
        assert_eq!(long.chars().count(), super::MAX_CHARS + 1);
        assert!(printable(vec![0xff; 1 << 20]).len() <= super::MAX_CHARS * 4 + 4);
    }
}
