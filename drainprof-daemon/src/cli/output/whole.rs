//! A file that appears under its name when it is whole, or not at all.
//!
//! It is written beside its place and renamed at the end. What is no regular file (a terminal, a pipe), and what its
//! directory does not let be replaced, is written in place by the caller.

use std::{
    fs::{self, File, Metadata},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown},
    path::{Path, PathBuf},
};

use tempfile::{Builder, TempPath};

/// What a new file may be for, before the umask.
const MODE: u32 = 0o666;

/// A file on its way to its name. Dropped before [`commit`](Whole::commit), it leaves nothing.
pub(super) struct Whole {
    file: File,
    temporary: TempPath,
    place: PathBuf,
}

impl Whole {
    /// Makes the file beside its place. `None`: the place has to be written itself.
    pub(super) fn begin(path: &Path) -> io::Result<Option<Self>> {
        let (place, old) = match fs::metadata(path) {
            // Through links to the file that they lead to.
            Ok(old) if old.is_file() => (path.canonicalize()?, Some(old)),
            Ok(_) => return Ok(None),
            // A link to nothing yet.
            Err(_) if fs::symlink_metadata(path).is_ok() => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (path.to_owned(), None),
            Err(error) => return Err(error),
        };
        let (Some(directory), Some(name)) = (place.parent(), place.file_name()) else {
            return Ok(None);
        };
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let mut prefix = std::ffi::OsString::from(".");
        prefix.push(name);
        let made = Builder::new()
            .prefix(&prefix)
            .permissions(fs::Permissions::from_mode(MODE))
            .tempfile_in(directory);
        let (file, temporary) = match made {
            Ok(made) => made.into_parts(),
            // The file may be writable where its directory is not; its name may be too long for more letters.
            Err(error) if old.is_some() && is_refused(error.kind()) => return Ok(None),
            Err(error) => return Err(error),
        };
        if old.is_some_and(|old| take_over(&file, &old).is_err()) {
            return Ok(None);
        }
        Ok(Some(Self { file, temporary, place }))
    }

    /// Where to write.
    pub(super) fn writer(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Where it will be.
    pub(super) fn place(&self) -> &Path {
        &self.place
    }

    /// Gives it its name, once it is on the disk.
    pub(super) fn commit(self) -> io::Result<()> {
        self.file.sync_all()?;
        self.temporary.persist(&self.place).map_err(|error| error.error)
    }
}

/// Whether the directory takes no such file, whatever is in it.
const fn is_refused(kind: io::ErrorKind) -> bool {
    use io::ErrorKind as Kind;
    matches!(kind, Kind::PermissionDenied | Kind::ReadOnlyFilesystem | Kind::InvalidFilename)
}

/// Owner and mode of the file that it replaces.
fn take_over(file: &File, old: &Metadata) -> io::Result<()> {
    let new = file.metadata()?;
    if (new.uid(), new.gid()) != (old.uid(), old.gid()) {
        fchown(file, Some(old.uid()), Some(old.gid()))?;
    }
    file.set_permissions(old.permissions())
}

#[cfg(test)]
mod tests {
    use std::{io::Write as _, os::unix::fs::symlink};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Until the end the old content stays, and what is given up leaves nothing behind.
    #[test]
    fn whole_or_not_at_all() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("report.json");
        let write = || {
            let whole = Whole::begin(&path).unwrap().unwrap();
            whole.writer().unwrap().write_all(b"new").unwrap();
            whole
        };
        drop(write());
        assert_eq!(names(directory.path()), [""; 0]);
        write().commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let whole = write();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        drop(whole);
        assert_eq!((fs::read(&path).unwrap(), names(directory.path()).len()), (b"old".to_vec(), 1));
        write().commit().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(names(directory.path()), ["report.json"]);
    }

    /// A link stays one; what is no regular file is not replaced; a missing directory is reported at once.
    #[test]
    fn places() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        symlink(&file, &link).unwrap();
        assert!(Whole::begin(&link).unwrap().is_none(), "a link to nothing");
        fs::write(&file, "old").unwrap();
        let whole = Whole::begin(&link).unwrap().unwrap();
        whole.writer().unwrap().write_all(b"new").unwrap();
        whole.commit().unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        for in_place in [Path::new("/dev/null"), directory.path()] {
            assert!(Whole::begin(in_place).unwrap().is_none(), "{}", in_place.display());
        }
        assert!(Whole::begin(Path::new("/nonexistent/report.json")).is_err());
    }
}
