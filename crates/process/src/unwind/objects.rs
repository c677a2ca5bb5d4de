//! The unwind tables of all objects in all processes, each once, in bounded memory.
//!
//! Tables are read when an address of the object is first asked about. When all of them take more memory than
//! they may, the one that was asked longest ago is dropped, and read again when it is needed. Called by the
//! [`Unwinder`](super::Unwinder).

use std::{
    collections::HashMap, fs::File, io, os::unix::fs::MetadataExt as _, path::PathBuf, sync::Arc,
};

use super::cfi::Tables;
use crate::{
    DebugSearch, FrameSections, MappedObject,
    guard::{ask, reads},
    guarded, vdso,
};

/// Largest file whose tables are read; its tables are bounded by the memory that all may take.
const MAX_FILE: u64 = 16 << 30;
/// Objects that are kept.
const MAX_OBJECTS: usize = 8192;

/// One version of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Device and inode, size, time of change.
    File((u64, u64), u64, (i64, i64)),
    /// The kernel maps the same one into all processes.
    Vdso,
}

/// What is known of an object of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Loaded {
    /// It was not asked about yet.
    #[default]
    NotYet,
    /// It has tables, under this number.
    Tables(u64),
    /// It cannot be read, or is no object.
    Never,
}

#[derive(Debug)]
struct Entry {
    key: Key,
    tables: Arc<Tables>,
    /// Those of its debug file, once they were asked for.
    debug: Option<Arc<Tables>>,
    size: u64,
    used: u64,
}

/// The tables of all objects.
#[derive(Debug)]
pub(super) struct Objects {
    entries: HashMap<u64, Entry>,
    numbers: HashMap<Key, u64>,
    debug_dirs: Vec<PathBuf>,
    limit: u64,
    total: u64,
    /// Counts questions; numbers of entries are taken from it too.
    clock: u64,
    vdso: Loaded,
}

impl Objects {
    /// None yet; all tables together will take at most `limit` bytes. Debug files are searched for in
    /// `debug_dirs` too.
    pub(super) fn new(limit: u64, debug_dirs: Vec<PathBuf>) -> Self {
        Self {
            entries: HashMap::new(),
            numbers: HashMap::new(),
            debug_dirs,
            limit,
            total: 0,
            clock: 0,
            vdso: Loaded::NotYet,
        }
    }

    /// The tables of `object`; `loaded` is where the answer is kept.
    pub(super) fn of(&mut self, object: &MappedObject, loaded: &mut Loaded) -> Option<Arc<Tables>> {
        self.clock += 1;
        let kept = self.kept(*loaded);
        if kept.is_some() || *loaded == Loaded::Never {
            return kept;
        }
        *loaded = match self.read(object) {
            Ok(number) => Loaded::Tables(number),
            Err(error) => {
                tracing::debug!(object = %object.shown_path, %error, "no unwind tables");
                Loaded::Never
            }
        };
        self.kept(*loaded)
    }

    /// The tables in the debug file of `object`, for addresses that its own tables do not cover. The file is
    /// searched for once.
    pub(super) fn debug_of(
        &mut self,
        pid: u32,
        object: &MappedObject,
        loaded: Loaded,
    ) -> Option<Arc<Tables>> {
        let Loaded::Tables(number) = loaded else { return None };
        if let Some(tables) = &self.entries.get(&number)?.debug {
            return Some(Arc::clone(tables));
        }
        let search = DebugSearch {
            process_root: Some(PathBuf::from(format!("/proc/{pid}/root"))),
            object_path: Some(object.path.clone()),
            debug_dirs: self.debug_dirs.clone(),
        };
        let left = self.limit.saturating_sub(self.total);
        let found = object.clone();
        let sections = guarded(move || {
            reads(Some(found.inode.0), &found.shown_path);
            open(&found).map_err(|error| error.to_string()).and_then(|file| {
                FrameSections::read_debug(file, &found.shown_path, &search, left)
                    .map_err(|error| error.to_string())
            })
        });
        let sections = sections.unwrap_or_else(|stuck| Err(stuck.to_string()));
        let tables = Arc::new(Tables::new(sections.unwrap_or_else(|error| {
            tracing::debug!(object = %object.shown_path, %error, "no unwind tables of a debug file");
            FrameSections::default()
        })));
        let size = tables.size();
        self.total = self.total.saturating_add(size);
        let entry = self.entries.get_mut(&number)?;
        entry.size += size;
        entry.debug = Some(Arc::clone(&tables));
        Some(tables)
    }

    /// The tables of the vDSO.
    pub(super) fn vdso(&mut self) -> Option<Arc<Tables>> {
        self.clock += 1;
        let kept = self.kept(self.vdso);
        if kept.is_some() || self.vdso == Loaded::Never {
            return kept;
        }
        let tables = vdso::image().map_err(|error| error.to_string()).and_then(|file| {
            FrameSections::read(file, vdso::NAME, self.limit).map_err(|error| error.to_string())
        });
        self.vdso = match tables {
            Ok(sections) => Loaded::Tables(self.keep(Key::Vdso, Tables::new(sections))),
            Err(error) => {
                tracing::debug!(object = vdso::NAME, %error, "no unwind tables");
                Loaded::Never
            }
        };
        self.kept(self.vdso)
    }

    /// Memory that all tables take, in bytes.
    pub(super) fn size(&self) -> u64 {
        self.total
    }

    fn kept(&mut self, loaded: Loaded) -> Option<Arc<Tables>> {
        let Loaded::Tables(number) = loaded else { return None };
        let entry = self.entries.get_mut(&number)?;
        entry.used = self.clock;
        Some(Arc::clone(&entry.tables))
    }

    fn read(&mut self, object: &MappedObject) -> io::Result<u64> {
        let found = object.clone();
        let opened = guarded(move || {
            reads(Some(found.inode.0), &found.shown_path);
            let file = open(&found)?;
            let metadata = ask(|| file.metadata())?;
            io::Result::Ok((file, metadata))
        });
        let (file, metadata) = opened.map_err(io::Error::other)??;
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        let key = Key::File((metadata.dev(), metadata.ino()), metadata.len(), changed);
        if let Some(&number) = self.numbers.get(&key) {
            return Ok(number);
        }
        let (found, limit) = (object.clone(), self.limit);
        let sections = guarded(move || {
            reads(Some(found.inode.0), &found.shown_path);
            FrameSections::read(file, &found.shown_path, limit).map_err(|error| error.to_string())
        });
        let sections = sections.map_err(io::Error::other)?.map_err(io::Error::other)?;
        let tables = Tables::new(sections);
        if tables.size() > self.limit {
            return Err(io::Error::other("its tables take more memory than all may"));
        }
        Ok(self.keep(key, tables))
    }

    fn keep(&mut self, key: Key, tables: Tables) -> u64 {
        let number = self.clock;
        let size = tables.size();
        while self.total.saturating_add(size) > self.limit || self.entries.len() >= MAX_OBJECTS {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some((&oldest, _)) = oldest else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.total = self.total.saturating_sub(entry.size);
                self.numbers.remove(&entry.key);
            }
        }
        self.total = self.total.saturating_add(size);
        self.numbers.insert(key, number);
        let entry = Entry { key, tables: Arc::new(tables), debug: None, size, used: self.clock };
        self.entries.insert(number, entry);
        number
    }
}

/// Opens the very file that is mapped: through the process, or, if that has ended, at its path.
fn open(object: &MappedObject) -> io::Result<File> {
    object.open([&*object.open_path, &*object.path], MAX_FILE)
}
