//! Probes that do nothing, on drainprof itself: what calibration times.
//!
//! Loads the object with the smallest maps, and of its programs only the two empty ones. Which functions
//! are probed, and what is made of the times, `calibrate` knows.

use std::{
    fs::File,
    io,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use aya::{Ebpf, EbpfLoader, programs::UProbe};

use super::{
    BpfError,
    detach::Detaching,
    event,
    link::{Leftover, Link},
    load::{OBJECT, load_uprobe, program},
    location::Location,
    names,
    placing::{self, Refused},
};

/// For how long calibration waits for the kernel to put a probe in place.
const PATIENCE: Duration = Duration::from_secs(10);

/// The smallest ring that every kernel takes; the other maps hold one entry.
const RING_BYTES: u32 = 4_096;

/// The empty programs, loaded, and where they were attached so far. Dropping it detaches them, which takes
/// the kernel about 0.1 s each.
pub struct EmptyProbes {
    /// Before the programs.
    links: Leftover,
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
        Ok(Self { links: Leftover::default(), ebpf })
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
        self.attach(false, object, offset, pid, what)
    }

    /// The same at the return of the function that begins there.
    pub fn at_return(
        &mut self,
        object: &File,
        offset: u64,
        pid: NonZeroU32,
        what: &str,
    ) -> Result<(), BpfError> {
        self.attach(true, object, offset, pid, what)
    }

    /// Detaches in a thread of its own; only the end of this process waits for it.
    pub fn detach_in_background(self) {
        let _ = Detaching::begin(self, ());
    }

    fn attach(
        &mut self,
        at_return: bool,
        object: &File,
        offset: u64,
        pid: NonZeroU32,
        what: &str,
    ) -> Result<(), BpfError> {
        let failed = |source: io::Error| {
            BpfError::attach(what.to_owned(), "drainprof itself".to_owned(), offset, source)
        };
        let file = Arc::new(object.try_clone().map_err(failed)?);
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let location = Location { path, offset, counter: None, cookie: 0, pid: Some(pid) };
        let name = if at_return { names::EMPTY_RETURN } else { names::EMPTY_ENTRY };
        let program = program::<UProbe>(&mut self.ebpf, name)?;
        let loaded = program.fd().map_err(|source| failed(io::Error::other(source)))?.as_fd();
        let loaded = loaded.try_clone_to_owned().map_err(failed)?;
        let work = move || event::attach(loaded.as_fd(), at_return, &location);
        let object = || "drainprof itself".to_owned();
        let placed =
            placing::place(&file, PATIENCE, (), work).map_err(|refused| match refused {
                Refused::Held(holder) => BpfError::Held { object: object(), holder },
                Refused::Late(since) => {
                    BpfError::Late { object: object(), seconds: since.as_secs_f64() }
                }
                Refused::Kernel(error) => failed(error),
            })?;
        self.links.add(Leftover::new(vec![Link::new(Some(pid), false, placed, None)]));
        Ok(())
    }
}
