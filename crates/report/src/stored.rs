//! Reports that were saved: from bytes back to a [`Report`].
//!
//! Reads the documents of `-o json` and, of an `-o ndjson` stream, the report in its last line. Reports of
//! earlier versions are read (fields that they lack are null), and fields that a later version has added are
//! left out. Nothing is believed: size, number of parts and depth are bounded before anything is built, and
//! what cannot be a report is refused with what was found. Does no I/O: `cli` reads the files.

use serde::{Deserialize, de::IgnoredAny};

use super::{Report, SCHEMA};

/// Bytes of a saved report or stream.
pub const MOST_BYTES: usize = 256 << 20;
/// Objects (`{`) in one document: each becomes a value of some hundred bytes.
const MOST_OBJECTS: usize = 2_000_000;
/// Members and elements (`,`) in one document.
const MOST_MEMBERS: usize = 32_000_000;
/// Characters of a foreign schema's name that are quoted.
const QUOTED: usize = 60;

/// Why something is no saved report.
#[derive(Debug, thiserror::Error)]
pub enum StoredError {
    /// There is nothing.
    #[error("it is empty: a report is written when the observation ends")]
    Empty,
    /// It is too large.
    #[error("it has more than {} MiB; save it with a smaller --top, or its last line alone", MOST_BYTES >> 20)]
    TooLarge,
    /// It has too many parts.
    #[error(
        "it has more than {most} {what}: more than any report that is saved with a --top of some thousand"
    )]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are read.
        most: usize,
    },
    /// It is text, but not UTF-8.
    #[error(
        "it is not UTF-8 text from byte {0} on: only the formats json and ndjson can be read back"
    )]
    NotText(usize),
    /// It is not JSON, or a field is missing or of another type.
    #[error("it is no saved report (save with -o json, or -o ndjson)")]
    Json(#[source] serde_json::Error),
    /// It is JSON, but no report.
    #[error("it has no `schema`, so it is no report; expected {SCHEMA}")]
    NoSchema,
    /// It is another document, or a later version's.
    #[error("its schema is {found}; this version of drainprof reads {SCHEMA}")]
    OtherSchema {
        /// Which, cut and escaped.
        found: String,
    },
    /// A stream that was cut off, or that still runs.
    #[error(
        "the stream has no report yet: its last record is {last}, and the report is written at the end"
    )]
    NoReportYet {
        /// What its last line is.
        last: String,
    },
}

/// What distinguishes documents and records; other fields are skipped.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    schema: Option<String>,
    #[serde(default)]
    record: Option<String>,
    /// Not examined.
    #[serde(default)]
    report: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Record {
    report: Report,
}

/// Reads a saved report: a document, or the last line of a stream.
pub fn read(bytes: &[u8]) -> Result<Report, StoredError> {
    if bytes.len() > MOST_BYTES {
        return Err(StoredError::TooLarge);
    }
    let text =
        std::str::from_utf8(bytes).map_err(|error| StoredError::NotText(error.valid_up_to()))?;
    let text = text.trim_start_matches('\u{feff}').trim();
    if text.is_empty() {
        return Err(StoredError::Empty);
    }
    let last = text.rsplit('\n').next().unwrap_or(text).trim();
    // The last line of an indented document is its closing bracket. A line by itself that is a record or a
    // report is what counts, whatever came before it.
    if last.len() < text.len() && last.starts_with('{') {
        return line(last);
    }
    document(text).map_err(|error| match error {
        // A stream whose last line was cut off in its middle is reported as what it is.
        StoredError::Json(_) if last.len() < text.len() && is_stream(text) => {
            StoredError::NoReportYet { last: "cut off".to_owned() }
        }
        other => other,
    })
}

fn is_stream(text: &str) -> bool {
    let first = text.split('\n').next().unwrap_or_default();
    first.len() < text.len()
        && serde_json::from_str::<Head>(first).is_ok_and(|head| head.record.is_some())
}

/// A line of a stream, or a document in one line.
fn line(text: &str) -> Result<Report, StoredError> {
    match document(text) {
        Err(StoredError::Json(_)) => {
            Err(StoredError::NoReportYet { last: "cut off or no JSON".to_owned() })
        }
        other => other,
    }
}

fn document(text: &str) -> Result<Report, StoredError> {
    bounded(text)?;
    // A list would be taken for the fields of a record in their order.
    if text.starts_with('[') {
        return Err(StoredError::NoSchema);
    }
    let head: Head = serde_json::from_str(text).map_err(StoredError::Json)?;
    match (head.schema.as_deref(), head.record.as_deref()) {
        (Some(SCHEMA), _) => serde_json::from_str(text).map_err(StoredError::Json),
        (Some(other), _) => Err(StoredError::OtherSchema { found: quoted(other) }),
        (None, Some("report")) if head.report.is_some() => record(text),
        (None, Some(other)) => Err(StoredError::NoReportYet { last: quoted(other) }),
        (None, None) => Err(StoredError::NoSchema),
    }
}

/// The report of a stream has its own schema to be examined before its fields are.
fn record(text: &str) -> Result<Report, StoredError> {
    #[derive(Deserialize)]
    struct Outer {
        report: Head,
    }
    let outer: Outer = serde_json::from_str(text).map_err(StoredError::Json)?;
    match outer.report.schema {
        Some(schema) if schema == SCHEMA => {
            let record: Record = serde_json::from_str(text).map_err(StoredError::Json)?;
            Ok(record.report)
        }
        Some(other) => Err(StoredError::OtherSchema { found: quoted(&other) }),
        None => Err(StoredError::NoSchema),
    }
}

/// Small text can stand for large values, so what it can at most come to is counted first. Brackets and commas
/// within strings count too, which only makes the bound stricter.
fn bounded(text: &str) -> Result<(), StoredError> {
    let (mut objects, mut members) = (0usize, 0usize);
    for byte in text.bytes() {
        objects += usize::from(byte == b'{');
        members += usize::from(byte == b',');
    }
    if objects > MOST_OBJECTS {
        return Err(StoredError::TooMany { what: "objects", most: MOST_OBJECTS });
    }
    if members > MOST_MEMBERS {
        return Err(StoredError::TooMany { what: "members", most: MOST_MEMBERS });
    }
    Ok(())
}

fn quoted(text: &str) -> String {
    let cut: String = text.chars().take(QUOTED).collect();
    format!("`{}`", cut.escape_debug())
}

#[cfg(test)]
mod tests;
