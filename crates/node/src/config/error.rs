//! What is wrong with a configuration, and where.

use std::{
    fmt::{self, Display, Formatter},
    ops::Range,
    path::PathBuf,
};

use drainprof_process::printable;

/// Where a value is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
    },
    /// The file as a whole.
    Whole(PathBuf),
    /// In an environment variable.
    Environment(String),
    /// In an option of the command line.
    CommandLine(String),
    /// Nowhere in particular: several values, or a default.
    Nowhere,
}

impl Display for Place {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => {
                write!(out, "{}:{line}:{column}", path.display())
            }
            Self::Whole(path) => write!(out, "{}", path.display()),
            Self::Environment(name) => write!(out, "environment variable {name}"),
            Self::CommandLine(text) => write!(out, "option --set {}", printable(text)),
            Self::Nowhere => out.write_str("configuration"),
        }
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {message}{}", Hint(hint.as_deref()))]
pub struct ConfigError {
    /// Where.
    pub place: Place,
    /// What is wrong, with the key's name.
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

/// All that is wrong with a configuration, one line each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(.0))]
pub struct ConfigErrors(pub Vec<ConfigError>);

fn lines(errors: &[ConfigError]) -> String {
    let lines: Vec<_> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// What is wrong with a value, at bytes of its text; `load` adds file and key.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) message: String,
    pub(super) hint: Option<String>,
}

impl Fault {
    pub(super) fn new(at: Range<usize>, message: impl Into<String>) -> Self {
        Self { at, message: message.into(), hint: None }
    }

    pub(super) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
