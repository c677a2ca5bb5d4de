//! Putting probes in place.

use std::{
    collections::BTreeSet,
    fs::File,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _},
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use aya::{
    Ebpf,
    maps::{Array, MapData},
    programs::{Program, ProgramFd, ProgramInfo, UProbe},
};
use drainprof_common::spec::{Cookie, ProbeSpec, flags};
use drainprof_profile::{Level, Phase, Profile};

use super::{
    BpfError, event,
    files::{OpenFiles, failed, refused},
    link::{Leftover, Link},
    load::{Plain, load_error, load_uprobe, program, take},
    location::Location,
    multi::Multi,
    mutex::lock,
    names,
    placing::{self, Refused},
    specs::{Spec, Specs},
    syscall,
};
use crate::{
    kernel::ProgramStatistics,
    plan::{PlannedProbe, Site},
};

const fn has_stacks(probe: &PlannedProbe) -> bool {
    probe.spec.flags & flags::STACKS != 0
}

/// How often the kernel did not run a program; `None` where it does not say.
fn missed(program: &ProgramFd) -> Option<u64> {
    syscall::missed(program.as_fd()).ok()
}

/// The lock is not held while the program is loaded.
fn next<'a>(waiting: &Mutex<Vec<(&'a str, &'a mut UProbe)>>) -> Option<(&'a str, &'a mut UProbe)> {
    lock(waiting).pop()
}

/// The program that judges at a probe.
fn program_of(probe: &PlannedProbe) -> Result<String, BpfError> {
    names::program(probe.role, probe.phase, has_stacks(probe))
        .ok_or_else(|| BpfError::Mismatch(format!("a program for {} at entry", probe.role.name())))
}

/// The programs, and the probes that they are attached to.
pub(super) struct Probes {
    links: Vec<Link>,
    /// For probes that are to go quickly; before the maps.
    multi: Option<Multi>,
    ebpf: Ebpf,
    /// What each spec says.
    meanings: Array<MapData, Plain<ProbeSpec>>,
    specs: Specs,
    /// For how long a caller waits for the kernel.
    patience: Duration,
}

impl Probes {
    pub(super) fn take(
        mut ebpf: Ebpf,
        multi: Option<Multi>,
        most: u32,
        patience: Duration,
    ) -> Result<Self, BpfError> {
        let meanings = take(&mut ebpf, names::PROBES)?;
        Ok(Self { links: Vec::new(), multi, ebpf, meanings, specs: Specs::new(most), patience })
    }

    /// The places of specs.
    pub(super) const fn specs(&self) -> &Specs {
        &self.specs
    }

    /// `spec` counts nothing yet.
    pub(super) fn attach(
        &mut self,
        spec: &Arc<Spec>,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
        files: &mut OpenFiles,
    ) -> Result<(), BpfError> {
        let object = files.get(&probe.site)?;
        self.meanings
            .set(spec.index(), Plain(probe.spec), 0)
            .map_err(|source| BpfError::map("writing", names::PROBES, source))?;
        let program = program_of(probe)?;
        let at_return = probe.phase == Phase::Return;
        let first = if at_return { names::CALL_ENTRY } else { &program };
        self.attach_program(first, false, object, &probe.site, Some(spec), pid)?;
        if at_return {
            self.attach_program(&program, true, object, &probe.site, Some(spec), pid)?;
        }
        Ok(())
    }

    /// Begins to load the programs of a profile's probes at a level, where that can be done in the background.
    pub(super) fn load_ahead(&mut self, profile: &Profile, level: Level) {
        let Some(multi) = &mut self.multi else { return };
        let wanted = profile.probes.iter().filter(|probe| drainprof_profile::wanted(probe, level));
        let stacks = level == Level::Stacks;
        multi.begin(wanted.flat_map(|probe| names::programs(probe.role, probe.phase, stacks)));
    }

    /// Loads the programs of these probes side by side, or begins to. One that fails is loaded again by its attach, which
    /// says why.
    pub(super) fn load_for(&mut self, probes: &[&PlannedProbe], pid: Option<NonZeroU32>) {
        let of =
            |probe: &&PlannedProbe| names::programs(probe.role, probe.phase, has_stacks(probe));
        let wanted = probes.iter().flat_map(of);
        if let Some(multi) = self.multi.as_mut().filter(|multi| multi.is_for(pid)) {
            return multi.begin(wanted);
        }
        let wanted: BTreeSet<_> = wanted.collect();
        let programs = self.ebpf.programs_mut().filter(|(name, _)| wanted.contains(*name));
        let new = programs.filter_map(|(name, program)| match program {
            Program::UProbe(program) if program.fd().is_err() => Some((name, program)),
            _ => None,
        });
        let waiting = Mutex::new(new.collect::<Vec<_>>());
        let load = || {
            while let Some((name, program)) = next(&waiting) {
                let _ = load_uprobe(name, program);
            }
        };
        let others = thread::available_parallelism().map_or(0, |most| most.get() - 1);
        thread::scope(|scope| {
            for _ in 0..others {
                // Where there can be no thread, this one loads all.
                let _ = thread::Builder::new().spawn_scoped(scope, load);
            }
            load();
        });
    }

    pub(super) fn attach_empty(
        &mut self,
        probe: &PlannedProbe,
        pid: Option<NonZeroU32>,
        files: &mut OpenFiles,
    ) -> Result<(), BpfError> {
        let object = files.get(&probe.site)?;
        self.attach_program(names::EMPTY_ENTRY, false, object, &probe.site, None, pid)?;
        if probe.phase == Phase::Return {
            self.attach_program(names::EMPTY_RETURN, true, object, &probe.site, None, pid)?;
        }
        Ok(())
    }

    fn attach_program(
        &mut self,
        name: &str,
        at_return: bool,
        object: &Arc<File>,
        site: &Site,
        spec: Option<&Arc<Spec>>,
        pid: Option<NonZeroU32>,
    ) -> Result<(), BpfError> {
        let index = spec.map_or(0, |spec| spec.index());
        let cookie = Cookie { index, tgid: pid.map_or(0, NonZeroU32::get) }.pack();
        let location = Location {
            path: PathBuf::from(format!("/proc/self/fd/{}", object.as_raw_fd())),
            offset: site.file_offset,
            counter: site.usdt.as_ref().and_then(|usdt| usdt.semaphore),
            cookie,
            pid,
        };
        let link = |placed, is_quick| Link::new(pid, is_quick, placed, spec.cloned());
        if let Some(multi) = self.multi.as_mut().filter(|multi| multi.is_for(pid)) {
            match multi.attach(name, object, location.clone(), (self.patience, spec.cloned())) {
                Ok(placed) => {
                    self.links.push(link(placed, true));
                    return Ok(());
                }
                // The other way says what is wrong, if it fails too.
                Err(Refused::Kernel(error)) => {
                    tracing::debug!(name, %error, "no link that goes quickly");
                }
                Err(other) => return Err(refused(site, other)),
            }
        }
        let program: &mut UProbe = program(&mut self.ebpf, name)?;
        if program.fd().is_err() {
            load_uprobe(name, program)?;
        }
        let loaded = program.fd().map_err(|source| failed(site, source))?.as_fd();
        let loaded = loaded.try_clone_to_owned().map_err(|source| failed(site, source))?;
        let work = move || event::attach(loaded.as_fd(), at_return, &location);
        let placed = placing::place(object, self.patience, spec.cloned(), work)
            .map_err(|why| refused(site, why))?;
        self.links.push(link(placed, false));
        Ok(())
    }

    /// The probes of one process.
    pub(super) fn take_of(&mut self, pid: u32) -> Leftover {
        Leftover::new(self.links.extract_if(.., |link| link.is_of(pid)).collect())
    }

    /// All probes, the last ones first: profiles name objects' probes after granules', and those are hit most often.
    pub(super) fn take_all(&mut self) -> Leftover {
        Leftover::new(std::mem::take(&mut self.links).into_iter().rev().collect())
    }

    /// Loads every program that is not loaded yet.
    pub(super) fn load_all(&mut self) -> Result<(), BpfError> {
        for (name, program) in self.ebpf.programs_mut() {
            if program.fd().is_ok() {
                continue;
            }
            let loaded = match program {
                Program::UProbe(program) => {
                    load_uprobe(name, program)?;
                    continue;
                }
                Program::TracePoint(program) => program.load(),
                Program::RawTracePoint(program) => program.load(),
                _ => Ok(()),
            };
            loaded.map_err(|source| load_error(name, source))?;
        }
        Ok(())
    }

    /// How often the kernel did not run a program on a tracepoint, since its CPU was in one already: that of threads which
    /// end themselves, and all others. Uprobes have no such rule.
    pub(super) fn skipped(&self) -> (u64, u64) {
        let of = |program: &Program| match program {
            Program::TracePoint(program) => program.fd().ok().and_then(missed),
            // Raw ones are on page faults, with interrupts off: they skip only faults of their own reads of user memory.
            _ => None,
        };
        let skipped = self.ebpf.programs().map(|(name, program)| (name, of(program).unwrap_or(0)));
        skipped.fold((0, 0), |(threads, others), (name, skipped)| match name {
            names::THREAD_EXIT => (threads + skipped, others),
            // Page faults of drainprof itself while it reads maps are among them. Each event has the whole size.
            names::RSS_CHANGED => (threads, others),
            _ => (threads, others + skipped),
        })
    }

    /// What the kernel says about each program that is loaded, in the order of their names.
    pub(super) fn program_statistics(&self) -> Vec<ProgramStatistics> {
        let mut programs: Vec<_> = self
            .ebpf
            .programs()
            .filter(|(_, program)| program.fd().is_ok())
            .map(|(name, program)| {
                let info = program.info().ok();
                let info = info.as_ref();
                ProgramStatistics {
                    name: name.to_owned(),
                    verified_instructions: info.and_then(ProgramInfo::verified_instruction_count),
                    jited_bytes: info.map(ProgramInfo::size_jitted).filter(|bytes| *bytes > 0),
                }
            })
            .collect();
        programs.sort_by(|a, b| a.name.cmp(&b.name));
        programs
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        // Those that can go together do.
        drop(self.take_all());
    }
}
