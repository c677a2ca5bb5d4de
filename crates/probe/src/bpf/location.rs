//! Where the kernel puts a probe.

use std::{num::NonZeroU32, path::PathBuf};

/// One instruction of a file, in one process or in all that map it.
#[derive(Clone, Debug)]
pub(super) struct Location {
    /// The file.
    pub(super) path: PathBuf,
    /// The offset of the instruction in it.
    pub(super) offset: u64,
    /// The offset of the counter that the kernel raises while the probe is in place.
    pub(super) counter: Option<u32>,
    /// What the program reads of the probe.
    pub(super) cookie: u64,
    /// The only process that it is put into; `None`: all that map the file.
    pub(super) pid: Option<NonZeroU32>,
}
