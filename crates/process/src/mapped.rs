//! The objects that a process has mapped: through which path each can be opened now, and whether it is still the
//! file that its path names.
//!
//! Probes are attached by path, and the path in `/proc/PID/maps` is the process's view: it may lie in
//! another mount namespace, be unlinked, or name another file by now. Two roads lead to the very file:
//! `/proc/PID/root/PATH`, if what is there is the mapped file, and `/proc/PID/map_files/START-END`,
//! which always is, but needs `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::{
    Mapping, ProcessError,
    file::{identity, known_identity, open_same, through_root},
    maps::{MappedFile, read_maps},
    mounts::Mounts,
    printable,
};

/// A file with at least one executable mapping, and all mappings of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedObject {
    /// The path as the process sees it; hostile, for opening.
    pub path: PathBuf,
    /// The same, safe to show.
    pub shown_path: String,
    /// The file was unlinked since it was mapped.
    pub deleted: bool,
    /// Another file now stands at its path: it was updated while the process runs on with the old one.
    pub replaced: bool,
    /// A path through which this very file can be opened now.
    pub open_path: PathBuf,
    /// Device and inode, as `stat` gives them for `open_path` (as `/proc/PID/maps` does where it cannot be opened).
    pub inode: (u64, u64),
    /// Why it must not be touched, if it must not.
    pub refused: Option<&'static str>,
    /// Its mappings, by address.
    pub mappings: Vec<Mapping>,
}

/// The files that process `pid` has mapped executable, in address order.
pub fn mapped_objects(pid: u32) -> Result<Vec<MappedObject>, ProcessError> {
    Ok(MappedObject::locate_all(pid, read_maps(pid)?.files).collect())
}

impl MappedObject {
    /// The offset in the file of an address in the process, where code of the file is mapped there.
    #[must_use]
    pub fn file_offset(&self, address: u64) -> Option<u64> {
        let mut mappings = self.mappings.iter().filter(|mapping| mapping.executable);
        let mapping = mappings.find(|mapping| (mapping.start..mapping.end).contains(&address))?;
        Some(address - mapping.start + mapping.file_offset)
    }

    /// Opens this very file, of at most `max_bytes`, at the first of `paths` where it is.
    pub(crate) fn open<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a Path>,
        max_bytes: u64,
    ) -> io::Result<File> {
        match self.refused {
            Some(why) => Err(io::Error::other(why)),
            None => open_same(self.inode, paths, max_bytes),
        }
    }

    /// Finds the ways to `files`, which process `pid` has mapped. No server of a file system is asked for anything.
    pub(crate) fn locate_all(
        pid: u32,
        files: Vec<MappedFile>,
    ) -> impl Iterator<Item = MappedObject> {
        let mut mounts = Mounts::of(pid);
        files.into_iter().map(move |file| {
            let refused = mounts.refusal(file.device);
            Self::locate(pid, file, refused)
        })
    }

    fn locate(pid: u32, file: MappedFile, refused: Option<&'static str>) -> Self {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        // A file may really be called "x (deleted)": the suffix is believed only if no such file is there.
        let stripped = file.name.as_bytes().strip_suffix(b" (deleted)").map(OsStr::from_bytes);
        let stripped = stripped.map(PathBuf::from);
        let full = PathBuf::from(&file.name);
        // Any mapping of the file will do.
        let map_file = file.mappings.first().map_or_else(PathBuf::new, |mapping| {
            PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
        });
        let mapped = identity(&map_file).ok();
        // Where the mapped file cannot be asked, its path is the only way, however long.
        let known = |path: &Path| match mapped {
            None if refused.is_none() => identity(path).ok(),
            _ => known_identity(path).ok(),
        };
        let found = std::iter::once(&full).chain(&stripped).find_map(|path| {
            let open_path = through_root(&root, path);
            // Devices in /proc/PID/maps are not those of `stat` on btrfs and (before 6.x) overlayfs, so they
            // are compared only where the mapped file itself can be asked.
            let found = known(&open_path)?;
            let same = mapped.map_or(found.1 == file.inode, |mapped| mapped == found);
            same.then(|| (path.clone(), open_path, found))
        });
        let (deleted, replaced);
        let (path, open_path, inode) = if let Some(found) = found {
            (deleted, replaced) = (false, false);
            found
        } else {
            deleted = stripped.is_some();
            let path = stripped.unwrap_or(full);
            replaced = known(&through_root(&root, &path)).is_some();
            (path, map_file, mapped.unwrap_or((file.device, file.inode)))
        };
        let shown_path = printable(path.as_os_str().as_bytes());
        let mappings = file.mappings;
        Self { path, shown_path, deleted, replaced, open_path, inode, refused, mappings }
    }

    /// Whether it holds code that a JIT compiler shares with itself through a file without a name.
    pub(crate) fn is_generated(&self) -> bool {
        let path = self.path.as_os_str().as_bytes();
        path.starts_with(b"/memfd:") || path.starts_with(b"/dev/zero")
    }
}
