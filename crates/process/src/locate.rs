//! Through which path a mapped file can be opened now, and whether it is still what its path names.
//!
//! Probes are attached by path, and the path in `/proc/PID/maps` is the process's view: it may lie in
//! another mount namespace, be unlinked, or name another file by now. Two roads lead to the very file:
//! `/proc/PID/root/PATH`, if what is there is the mapped file, and `/proc/PID/map_files/START-END`,
//! which always is, but needs `CAP_CHECKPOINT_RESTORE` or `CAP_SYS_ADMIN`. Called by `maps`.

use std::{
    ffi::OsStr,
    fs,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
};

use super::maps::FileLines;

/// Where a file is.
#[derive(Debug)]
pub(crate) struct Located {
    /// The path as the process sees it.
    pub(crate) path: PathBuf,
    /// The path through which it can be opened.
    pub(crate) open_path: PathBuf,
    /// Device and inode.
    pub(crate) inode: (u64, u64),
    /// It was unlinked.
    pub(crate) deleted: bool,
    /// Another file stands at its path.
    pub(crate) replaced: bool,
}

/// `path`, as process `pid` sees it, from here.
pub fn through_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

/// Finds a way to `file`, which process `pid` has mapped.
pub(crate) fn locate(pid: u32, file: &FileLines) -> Located {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let full = PathBuf::from(&file.name);
    // A file may really be called "x (deleted)": the suffix is believed only if no such file is there.
    let stripped = file
        .name
        .as_bytes()
        .strip_suffix(b" (deleted)")
        .map(|name| PathBuf::from(OsStr::from_bytes(name)));
    // Any mapping of the file will do.
    let map_file = file.mappings.first().map_or_else(PathBuf::new, |mapping| {
        PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end))
    });
    let mapped = identity(&map_file);

    for path in std::iter::once(&full).chain(&stripped) {
        let open_path = through_root(&root, path);
        let Some(found) = identity(&open_path) else { continue };
        // Devices in /proc/PID/maps are not those of `stat` on btrfs and (before 6.x) overlayfs, so they
        // are compared only where the mapped file itself can be asked.
        let same = mapped.map_or(found.1 == file.inode, |mapped| mapped == found);
        if same {
            return Located {
                path: path.clone(),
                open_path,
                inode: found,
                deleted: false,
                replaced: false,
            };
        }
    }
    let deleted = stripped.is_some();
    let path = stripped.unwrap_or(full);
    let replaced = identity(&through_root(&root, &path)).is_some();
    Located {
        path,
        open_path: map_file,
        inode: mapped.unwrap_or((file.device, file.inode)),
        deleted,
        replaced,
    }
}
