//! The files of the configuration, which may be anything.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

/// Bytes that a file can have.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Files that the directory can have.
pub const MAX_FILES: usize = 256;

/// The files of the directory whose names end in `.toml`, in the order of their names.
pub(super) fn files_in(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(format!("cannot list the directory: {error}")),
    };
    refuse_open(&fs::metadata(directory).map_err(|error| error.to_string())?)?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| format!("cannot list the directory: {error}"))?.path();
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] == b'.');
        if !hidden && path.extension().is_some_and(|ending| ending == "toml") {
            files.push(path);
        }
        if files.len() > MAX_FILES {
            return Err(format!("it has more than {MAX_FILES} files"));
        }
    }
    files.sort();
    Ok(files)
}

/// The text of a file that may be anything.
pub(super) fn text_of(path: &Path) -> io::Result<String> {
    // Without O_NONBLOCK, a named pipe would be waited for.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    let about = file.metadata()?;
    if !about.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    refuse_open(&about).map_err(io::Error::other)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(io::Error::other(format!("it has more than {MAX_FILE_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("byte {at} is not UTF-8 text"))
    })
}

/// What says which configuration root's daemon runs with, and which profiles it reads, is no one else's to write.
fn refuse_open(about: &fs::Metadata) -> Result<(), String> {
    if about.mode() & 0o002 == 0 {
        return Ok(());
    }
    Err(format!("every user can write to it (mode {:04o}); chmod o-w", about.mode() & 0o7777))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    /// A file that every user can write to is refused, with its mode.
    #[test]
    fn open_to_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drainprof.toml");
        fs::write(&path, "[daemon]\n").unwrap();
        for (mode, refused) in [(0o600, false), (0o644, false), (0o664, false), (0o666, true)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let read = text_of(&path);
            assert_eq!(read.is_err(), refused, "{mode:o}");
            let why = read.map_or_else(|error| error.to_string(), |_| String::new());
            assert_eq!(why.contains("mode 0666"), refused, "{why}");
        }
        // A directory in which anybody may lay a file, too.
        for (mode, refused) in [(0o755, false), (0o775, false), (0o777, true), (0o1777, true)] {
            fs::set_permissions(directory.path(), fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(files_in(directory.path()).is_err(), refused, "{mode:o}");
        }
    }
}
