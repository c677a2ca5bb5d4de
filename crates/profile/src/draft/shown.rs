//! Hostile names in comments.

/// Longest name in a comment, in characters.
const MAX_SHOWN: usize = 160;

/// Hostile text in one line of a comment.
pub(super) fn clean(text: &str) -> String {
    let mut clean: String = text
        .chars()
        .take(MAX_SHOWN)
        .map(|c| if c.is_control() || !(c.is_ascii_graphic() || c == ' ') { '?' } else { c })
        .collect();
    if text.chars().count() > MAX_SHOWN {
        clean.push_str("...");
    }
    clean
}
