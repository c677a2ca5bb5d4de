//! How the checks see the machine.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::Path,
};

/// Far more than any file that is asked for; what lies beyond is not read.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// The files and links that the checks look at.
pub trait HostView {
    /// The text of a file, at most a mebibyte of it; bytes that are no UTF-8 are replaced.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Where a symbolic link points.
    fn link(&self, path: &Path) -> io::Result<String>;
    /// The machine architecture as Rust names it.
    fn architecture(&self) -> &str;
}

/// The machine that we run on.
#[derive(Clone, Copy, Debug, Default)]
pub struct LiveHost;

impl HostView for LiveHost {
    fn read(&self, path: &Path) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn link(&self, path: &Path) -> io::Result<String> {
        Ok(fs::read_link(path)?.to_string_lossy().into_owned())
    }

    fn architecture(&self) -> &str {
        std::env::consts::ARCH
    }
}

/// A file's text without the white space around it.
pub(super) fn word(host: &dyn HostView, path: &str) -> io::Result<String> {
    Ok(host.read(Path::new(path))?.trim().to_owned())
}
