//! drainprof's own executable, whose functions are probed.

use std::{fs::File, num::NonZeroU32, os::unix::fs::MetadataExt as _};

use drainprof_process::{MappedObject, mapped_objects};

use super::model::CalibrateError;

/// Calls before anything is timed: kernels make a nop a call after its first hits.
pub(super) const WARM_UP: u32 = 20;

/// Our own process, as probes are attached to it.
#[derive(Clone, Copy)]
pub(super) struct Own<'a> {
    pub(super) object: &'a File,
    pub(super) mapped: &'a MappedObject,
    pub(super) pid: NonZeroU32,
}

impl Own<'_> {
    /// The offset in our executable of what lies at an address.
    pub(super) fn offset(&self, address: u64) -> Result<u64, CalibrateError> {
        let offset = self.mapped.file_offset(address);
        offset.ok_or_else(|| CalibrateError::own("find its own functions in its executable", None))
    }
}

/// Our executable, and how it is mapped.
pub(super) fn own_object() -> Result<(File, MappedObject), CalibrateError> {
    let step = "open its own executable";
    let file =
        File::open("/proc/self/exe").map_err(|error| CalibrateError::own(step, Some(error)))?;
    let found = file.metadata().map_err(|error| CalibrateError::own(step, Some(error)))?;
    let mapped = mapped_objects(std::process::id())?
        .into_iter()
        .find(|object| object.inode == (found.dev(), found.ino()))
        .ok_or_else(|| CalibrateError::own("find its own executable among its mappings", None))?;
    Ok((file, mapped))
}
