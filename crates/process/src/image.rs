//! What a process consists of: its mapped objects, read.
//!
//! Joins `maps` and `elf`. Called by `cli` and `watch`, consumed by `plan`, which gets the objects as
//! plain data and needs no process.

use std::{
    collections::HashMap,
    io,
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    DebugSearch, Elf, ElfError, MappedObject, Process, ProcessError,
    elf::{Held, MAX_FILE},
    file::{identity, open_regular},
    guard, mapped_objects, printable,
};

/// Why an object is not read.
const GIVEN_UP: &str = "its file system does not answer";
/// Objects that an [`ElfCache`] keeps.
const MAX_CACHED: usize = 512;

/// How objects are read.
#[derive(Clone, Debug, Default)]
pub struct ImageOptions {
    /// More directories laid out like `/usr/lib/debug`.
    pub debug_dirs: Vec<PathBuf>,
}

/// An object of a process, with its mappings and what is in the file.
#[derive(Clone, Debug)]
pub struct LoadedObject {
    /// Where it is mapped and how it can be opened.
    pub mapped: MappedObject,
    /// What is in it, or why it could not be read.
    pub elf: Result<Arc<Elf>, ElfError>,
    /// It is the process's main program.
    pub is_main: bool,
}

impl LoadedObject {
    /// Differences between addresses in this process and in the file: one, or several where the object
    /// was loaded more than once (`dlmopen`); none where no mapping fits a segment.
    #[must_use]
    pub fn biases(&self) -> Vec<u64> {
        let Ok(elf) = &self.elf else { return Vec::new() };
        let mut biases: Vec<u64> = Vec::new();
        for mapping in self.mapped.mappings.iter().filter(|mapping| mapping.executable) {
            let bias =
                elf.segments().iter().filter(|segment| segment.executable).find_map(|segment| {
                    bias_of(mapping.start, mapping.end, mapping.file_offset, segment)
                });
            if let Some(bias) = bias.filter(|bias| !biases.contains(bias)) {
                biases.push(bias);
            }
        }
        biases
    }
}

/// The bias, if the mapping shows (a part of) the segment. The mapping starts at a page, the segment
/// anywhere inside one.
fn bias_of(start: u64, end: u64, file_offset: u64, segment: &super::elf::Segment) -> Option<u64> {
    let last = segment.file_offset.checked_add(segment.file_size)?;
    let mapped_end = file_offset.checked_add(end.checked_sub(start)?)?;
    (file_offset < last && mapped_end > segment.file_offset).then(|| {
        start
            .wrapping_sub(segment.vaddr.wrapping_add(file_offset).wrapping_sub(segment.file_offset))
    })
}

/// The objects of one process at one moment.
#[derive(Clone, Debug)]
pub struct Image {
    /// Name of the executable as the process sees it, without its directory; hostile.
    pub exe_name: String,
    /// The whole path of it; hostile.
    pub exe_path: String,
    /// Its objects, in address order.
    pub objects: Vec<LoadedObject>,
}

impl Image {
    /// Reads what `process` has mapped; objects that did not change come from `cache`.
    ///
    /// An object that cannot be read does not fail the others: its error is kept beside it.
    pub fn load(
        process: &Process,
        options: &ImageOptions,
        cache: &mut ElfCache,
    ) -> Result<Self, ProcessError> {
        let mapped = mapped_objects(process.pid)?;
        // The identity is asked of the file itself: the path may name another one by now.
        let main = identity(Path::new(&format!("/proc/{}/exe", process.pid))).ok();
        let root = process.root();
        let objects = mapped
            .into_iter()
            .map(|mapped| {
                let search = DebugSearch {
                    process_root: Some(root.clone()),
                    object_path: Some(mapped.path.clone()),
                    debug_dirs: options.debug_dirs.clone(),
                };
                let elf = cache.get(&mapped, search);
                LoadedObject { is_main: main == Some(mapped.inode), elf, mapped }
            })
            .collect();
        if !process.is_alive() {
            // What was read may be of another process that was given the number since.
            return Err(ProcessError::Ended { pid: process.pid });
        }
        let name = process.exe.file_name().unwrap_or_default();
        Ok(Self {
            exe_name: String::from_utf8_lossy(name.as_bytes()).into_owned(),
            exe_path: process.exe.to_string_lossy().into_owned(),
            objects,
        })
    }
}

/// One version of one file (inode, size, time of change), under one root directory.
type Key = ((u64, u64), u64, (i64, i64), Option<(u64, u64)>);

/// Objects that were read before: most processes of a machine share their libraries.
#[derive(Clone, Debug, Default)]
pub struct ElfCache {
    entries: HashMap<Key, Arc<Elf>>,
    /// Bounds what all of them take.
    held: Arc<Held>,
}

impl ElfCache {
    /// An empty cache.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds what another one has read meanwhile.
    pub fn absorb(&mut self, other: Self) {
        if self.entries.len() + other.entries.len() <= MAX_CACHED {
            self.entries.extend(other.entries);
        }
    }

    fn get(&mut self, mapped: &MappedObject, search: DebugSearch) -> Result<Arc<Elf>, ElfError> {
        let path = &mapped.open_path;
        let shown = &mapped.shown_path;
        let unread =
            |error: io::Error| ElfError::Read { path: shown.clone(), cause: error.to_string() };
        let is_given_up = guard::is_given_up(mapped.inode.0) || guard::is_left();
        let given_up = is_given_up.then_some(GIVEN_UP);
        if let Some(why) = mapped.refused.or(given_up) {
            return Err(ElfError::Read { path: shown.clone(), cause: why.to_owned() });
        }
        guard::reads(Some(mapped.inode.0), shown);
        // What is read and remembered is what is open here, whatever is at the path by now.
        let file = open_regular(path, MAX_FILE).map_err(unread)?;
        let metadata = guard::ask(|| file.metadata()).map_err(unread)?;
        if (metadata.dev(), metadata.ino()) != mapped.inode {
            return Err(ElfError::Changed { path: shown.clone() });
        }
        // Where debug files are searched for depends on the root: a container brings its own.
        let root = search.process_root.as_deref().and_then(|root| identity(root).ok());
        let key = (mapped.inode, metadata.size(), (metadata.ctime(), metadata.ctime_nsec()), root);
        if let Some(found) = self.entries.get(&key) {
            return Ok(Arc::new(found.seen_as(path, shown, search)));
        }
        let open = || {
            let file = file.try_clone().map_err(unread)?;
            Elf::read(&self.held, file, path, shown, search.clone())
        };
        let mut opened = open();
        if opened.is_err() && self.held.is_tight() && !self.entries.is_empty() {
            self.entries.clear();
            opened = open();
        }
        let elf = Arc::new(opened?);
        if self.entries.len() >= MAX_CACHED {
            // Rare and cheap enough: what is still wanted is read again.
            self.entries.clear();
        }
        self.entries.insert(key, Arc::clone(&elf));
        Ok(elf)
    }
}

/// An object's path, safe to show, with what is special about it.
#[must_use]
pub fn describe(object: &LoadedObject) -> String {
    let path = printable(object.mapped.path.as_os_str().as_bytes());
    match (object.mapped.replaced, object.mapped.deleted) {
        (true, _) => format!("{path} (replaced on disk since the process mapped it)"),
        (false, true) => format!("{path} (deleted since the process mapped it)"),
        (false, false) => path,
    }
}

#[cfg(test)]
mod tests;
