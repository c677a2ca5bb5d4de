//! What lies where in a process: from an address to a file and an offset in it.
//!
//! Addresses mean something only while a process lives and an object stays loaded. So its executable
//! mappings are remembered, and names can be looked for when both are gone. Called by `names`.

use std::{
    fs::{self, File},
    io,
    os::{
        fd::AsRawFd as _,
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    DebugSearch, MappedObject, Nameless, NamelessKind, Process, ProcessError, mapped_objects,
    nameless_memory, open_same, printable, through_root,
};

/// Largest file whose symbols are read.
const MAX_FILE: u64 = 16 << 30;

/// The executable memory of a process at one moment.
#[derive(Debug, Default)]
pub struct Space {
    objects: Vec<Arc<MappedObject>>,
    nameless: Vec<Nameless>,
}

/// What an address lies in.
#[derive(Clone, Debug)]
pub enum Spot {
    /// A file, at this offset.
    File(Arc<MappedObject>, u64),
    /// The vDSO, at this offset.
    Vdso(u64),
    /// Memory that the process has made executable itself.
    Generated,
}

impl Space {
    /// What `process` has mapped executable.
    pub fn of(process: &Process) -> Result<Self, ProcessError> {
        let objects = mapped_objects(process.pid)?.into_iter().map(Arc::new).collect();
        let nameless = nameless_memory(process.pid);
        if !process.is_alive() {
            // It may have been another process's.
            return Err(ProcessError::Ended { pid: process.pid });
        }
        Ok(Self { objects, nameless })
    }

    /// What lies at `address`.
    pub fn find(&self, address: u64) -> Option<Spot> {
        for object in &self.objects {
            let mapping = object.mappings.iter().find(|mapping| {
                mapping.executable && (mapping.start..mapping.end).contains(&address)
            });
            if let Some(mapping) = mapping {
                let name = object.path.to_string_lossy();
                // Code that a JIT compiler shares with itself through a file without a name.
                if name.starts_with("/memfd:") || name.starts_with("/dev/zero") {
                    return Some(Spot::Generated);
                }
                let offset = mapping.file_offset.checked_add(address - mapping.start)?;
                return Some(Spot::File(Arc::clone(object), offset));
            }
        }
        let found =
            self.nameless.iter().find(|range| (range.start..range.end).contains(&address))?;
        Some(match found.kind {
            NamelessKind::Vdso => Spot::Vdso(address - found.start),
            NamelessKind::Generated | NamelessKind::Uprobes => Spot::Generated,
        })
    }

    /// Whether `other` says the same of every file.
    pub fn same_objects(&self, other: &Self) -> bool {
        self.objects == other.objects
    }
}

/// The root directory of a process that does not share ours, kept open: files can be found in it after
/// the process has ended.
#[derive(Debug, Default)]
pub struct Root(Option<File>);

impl Root {
    /// That of a process; empty where it shares ours, or cannot be opened.
    pub fn of(pid: u32) -> Self {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let namespace = |who: &str| fs::read_link(format!("/proc/{who}/ns/mnt")).ok();
        let identity =
            |path: &Path| fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()));
        let shared = namespace("self") == namespace(&pid.to_string())
            && identity(&root) == identity(Path::new("/"));
        if shared {
            return Self(None);
        }
        let flags = nix::libc::O_PATH | nix::libc::O_DIRECTORY;
        // Opened for its path alone; `read` is what `OpenOptions` wants to hear.
        Self(File::options().read(true).custom_flags(flags).open(root).ok())
    }

    /// A path to it that is good for as long as `self`.
    pub fn path(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|root| PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd())))
    }

    /// Where `path`, as the process sees it, is to be found from here.
    pub(super) fn join(&self, path: &Path) -> PathBuf {
        self.path().map_or_else(|| path.to_owned(), |root| through_root(&root, path))
    }

    /// Where debug files of `object` are looked for.
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
    open_same(object.inode, [&*object.open_path, &*inside, &*object.path], MAX_FILE)
}

/// The name of the object's file, safe to show.
pub fn module(object: &MappedObject) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let name = object.path.file_name().unwrap_or(object.path.as_os_str());
    printable(name.as_bytes())
}

/// The address in the object's own address space, as far as the mappings alone tell it.
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
    use super::*;

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
            .nameless
            .iter()
            .find(|range| range.kind == NamelessKind::Vdso)
            .expect("the kernel maps one");
        assert!(matches!(space.find(vdso.start + 7), Some(Spot::Vdso(7))));
    }

    /// A file that was replaced is not taken for the one that was mapped.
    #[test]
    fn another_file_is_refused() {
        let process = Process::myself().unwrap();
        let space = Space::of(&process).unwrap();
        let mut object = MappedObject::clone(&space.objects[0]);
        object.inode.1 ^= 1;
        assert!(open(&object, &Root(None)).is_err());
    }
}
