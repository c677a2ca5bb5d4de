//! Putting probes in place.

use std::num::NonZeroU32;

use aya::programs::{
    UProbe,
    uprobe::{UProbeAttachLocation, UProbeAttachPoint, UProbeScope},
};

use drainprof_common::spec::Cookie;

use super::{
    BpfError, Session, names,
    session::{Plain, load_error},
};
use crate::{
    plan::{PlannedProbe, Site},
    profile::Phase,
};

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
        self.probes
            .set(index, Plain(probe.spec), 0)
            .map_err(|source| BpfError::map("writing", names::PROBES, source))?;
        self.specs += 1;
        let program = names::program(probe.role, probe.phase).ok_or_else(|| {
            BpfError::Mismatch(format!("a program for {} at entry", probe.role.name()))
        })?;
        if probe.phase == Phase::Return {
            self.attach_program(names::CALL_ENTRY, &probe.site, index, pid)?;
        }
        self.attach_program(program, &probe.site, index, pid)?;
        Ok(index)
    }

    fn attach_program(
        &mut self,
        name: &'static str,
        site: &Site,
        index: u32,
        pid: Option<NonZeroU32>,
    ) -> Result<(), BpfError> {
        let program: &mut UProbe = self
            .ebpf
            .program_mut(name)
            .and_then(|program| program.try_into().ok())
            .ok_or_else(|| BpfError::Mismatch(format!("the program {name}")))?;
        if program.fd().is_err() {
            program.load().map_err(|source| load_error(name, source))?;
        }
        let point = UProbeAttachPoint {
            location: UProbeAttachLocation::AbsoluteOffset(site.file_offset),
            cookie: Some(Cookie { index, tgid: pid.map_or(0, NonZeroU32::get) }.pack()),
        };
        let scope = pid.map_or(UProbeScope::AllProcesses, UProbeScope::OneProcess);
        let link =
            program.attach(point, &site.open_path, scope).map_err(|source| BpfError::Attach {
                symbol: site.symbol.clone(),
                object: site.shown_path.clone(),
                offset: site.file_offset,
                source: Box::new(source),
            })?;
        self.links.push((name, link));
        Ok(())
    }

    /// How many probe programs are attached: two for a probe that is judged at return.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.links.len()
    }
}
