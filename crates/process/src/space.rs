//! The executable memory of a process at one moment: from an address to a file and an offset in it.
//!
//! Addresses mean something only while a process lives and an object stays loaded. So `symbolize` remembers such
//! moments and looks names up later; `unwind` makes a new one when an address lies in none of the old one's files.

use std::sync::Arc;

use crate::{
    MappedObject, Process, ProcessError,
    maps::{NamelessKind, read_maps},
};

/// The executable memory of a process at one moment.
#[derive(Debug, Default)]
pub struct Space {
    objects: Vec<Arc<MappedObject>>,
    ranges: Vec<Range>,
}

/// A piece of executable memory, with the place of its first address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) place: Place,
}

/// Where an address lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In an object, by its number, at this offset of its file.
    File(usize, u64),
    /// In the vDSO, so many bytes from its start.
    Vdso(u64),
    /// In memory that the process has made executable itself.
    Generated,
    /// In the kernel's page for probes. A call whose return is probed returns to its first address.
    Uprobes,
}

/// What an address lies in.
#[derive(Clone, Debug)]
pub enum Spot {
    /// A file, at this offset in bytes.
    File(Arc<MappedObject>, u64),
    /// The vDSO, at this offset in bytes.
    Vdso(u64),
    /// Memory that the process has made executable itself.
    Generated,
}

impl Space {
    /// What `process` has mapped executable; an error where that cannot be read, or where it has ended.
    pub fn of(process: &Process) -> Result<Self, ProcessError> {
        let pid = process.pid;
        let maps = read_maps(pid)?;
        let mut space = Self::default();
        for (number, object) in MappedObject::locate_all(pid, maps.files).enumerate() {
            space.ranges.extend(object.mappings.iter().filter(|mapping| mapping.executable).map(
                |mapping| Range {
                    start: mapping.start,
                    end: mapping.end,
                    place: Place::File(number, mapping.file_offset),
                },
            ));
            space.objects.push(Arc::new(object));
        }
        space.ranges.extend(maps.nameless.into_iter().map(|(mapping, kind)| Range {
            start: mapping.start,
            end: mapping.end,
            place: match kind {
                NamelessKind::Vdso => Place::Vdso(0),
                NamelessKind::Generated => Place::Generated,
                NamelessKind::Uprobes => Place::Uprobes,
            },
        }));
        space.ranges.sort_unstable_by_key(|range| range.start);
        // What was read may be of another process that was given the number since.
        if process.is_alive() { Ok(space) } else { Err(ProcessError::Ended { pid }) }
    }

    /// The place of `address`.
    pub(crate) fn place(&self, address: u64) -> Option<Place> {
        let after = self.ranges.partition_point(|range| range.start <= address);
        let range = self.ranges.get(after.checked_sub(1)?).filter(|range| address < range.end)?;
        let into = address - range.start;
        Some(match range.place {
            Place::File(object, _) if self.objects.get(object)?.is_generated() => Place::Generated,
            Place::File(object, offset) => Place::File(object, offset.checked_add(into)?),
            Place::Vdso(offset) => Place::Vdso(offset + into),
            other => other,
        })
    }

    /// What lies at `address`; `None` for what is not executable.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Spot> {
        Some(match self.place(address)? {
            Place::File(object, offset) => {
                Spot::File(Arc::clone(self.objects.get(object)?), offset)
            }
            Place::Vdso(offset) => Spot::Vdso(offset),
            Place::Generated | Place::Uprobes => Spot::Generated,
        })
    }

    /// Whether `other` has the same files, mapped alike.
    #[must_use]
    pub fn same_objects(&self, other: &Self) -> bool {
        self.objects == other.objects
    }

    /// Its objects, by number.
    pub(crate) fn objects(&self) -> &[Arc<MappedObject>] {
        &self.objects
    }

    /// Its pieces, in order.
    pub(crate) fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Pretends that the kernel has mapped its page for probes at `start`.
    #[cfg(test)]
    pub(crate) fn add_probe_page(&mut self, start: u64) {
        self.ranges.push(Range { start, end: start + 4096, place: Place::Uprobes });
        self.ranges.sort_unstable_by_key(|range| range.start);
    }
}
