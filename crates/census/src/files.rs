//! The files that a process has mapped: what its main program exports, the constants in them, and symbols of vtables.

use std::{
    cell::{OnceCell, RefCell},
    collections::HashMap,
    os::unix::fs::FileExt as _,
    path::Path,
};

use drainprof_process::{
    DebugSearch, Elf, LoadedObject, MappedObject, Process, identity, mapped_objects, open_same,
};

/// The objects of a process, found when the first is asked for.
pub(crate) struct Files {
    pid: u32,
    objects: OnceCell<Vec<MappedObject>>,
    /// What was read of them, by index.
    read: RefCell<HashMap<usize, Option<LoadedObject>>>,
}

impl Files {
    pub(crate) fn of(process: &Process) -> Self {
        Self { pid: process.pid, objects: OnceCell::new(), read: RefCell::default() }
    }

    fn objects(&self) -> &[MappedObject] {
        self.objects.get_or_init(|| {
            let all = mapped_objects(self.pid).unwrap_or_default().into_iter();
            all.filter(|object| object.refused.is_none()).collect()
        })
    }

    /// The object with a mapping of this address.
    fn index(&self, address: u64) -> Option<usize> {
        let has = |object: &MappedObject| {
            let mut mappings = object.mappings.iter();
            mappings.any(|mapping| (mapping.start..mapping.end).contains(&address))
        };
        self.objects().iter().position(has)
    }

    /// What `ask` finds in an object and at its place in memory.
    fn with<T>(&self, index: usize, ask: impl FnOnce(&Elf, u64) -> Option<T>) -> Option<T> {
        let mut read = self.read.borrow_mut();
        let object = read.entry(index).or_insert_with(|| {
            let mapped = self.objects().get(index)?.clone();
            let elf = Elf::open(&mapped.open_path, &mapped.shown_path, DebugSearch::default());
            Some(LoadedObject { mapped, elf: Ok(elf.ok()?.into()), is_main: false })
        });
        let object = object.as_ref()?;
        ask(object.elf.as_ref().ok()?, *object.biases().first()?)
    }

    /// The address in the process of the data that its main program exports as `name`.
    pub(crate) fn exported(&self, name: &str) -> Option<u64> {
        let program = identity(Path::new(&format!("/proc/{}/exe", self.pid))).ok()?;
        let index = self.objects().iter().position(|object| object.inode == program)?;
        self.with(index, |elf, bias| Some(bias.wrapping_add(elf.exported_data(name)?)))
    }

    /// The mangled name of the class whose vtable has this address, by its symbol.
    pub(crate) fn vtable(&self, address: u64) -> Option<String> {
        let index = self.index(address)?;
        self.with(index, |elf, bias| elf.vtable_at(address.wrapping_sub(bias)))
    }

    /// Fills `bytes` with what a file has for an address of the process; whether it could be read.
    pub(crate) fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let Some(object) = self.index(address).and_then(|index| self.objects().get(index)) else {
            return false;
        };
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
