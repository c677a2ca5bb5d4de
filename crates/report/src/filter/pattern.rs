//! A pattern of `--include` or `--exclude`: a regular expression with bounds on what it may cost.
//!
//! Matching takes time that is linear in the text, whatever the pattern; compiling is bounded in memory.

use regex::{Regex, RegexBuilder};

use crate::Frame;

/// Bytes of a pattern.
const MAX_PATTERN_BYTES: usize = 1_000;
/// Bytes that a compiled pattern, and the tables made while it matches, may take each.
const MEMORY: usize = 1 << 20;
/// Parentheses in one another.
const DEPTH: u32 = 50;
/// Bytes of a name that are examined.
const LOOKED_AT: usize = 4_096;

/// Why a pattern is refused.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PatternError {
    /// It is too long.
    #[error("the pattern has {0} bytes; at most {MAX_PATTERN_BYTES} are taken")]
    TooLong(usize),
    /// It is not a regular expression, or a too large one; the message shows where.
    #[error("{0}")]
    Invalid(String),
}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
}

impl Pattern {
    /// Compiles a pattern; the error shows the position.
    pub fn new(text: &str) -> Result<Self, PatternError> {
        if text.len() > MAX_PATTERN_BYTES {
            return Err(PatternError::TooLong(text.len()));
        }
        RegexBuilder::new(text)
            .size_limit(MEMORY)
            .dfa_size_limit(MEMORY)
            .nest_limit(DEPTH)
            .build()
            .map(|regex| Self { regex })
            .map_err(|error| PatternError::Invalid(error.to_string()))
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn text(&self) -> &str {
        self.regex.as_str()
    }

    /// Whether a function, file or module of the frame matches, those of inlined functions too.
    #[must_use]
    pub fn matches_frame(&self, frame: &Frame) -> bool {
        let own = [&frame.function, &frame.file, &frame.module];
        own.into_iter().flatten().any(|name| self.matches(name))
            || frame.inlined.iter().any(|inlined| {
                self.matches(&inlined.function)
                    || inlined.file.as_ref().is_some_and(|file| self.matches(file))
            })
    }

    /// Whether the name matches, as far as it is examined.
    fn matches(&self, name: &str) -> bool {
        let mut end = name.len().min(LOOKED_AT);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        self.regex.is_match(&name[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is no regular expression is refused with the place; what would be too large, too deep or too long,
    /// too.
    #[test]
    fn bad_patterns_are_refused() {
        let error = Pattern::new("alloc(").unwrap_err().to_string();
        assert!(
            error.contains("alloc(\n         ^") && error.contains("unclosed group"),
            "{error}"
        );
        let large = Pattern::new("\\w{1000}{1000}").unwrap_err().to_string();
        assert!(large.contains("size limit"), "{large}");
        assert!(Pattern::new(&"(".repeat(900)).is_err());
        let deep = format!("{}a{}", "(".repeat(60), ")".repeat(60));
        assert!(Pattern::new(&deep).unwrap_err().to_string().contains("nest"));
        assert!(matches!(Pattern::new(&"a".repeat(1_001)), Err(PatternError::TooLong(1_001))));
    }

    /// Every name of a frame is examined, and only the first bytes of one without an end.
    #[test]
    fn all_names_of_a_frame() {
        let frame: Frame = serde_json::from_value(serde_json::json!({
            "function": "f_one", "file": "/src/two.c", "module": "three.so",
            "inlined": [{"function": "f_four", "file": "five.h", "line": 5}],
        }))
        .unwrap();
        for name in ["one", "two", "three", "four", "five", "^f_o", "\\.so$"] {
            assert!(Pattern::new(name).unwrap().matches_frame(&frame), "{name}");
        }
        assert!(!Pattern::new("^one|six").unwrap().matches_frame(&frame));
        let long =
            Frame { function: Some(format!("{}end", "ö".repeat(5_000))), ..Frame::default() };
        assert!(!Pattern::new("end").unwrap().matches_frame(&long));
        assert!(Pattern::new("^ö").unwrap().matches_frame(&long));
    }
}
