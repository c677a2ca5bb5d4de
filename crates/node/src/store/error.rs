//! Why the history cannot be written or read.

use std::{
    io,
    path::{Path, PathBuf},
};

use rusqlite::{ErrorCode, ffi};

/// A failure of the history. Each says what to do.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Another process writes it.
    #[error(
        "{path} is written by another drainprof{holder}: stop it, or give this one a path of its own ([store] path)"
    )]
    Busy {
        /// The history.
        path: String,
        /// ` (pid N)`, where it is known.
        holder: String,
    },
    /// None was begun.
    #[error(
        "there is no history at {path}: `drainprof daemon` writes one; name another with --store"
    )]
    None {
        /// Where it was searched for.
        path: String,
    },
    /// The file is something else. It was not touched.
    #[error("{path} is no history of drainprof ({found}): move it away, or name another path")]
    Foreign {
        /// The file.
        path: String,
        /// What it is.
        found: String,
    },
    /// A later drainprof has written it. It was not touched.
    #[error(
        "{path} has version {found} and this drainprof knows {known}: use the later drainprof, or move the file away to begin a new history"
    )]
    Newer {
        /// The file.
        path: String,
        /// Its version.
        found: u32,
        /// The latest that is known.
        known: u32,
    },
    /// The file is damaged.
    #[error(
        "{path} is damaged ({what}): `drainprof daemon` sets it aside when it starts, and begins a new one"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// What was found.
        what: String,
    },
    /// There is no room, on the disk or within the bound of the history.
    #[error("{path} has no room ({what}): nothing is recorded until there is")]
    Full {
        /// The file.
        path: String,
        /// Where there is none.
        what: String,
    },
    /// Something is larger than what is kept of its kind.
    #[error("{what} takes {bytes} bytes in {path}, and at most {most} are kept: raise max_bytes")]
    TooLarge {
        /// The file.
        path: String,
        /// What.
        what: &'static str,
        /// How large it is.
        bytes: u64,
        /// How large it may be.
        most: u64,
    },
    /// An option makes no sense.
    #[error("{0}")]
    Options(String),
    /// A file operation failed.
    #[error("cannot {step} {path}")]
    Io {
        /// What was tried.
        step: &'static str,
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// `SQLite` failed.
    #[error("cannot {step} {path}")]
    Sqlite {
        /// What was tried.
        step: &'static str,
        /// The file.
        path: String,
        /// Why.
        source: rusqlite::Error,
    },
    /// A line of a recording cannot be read.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: u64,
        /// What is wrong with it.
        what: String,
    },
}

impl StoreError {
    /// A failure of a file operation.
    pub(super) fn io(step: &'static str, path: &Path, source: io::Error) -> Self {
        let path = shown(path);
        if source.kind() == io::ErrorKind::StorageFull {
            return Self::Full { path, what: "the disk is full".to_owned() };
        }
        Self::Io { step, path, source }
    }

    /// A failure of `SQLite`, distinguished by what can be done about it.
    pub(super) fn sqlite(step: &'static str, path: &Path, source: rusqlite::Error) -> Self {
        let path = shown(path);
        match &source {
            rusqlite::Error::SqliteFailure(error, message) => match error.code {
                ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => {
                    let what = message.clone().unwrap_or_else(|| error.to_string());
                    Self::Corrupt { path, what }
                }
                ErrorCode::DiskFull => Self::Full {
                    path,
                    what: "the disk is full, or its bound is reached".to_owned(),
                },
                // The shared-memory file could not be made larger.
                ErrorCode::SystemIoFailure if error.extended_code == ffi::SQLITE_IOERR_SHMSIZE => {
                    Self::Full { path, what: "the disk is full".to_owned() }
                }
                _ => Self::Sqlite { step, path, source },
            },
            // A column of another type than the one that was written.
            rusqlite::Error::InvalidColumnType(..)
            | rusqlite::Error::FromSqlConversionFailure(..)
            | rusqlite::Error::IntegralValueOutOfRange(..)
            | rusqlite::Error::Utf8Error(..) => Self::Corrupt { path, what: source.to_string() },
            _ => Self::Sqlite { step, path, source },
        }
    }
}

/// A path in a message.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

/// The path with something appended to its file name.
pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}
