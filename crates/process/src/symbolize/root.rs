//! The root directory of a process, and the files in it that are needed for names.

use std::{
    fs::{self, File},
    io,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use crate::{DebugSearch, MappedObject, identity, printable, readers, through_root};

/// Largest file whose symbols are read.
const MAX_FILE: u64 = 16 << 30;

/// The root directory of a process that does not share ours, kept open: files can be found in it after
/// the process has ended.
#[derive(Debug, Default)]
pub struct Root(Option<File>);

impl Root {
    /// The root directory of process `pid`, where it is another one than ours and can be opened.
    #[must_use]
    pub fn of(pid: u32) -> Self {
        // Of a process that the kernel does not answer for, no file is found.
        readers::ask(pid, move || Self::read(pid)).unwrap_or_default()
    }

    fn read(pid: u32) -> Self {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let namespace = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
        let identity = |path: &Path| identity(path).ok();
        let shared = namespace("self") == namespace(&pid.to_string())
            && identity(&root) == identity(Path::new("/"));
        if shared {
            return Self(None);
        }
        let flags = nix::libc::O_PATH | nix::libc::O_DIRECTORY;
        // Opened for its path alone, but `OpenOptions` requires an access mode.
        Self(File::options().read(true).custom_flags(flags).open(root).ok())
    }

    /// A path to it that is good for as long as `self`.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|root| PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())))
    }

    /// Where `path`, as the process sees it, is to be found from here.
    pub(super) fn join(&self, path: &Path) -> PathBuf {
        self.path().map_or_else(|| path.to_owned(), |root| through_root(&root, path))
    }

    /// Where debug files of `object` are searched for.
    pub(super) fn search(&self, object: &MappedObject, debug_dirs: &[PathBuf]) -> DebugSearch {
        DebugSearch {
            process_root: self.path(),
            object_path: Some(object.path.clone()),
            debug_dirs: debug_dirs.to_vec(),
        }
    }
}

/// Opens the very file that is mapped: through the process while it lives, else at its path, if the same
/// file is still there.
pub fn open(object: &MappedObject, root: &Root) -> io::Result<File> {
    // A root in the mounts that we see ourselves is part of the path that the kernel shows.
    let inside = root.join(&object.path);
    object.open([&*object.open_path, &*inside, &*object.path], MAX_FILE)
}

/// The name of the object's file, safe to show.
#[must_use]
pub fn module(object: &MappedObject) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let name = object.path.file_name().unwrap_or(object.path.as_os_str());
    printable(name.as_bytes())
}

/// The address of byte `offset` of the file in the object's own address space, as far as the mappings alone say.
#[must_use]
pub fn module_offset(object: &MappedObject, offset: u64) -> Option<u64> {
    let mapping = object.mappings.iter().find(|mapping| {
        mapping.executable
            && offset
                .checked_sub(mapping.file_offset)
                .is_some_and(|at| at < mapping.end - mapping.start)
    })?;
    let base = object.mappings.iter().find(|mapping| mapping.file_offset == 0)?;
    let address = mapping.start + (offset - mapping.file_offset);
    address.checked_sub(base.start)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;
    use crate::{Process, Space, Spot, space::Place};

    /// Our own code is found in our own file, the vDSO as such, the stack not at all.
    #[test]
    fn myself() {
        let process = Process::myself().unwrap();
        let space = Space::of(&process).unwrap();
        let code = myself as *const () as u64;
        let Some(Spot::File(object, offset)) = space.find(code) else { panic!("our code") };
        let exe = fs::metadata("/proc/self/exe").unwrap();
        assert_eq!(object.inode, (exe.dev(), exe.ino()));
        assert!(offset < exe.len());
        assert!(module_offset(&object, offset).is_some());
        assert!(open(&object, &Root::of(process.pid)).is_ok());
        let local = 0_u8;
        assert!(space.find(&raw const local as u64).is_none());
        let vdso = space
            .ranges()
            .iter()
            .find(|range| range.place == Place::Vdso(0))
            .expect("the kernel maps one");
        assert!(matches!(space.find(vdso.start + 7), Some(Spot::Vdso(7))));
    }

    /// A file that was replaced is not taken for the one that was mapped.
    #[test]
    fn another_file_is_refused() {
        let process = Process::myself().unwrap();
        let space = Space::of(&process).unwrap();
        let mut object = MappedObject::clone(&space.objects()[0]);
        object.inode.1 ^= 1;
        assert!(open(&object, &Root(None)).is_err());
    }
}
