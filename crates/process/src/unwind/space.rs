//! Where code lies in a process: from an address to an object and an offset in its file.
//!
//! Made anew when an address is met that lies nowhere, because libraries are loaded and code is generated
//! while a process runs. Called by the [`Unwinder`](super::Unwinder).

use std::{collections::HashMap, sync::Arc, time::Instant};

use super::objects::Loaded;
use crate::{MappedObject, NamelessKind, Process, ProcessError, mapped_objects, nameless_memory};

/// The executable memory of a process at one moment.
#[derive(Debug)]
pub(super) struct Space {
    /// Whose it is.
    pub(super) process: Process,
    /// When it was looked at.
    pub(super) seen: Instant,
    /// Code that lay somewhere lies there no longer, since somebody last asked.
    pub(super) moved: bool,
    objects: Vec<(Arc<MappedObject>, Loaded)>,
    ranges: Vec<Range>,
}

/// A piece of executable memory.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    end: u64,
    lies: Lies,
}

#[derive(Clone, Copy, Debug)]
enum Lies {
    /// In a file: which of the objects, and the offset of the range's start.
    File(usize, u64),
    Nameless(NamelessKind),
}

/// What an address lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// An object, by its number, at this offset of its file.
    File(usize, u64),
    /// The vDSO, so far from its start.
    Vdso(u64),
    /// Memory that the process has made executable itself.
    Generated,
    /// The kernel's page for probes. Its first address is where calls return to whose return is probed.
    Uprobes,
}

impl Space {
    /// What `process` has mapped executable. What is known of objects that are in `before` too is kept.
    pub(super) fn of(process: Process, before: Option<&Self>) -> Result<Self, ProcessError> {
        let pid = process.pid;
        let known: HashMap<_, _> = before
            .into_iter()
            .flat_map(|space| &space.objects)
            .map(|(object, loaded)| (object.inode, (object, *loaded)))
            .collect();
        let mut ranges = Vec::new();
        let mut objects = Vec::new();
        for object in mapped_objects(pid)? {
            for mapping in object.mappings.iter().filter(|mapping| mapping.executable) {
                let lies = Lies::File(objects.len(), mapping.file_offset);
                ranges.push(Range { start: mapping.start, end: mapping.end, lies });
            }
            // With another path it might be another file that was given the number since.
            let loaded = match known.get(&object.inode) {
                Some((before, loaded)) if before.open_path == object.open_path => *loaded,
                _ => Loaded::NotYet,
            };
            objects.push((Arc::new(object), loaded));
        }
        ranges.extend(nameless_memory(pid).into_iter().map(|memory| Range {
            start: memory.start,
            end: memory.end,
            lies: Lies::Nameless(memory.kind),
        }));
        ranges.sort_unstable_by_key(|range| range.start);
        if !process.is_alive() {
            // What was read may be of another process that was given the number since.
            return Err(ProcessError::Ended { pid });
        }
        let mut space = Self { process, seen: Instant::now(), moved: false, objects, ranges };
        space.moved =
            before.is_some_and(|before| before.moved || !before.code().all(|code| space.has(code)));
        Ok(space)
    }

    /// The code of files: where it is, in which file, and where there.
    fn code(&self) -> impl Iterator<Item = (u64, u64, (u64, u64), u64)> {
        self.ranges.iter().filter_map(|range| match range.lies {
            Lies::File(object, offset) => {
                Some((range.start, range.end, self.objects.get(object)?.0.inode, offset))
            }
            Lies::Nameless(_) => None,
        })
    }

    fn has(&self, code: (u64, u64, (u64, u64), u64)) -> bool {
        let at = self.ranges.partition_point(|range| range.start < code.0);
        let Some(range) = self.ranges.get(at) else { return false };
        let Lies::File(object, offset) = range.lies else { return false };
        let inode = self.objects.get(object).map(|(object, _)| object.inode);
        (range.start, range.end, inode, offset) == (code.0, code.1, Some(code.2), code.3)
    }

    /// What `address` lies in.
    pub(super) fn find(&self, address: u64) -> Option<Spot> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?).filter(|range| address < range.end)?;
        let into = address - range.start;
        Some(match range.lies {
            Lies::File(object, offset) => Spot::File(object, offset.checked_add(into)?),
            Lies::Nameless(NamelessKind::Vdso) => Spot::Vdso(into),
            Lies::Nameless(NamelessKind::Generated) => Spot::Generated,
            Lies::Nameless(NamelessKind::Uprobes) => Spot::Uprobes,
        })
    }

    /// The object of this number, and how far its tables are known.
    pub(super) fn object(&mut self, number: usize) -> Option<&mut (Arc<MappedObject>, Loaded)> {
        self.objects.get_mut(number)
    }

    /// Its executable memory, in order: first addresses, and first addresses after.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|range| (range.start, range.end))
    }
    /// Pretends that the kernel has mapped its page for probes at `start`.
    #[cfg(test)]
    pub(super) fn add_probe_page(&mut self, start: u64) {
        let lies = Lies::Nameless(NamelessKind::Uprobes);
        self.ranges.push(Range { start, end: start + 4096, lies });
        self.ranges.sort_unstable_by_key(|range| range.start);
    }
}
