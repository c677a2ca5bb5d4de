//! Probes that do nothing, on drainprof itself: what calibration times.
//!
//! Loads the object with the smallest maps, and of its programs only the two empty ones. Which functions
//! are probed, and what is made of the times, `calibrate` knows.

use std::{fs::File, num::NonZeroU32, os::fd::AsRawFd as _};

use aya::{
    Ebpf, EbpfLoader,
    programs::{
        UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope},
    },
};

use super::{
    BpfError, Detaching,
    attach::load_uprobe,
    load::{OBJECT, program},
    names,
};

/// The smallest ring that every kernel takes; the other maps hold one entry.
const RING_BYTES: u32 = 4_096;

/// The empty programs, loaded, and where they were attached so far. Dropping it detaches them, which takes
/// the kernel about 0.1 s each.
pub struct EmptyProbes {
    ebpf: Ebpf,
}

impl EmptyProbes {
    /// Loads the two programs.
    pub fn load() -> Result<Self, BpfError> {
        let mut loader = EbpfLoader::new();
        for name in names::MAPS {
            let entries = if *name == names::EVENTS { RING_BYTES } else { 1 };
            loader.map_max_entries(name, entries);
        }
        let mut ebpf = loader
            .load(OBJECT)
            .map_err(|source| BpfError::load("maps".to_owned(), RING_BYTES.into(), source))?;
        for name in [names::EMPTY_ENTRY, names::EMPTY_RETURN] {
            load_uprobe(name, program(&mut ebpf, name)?)?;
        }
        Ok(Self { ebpf })
    }

    /// Attaches the empty program to an instruction, for process `pid` alone.
    ///
    /// `object` is the file and `offset` the instruction's place in it; `what` names it in errors.
    pub fn at_entry(
        &mut self,
        object: &File,
        offset: u64,
        pid: NonZeroU32,
        what: &str,
    ) -> Result<(), BpfError> {
        self.attach(names::EMPTY_ENTRY, object, offset, pid, what)
    }

    /// The same at the return of the function that begins there.
    pub fn at_return(
        &mut self,
        object: &File,
        offset: u64,
        pid: NonZeroU32,
        what: &str,
    ) -> Result<(), BpfError> {
        self.attach(names::EMPTY_RETURN, object, offset, pid, what)
    }

    /// Detaches in a thread of its own, so that nobody waits for it but the end of this process.
    pub fn detach_in_background(self) {
        let _ = Detaching::begin(self, ());
    }

    fn attach(
        &mut self,
        name: &'static str,
        object: &File,
        offset: u64,
        pid: NonZeroU32,
        what: &str,
    ) -> Result<(), BpfError> {
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(offset),
            cookie: None,
        };
        let path = format!("/proc/self/fd/{}", object.as_raw_fd());
        program::<UProbe>(&mut self.ebpf, name)?
            .attach(point, path, UProbeScope::OneProcess(pid))
            .map(drop)
            .map_err(|source| {
                BpfError::attach(what.to_owned(), "drainprof itself".to_owned(), offset, source)
            })
    }
}
