//! The main program of a process: what it exports by name, and the constants in its file.

use std::{os::unix::fs::FileExt as _, path::Path, sync::Arc};

use drainprof_process::{
    DebugSearch, Elf, LoadedObject, Process, identity, mapped_objects, open_same,
};

/// The main program, read from its file.
pub(crate) struct Program(LoadedObject);

impl Program {
    /// `None` where its file cannot be read, or must not be touched.
    pub(crate) fn open(process: &Process) -> Option<Self> {
        let program = identity(Path::new(&format!("/proc/{}/exe", process.pid))).ok()?;
        let objects = mapped_objects(process.pid).ok()?;
        let is_it = |object: &drainprof_process::MappedObject| object.inode == program;
        let mapped = objects.into_iter().find(is_it).filter(|object| object.refused.is_none())?;
        let elf = Elf::open(&mapped.open_path, &mapped.shown_path, DebugSearch::default()).ok()?;
        Some(Self(LoadedObject { mapped, elf: Ok(Arc::new(elf)), is_main: true }))
    }

    /// The address in the process of the data that it exports as `name`.
    pub(crate) fn exported(&self, name: &str) -> Option<u64> {
        let address = self.0.elf.as_ref().ok()?.exported_data(name)?;
        self.0.biases().first().map(|bias| bias.wrapping_add(address))
    }

    /// Fills `bytes` with what its file has for an address of the process; whether it could be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let object = &self.0.mapped;
        let mut mappings = object.mappings.iter().filter(|mapping| !mapping.writable);
        let Some(mapping) =
            mappings.find(|mapping| (mapping.start..mapping.end).contains(&address))
        else {
            return false;
        };
        let offset = mapping.file_offset.saturating_add(address - mapping.start);
        open_same(object.inode, [object.open_path.as_path()], u64::MAX)
            .is_ok_and(|file| file.read_exact_at(bytes, offset).is_ok())
    }
}
