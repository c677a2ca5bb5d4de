//! What the unwinder knows of one address space: its executable memory, and how far its tables are known.
//!
//! Made again when an address is met that lies nowhere, because libraries are loaded and code is generated
//! while a process runs.

use std::{collections::HashMap, time::Instant};

use super::objects::Loaded;
use crate::{
    Process, ProcessError, Space, readers,
    space::{Place, Range},
};

/// An address space.
#[derive(Debug)]
pub(super) struct AddressSpace {
    pub(super) process: Process,
    /// When its mappings were read.
    pub(super) seen: Instant,
    /// Code was unloaded or replaced since [`super::Unwinder::take_moved`] was last called.
    pub(super) moved: bool,
    pub(super) memory: Space,
    /// What is known of the tables of each object of `memory`.
    pub(super) loaded: Vec<Loaded>,
}

impl AddressSpace {
    /// Reads what `process` has mapped. What is known of objects that are in `before` too is kept.
    pub(super) fn of(process: Process, before: Option<&Self>) -> Result<Self, ProcessError> {
        let own = process.clone();
        let memory = readers::ask(process.pid, move || Space::of(&own))??;
        let known: HashMap<_, _> = before
            .into_iter()
            .flat_map(|space| space.memory.objects().iter().zip(&space.loaded))
            .map(|(object, loaded)| (object.inode, (object, *loaded)))
            .collect();
        // With another path it might be another file that was given the number since.
        let loaded = memory.objects().iter().map(|object| match known.get(&object.inode) {
            Some((before, loaded)) if before.open_path == object.open_path => *loaded,
            _ => Loaded::NotYet,
        });
        let loaded = loaded.collect();
        let mut space = Self { process, seen: Instant::now(), moved: false, memory, loaded };
        space.moved = before.is_some_and(|before| {
            let ranges = before.memory.ranges().iter();
            before.moved
                || !ranges.filter_map(|range| before.code(range)).all(|code| space.has(code))
        });
        Ok(space)
    }

    /// Code from a file: first address, first address after it, device and inode, offset in the file.
    fn code(&self, range: &Range) -> Option<(u64, u64, (u64, u64), u64)> {
        let Place::File(object, offset) = range.place else { return None };
        Some((range.start, range.end, self.memory.objects().get(object)?.inode, offset))
    }

    fn has(&self, code: (u64, u64, (u64, u64), u64)) -> bool {
        let ranges = self.memory.ranges();
        let at = ranges.partition_point(|range| range.start < code.0);
        ranges.get(at).and_then(|range| self.code(range)) == Some(code)
    }
}
