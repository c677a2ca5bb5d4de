//! Pressure on memory (PSI): of the machine in `/proc/pressure/memory`, of a control group in its `memory.pressure`.
//!
//! Kernels without PSI, and kernels that have it switched off, say so: that is an answer.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use nix::libc;

use super::{Pressure, Waiting};

/// The file is two lines.
const MAX_BYTES: u64 = 4096;

/// Why the pressure is not known, though the kernel has it.
#[derive(Debug, thiserror::Error)]
pub enum PressureError {
    /// The file is there, but cannot be read.
    #[error("cannot read the memory pressure from {path}; check its permissions", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file says something that is not known.
    #[error("the memory pressure in {path} is not understood; compare it with `Documentation/accounting/psi.rst` of this kernel", path = path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
    },
}

/// Reads the machine's pressure under this `proc`; `None` where the kernel has no PSI, or has it switched off.
pub(super) fn read(proc: &Path) -> Result<Option<Pressure>, PressureError> {
    of_file(proc.join("pressure/memory"))
}

/// Reads the pressure on the control group with this directory; `None` as in [`read`].
pub(super) fn of_group(directory: &Path) -> Option<Pressure> {
    // A group that is gone has no pressure, and its processes leave with it.
    of_file(directory.join("memory.pressure")).ok().flatten()
}

fn of_file(path: PathBuf) -> Result<Option<Pressure>, PressureError> {
    let mut text = String::new();
    let read = File::open(&path).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text));
    match read {
        Ok(_) => match parse(&text) {
            Some(pressure) => Ok(Some(pressure)),
            None => Err(PressureError::Malformed { path }),
        },
        Err(error) if is_off(&error) => Ok(None),
        Err(source) => Err(PressureError::Read { path, source }),
    }
}

/// Without `CONFIG_PSI` there is no file. With `psi=0` there is one, and to open it fails.
fn is_off(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::EOPNOTSUPP)
}

/// The two lines; further ones are passed over.
pub(super) fn parse(text: &str) -> Option<Pressure> {
    let line = |name: &str| {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).and_then(waiting)
    };
    Some(Pressure { some: line("some")?, full: line("full")? })
}

/// `avg10=0.12 avg60=0.00 avg300=0.00 total=4321`: per cent, and microseconds.
fn waiting(line: &str) -> Option<Waiting> {
    let value =
        |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let share = |name: &str| {
        let percent = value(name)?.parse::<f64>().ok()?;
        (0.0..=100.0).contains(&percent).then_some(percent / 100.0)
    };
    Some(Waiting {
        avg10: share("avg10")?,
        avg60: share("avg60")?,
        avg300: share("avg300")?,
        total_seconds: value("total")?.parse::<u64>().ok()? as f64 / 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "some avg10=12.50 avg60=1.00 avg300=0.25 total=2500000\n\
        full avg10=0.00 avg60=0.50 avg300=0.00 total=1000000\n";

    /// Per cent become shares, microseconds seconds.
    #[test]
    fn both_lines() {
        let found = parse(TEXT).unwrap();
        let some = Waiting { avg10: 0.125, avg60: 0.01, avg300: 0.0025, total_seconds: 2.5 };
        let full = Waiting { avg10: 0.0, avg60: 0.005, avg300: 0.0, total_seconds: 1.0 };
        assert_eq!(found, Pressure { some, full });
        assert_eq!(parse(&format!("cpu avg10=1\n{TEXT}later avg10=3\n")), Some(found));
    }

    /// What is no share, no number or not there is not taken for pressure.
    #[test]
    fn broken_texts() {
        let broken = [
            "",
            "some",
            "some avg10=0 avg60=0 avg300=0 total=0\n",
            &TEXT.replace("12.50", "100.01"),
            &TEXT.replace("12.50", "-1"),
            &TEXT.replace("12.50", "NaN"),
            &TEXT.replace("12.50", "inf"),
            &TEXT.replace("12.50", ""),
            &TEXT.replace("2500000", "99999999999999999999"),
            &TEXT.replace("some ", "something "),
        ];
        for text in broken {
            assert_eq!(parse(text), None, "{text}");
        }
        for end in 0..TEXT.len() - 2 {
            if let Some(cut) = parse(&TEXT[..end]) {
                assert_eq!(cut.some, parse(TEXT).unwrap().some, "{end}");
            }
        }
    }

    /// A kernel without the file says nothing, one whose file is strange is an error that names it.
    #[test]
    fn off_is_an_answer() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(read(root.path()).unwrap(), None);
        assert!(is_off(&io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
        assert!(!is_off(&io::Error::from_raw_os_error(libc::EACCES)));
        let directory = root.path().join("pressure");
        std::fs::create_dir(&directory).unwrap();
        std::fs::write(directory.join("memory"), TEXT).unwrap();
        assert_eq!(read(root.path()).unwrap(), parse(TEXT));
        std::fs::write(directory.join("memory"), "x".repeat(1 << 20)).unwrap();
        let error = read(root.path()).unwrap_err().to_string();
        assert!(error.contains("pressure/memory"), "{error}");
        std::fs::write(directory.join("memory"), [0xff, 0xfe]).unwrap();
        assert!(matches!(read(root.path()), Err(PressureError::Read { .. })));
    }
}
