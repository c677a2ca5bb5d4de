//! Saved reports: from the file that the command line names to a checked report.

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use drainprof_report::{self as report, Report, export::shown, stored, stored::MOST_BYTES};

use super::exit::{Failure, code};

/// Characters of a sentence on stderr.
const SENTENCE: usize = 300;

/// What stands for stdin.
const STDIN: &str = "-";

/// Reads reports, each with the name that it is shown under. A report whose counts do not add up is reported on
/// stderr, and read all the same.
pub(super) fn read(files: &[PathBuf]) -> Result<Vec<(String, Report)>> {
    if files.iter().filter(|file| file.as_os_str() == STDIN).count() > 1 {
        return Err(Failure::new(code::USAGE, "stdin (-) can be read only once").into());
    }
    files
        .iter()
        .map(|file| {
            let (name, bytes) = bytes(file)?;
            let report =
                stored::read(&bytes).with_context(|| format!("cannot take {name} as a report"))?;
            if let Some(broken) = report::invariants(&report).first() {
                eprintln!(
                    "drainprof: {name}: counts do not add up: {}; was it changed?",
                    shown(broken, SENTENCE)
                );
            }
            Ok((name, report))
        })
        .collect()
}

fn bytes(file: &Path) -> Result<(String, Vec<u8>)> {
    // One byte more than is taken, so that a file that is too large differs from one that just fits.
    let limit = MOST_BYTES as u64 + 1;
    let mut bytes = Vec::new();
    if file.as_os_str() == STDIN {
        let stdin = io::stdin().lock();
        stdin.take(limit).read_to_end(&mut bytes).context("cannot read stdin")?;
        return Ok(("stdin".to_owned(), bytes));
    }
    let name = shown(&file.to_string_lossy(), SENTENCE);
    File::open(file)
        .and_then(|open| open.take(limit).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {name}"))?;
    Ok((name, bytes))
}
