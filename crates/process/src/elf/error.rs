//! Why an ELF object cannot be used.

/// Why an ELF object cannot be used.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ElfError {
    /// It cannot be opened or read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file, escaped.
        path: String,
        /// The cause (not an `io::Error`, so that results can be cached and shared).
        cause: String,
    },
    /// It is not ELF.
    #[error("{path} is not an ELF file")]
    NotElf {
        /// The file, escaped.
        path: String,
    },
    /// It is ELF for another machine.
    #[error("{path} is {what}, which this build cannot trace")]
    Foreign {
        /// The file, escaped.
        path: String,
        /// What it is.
        what: String,
    },
    /// It is damaged, or larger than anything that is believed.
    #[error("{path} is damaged: {what}")]
    Malformed {
        /// The file, escaped.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// A part of it is larger than what is read.
    #[error("{path} is not read: {what}, more than the limit of {}", limit_text(*.limit))]
    TooLarge {
        /// The file, escaped.
        path: String,
        /// The part, with its size.
        what: String,
        /// Most bytes of it.
        limit: u64,
    },
    /// The file behind the path is no longer the one that was read before.
    #[error("{path} was replaced while it was being read; try again")]
    Changed {
        /// The file, escaped.
        path: String,
    },
    /// An offset lies outside of the code.
    #[error("offset {offset:#x} of {path} lies in no executable segment (these are {segments})")]
    NotCode {
        /// The file, escaped.
        path: String,
        /// The offset.
        offset: u64,
        /// The executable ranges of the file.
        segments: String,
    },
    /// A pattern for demangled names cannot be used: it is malformed, or takes too much work.
    #[error("the pattern `{pattern}` cannot be used: {cause}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// The cause.
        cause: String,
    },
}

pub(super) fn unread(path: &str, error: &std::io::Error) -> ElfError {
    ElfError::Read { path: path.to_owned(), cause: error.to_string() }
}

fn limit_text(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{} MiB", bytes >> 20) } else { format!("{bytes} bytes") }
}
