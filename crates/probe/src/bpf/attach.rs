//! Putting probes in place.

use std::{
    fs::File,
    io,
    num::NonZeroU32,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    path::Path,
};

use aya::{
    Ebpf,
    programs::{
        UProbe,
        uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};
use drainprof_common::spec::{Cookie, flags};
use drainprof_profile::Phase;

use super::{
    BpfError, Session, counted, names,
    session::{Plain, load_error},
};
use crate::plan::{PlannedProbe, Site};

/// A probe in place; it goes when this is dropped.
pub(super) struct Link {
    /// The process that it is in; `None`: all that map the object.
    pub(super) pid: Option<NonZeroU32>,
    _hold: Hold,
}

/// What keeps a probe in place.
enum Hold {
    /// As aya attaches.
    Plain { _link: UProbeLink },
    /// With a counter.
    Counted { _fd: OwnedFd },
}

/// Opens the object once, and makes sure that it is the one that was planned for: the path goes through
/// the process's own root, where it could have been replaced since.
fn open(site: &Site) -> Result<File, BpfError> {
    let file = File::open(&site.open_path).map_err(|source| failed(site, source))?;
    let found = file.metadata().map_err(|source| failed(site, source))?;
    if found.is_file() && found.ino() == site.inode.1 {
        Ok(file)
    } else {
        Err(failed(
            site,
            io::Error::other("the file was replaced while it was looked at; try again"),
        ))
    }
}

/// A program that goes on functions, by its name in the object.
pub(super) fn uprobe<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut UProbe, BpfError> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or_else(|| BpfError::Mismatch(format!("the program {name}")))
}

fn failed(site: &Site, source: impl std::error::Error + Send + Sync + 'static) -> BpfError {
    BpfError::attach(site.symbol.clone(), site.shown_path.clone(), site.file_offset, source)
}

impl Session {
    /// Attaches one planned probe to one process, or to all that map its object (`pid` is `None`).
    ///
    /// Returns the number of its spec, under which its hits are counted. Hits count only in processes
    /// that are armed. An error leaves this probe detached; those attached before stay until the session
    /// is dropped, and do nothing in processes that are not armed.
    pub fn attach(
        &mut self,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
    ) -> Result<u32, BpfError> {
        let index = self.specs;
        if index >= self.sizes.probes {
            return Err(BpfError::TooManyProbes(self.sizes.probes));
        }
        let object = open(&probe.site)?;
        self.probes
            .set(index, Plain(probe.spec), 0)
            .map_err(|source| BpfError::map("writing", names::PROBES, source))?;
        let stacks = probe.spec.flags & flags::STACKS != 0;
        let program = names::program(probe.role, probe.phase, stacks).ok_or_else(|| {
            BpfError::Mismatch(format!("a program for {} at entry", probe.role.name()))
        })?;
        let at_return = probe.phase == Phase::Return;
        let first = if at_return { names::CALL_ENTRY } else { program };
        self.attach_program(first, &object, &probe.site, index, pid)?;
        // Taken once something can hit it: an attach that is refused leaves it to the next.
        self.specs += 1;
        if at_return {
            self.attach_program(program, &object, &probe.site, index, pid)?;
        }
        Ok(index)
    }

    /// Attaches the empty programs where [`Session::attach`] would attach the counting ones of a probe:
    /// at the entry, and at the return too for a probe that is judged there.
    ///
    /// Nothing is counted, and no spec is taken. A hit then costs what the kernel's probing costs at this
    /// very place: the floor against which drainprof's own cost is measured. Benchmarks call it. The
    /// programs stay attached as long as the session.
    pub fn attach_empty(
        &mut self,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
    ) -> Result<(), BpfError> {
        let object = open(&probe.site)?;
        self.attach_program(names::EMPTY_ENTRY, &object, &probe.site, 0, pid)?;
        if probe.phase == Phase::Return {
            self.attach_program(names::EMPTY_RETURN, &object, &probe.site, 0, pid)?;
        }
        Ok(())
    }

    fn attach_program(
        &mut self,
        name: &'static str,
        object: &File,
        site: &Site,
        index: u32,
        pid: Option<NonZeroU32>,
    ) -> Result<(), BpfError> {
        let program = uprobe(&mut self.ebpf, name)?;
        if program.fd().is_err() {
            program.load().map_err(|source| load_error(name, source))?;
        }
        let cookie = Cookie { index, tgid: pid.map_or(0, NonZeroU32::get) }.pack();
        let path = format!("/proc/self/fd/{}", object.as_raw_fd());
        let semaphore = site.usdt.as_ref().and_then(|usdt| usdt.semaphore);
        let hold = if let Some(counter) = semaphore {
            let program = program.fd().map_err(|source| failed(site, source))?.as_fd();
            let path = Path::new(&path);
            counted::attach(program, path, site.file_offset, counter, cookie, pid)
                .map(|fd| Hold::Counted { _fd: fd })
                .map_err(|source| failed(site, source))?
        } else {
            let point = UProbeAttachPoint {
                location: UProbeAttachLocation::AbsoluteOffset(site.file_offset),
                cookie: Some(cookie),
            };
            let scope = pid.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
            program
                .attach(point, path, scope)
                .and_then(|id| program.take_link(id))
                .map(|link| Hold::Plain { _link: link })
                .map_err(|source| failed(site, source))?
        };
        self.links.push(Link { pid, _hold: hold });
        Ok(())
    }
}
