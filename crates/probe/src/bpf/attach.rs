//! Putting probes in place.

use std::{
    collections::BTreeSet,
    fs::File,
    num::NonZeroU32,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
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
use drainprof_process::{guarded, open_same};
use drainprof_profile::{Level, Phase, Profile};

use super::{
    BpfError, Leftover, event,
    load::{Plain, load_error, program, take},
    lock,
    multi::{Multi, Place},
    names,
    placing::{self, Refused},
    private_stack,
    specs::{Spec, Specs},
    syscall,
};
use crate::{
    kernel::ProgramStatistics,
    plan::{PlannedProbe, Site},
};

/// Largest file that probes are put into.
const MAX_FILE: u64 = 16 << 30;

/// A probe in place; it goes when this is dropped.
pub(super) struct Link {
    /// The process that it is in; `None`: all that map the object.
    pid: Option<NonZeroU32>,
    /// Whether many of its kind go at once.
    is_quick: bool,
    /// What keeps it in place; before the spec.
    hold: Option<OwnedFd>,
    /// Where it is.
    file: Arc<File>,
    _spec: Option<Arc<Spec>>,
}

impl Link {
    /// One that counts nothing.
    pub(super) const fn new(hold: OwnedFd, file: Arc<File>) -> Self {
        Self { pid: None, is_quick: false, hold: Some(hold), file, _spec: None }
    }

    /// Whether many of its kind go at once.
    pub(super) const fn is_quick(&self) -> bool {
        self.is_quick
    }

    /// Whether the kernel can take it out now without waiting for a process.
    pub(super) fn can_go(&self) -> bool {
        placing::check(&self.file).is_ok()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            placing::remove(&self.file, hold);
        }
    }
}

/// The files that probes are put into, which stay open until all probes of a process are in place.
#[derive(Debug, Default)]
pub struct OpenFiles(Vec<Opened>);

#[derive(Debug)]
struct Opened {
    inode: (u64, u64),
    path: PathBuf,
    file: Arc<File>,
}

impl OpenFiles {
    /// Opens the object once, and makes sure that it is the one that was planned for: the path goes through
    /// the process's own root, where it could have been replaced since. Probes are put into what is open here.
    fn get(&mut self, site: &Site) -> Result<&Arc<File>, BpfError> {
        let is_its = |one: &Opened| one.inode == site.inode && one.path == site.open_path;
        let at = if let Some(known) = self.0.iter().position(is_its) {
            known
        } else {
            let (inode, path) = (site.inode, site.open_path.clone());
            let file = guarded(move || open_same(inode, [&*path], MAX_FILE))
                .map_err(|source| failed(site, source))?
                .map_err(|source| failed(site, source))?;
            self.0.push(Opened { inode, path: site.open_path.clone(), file: Arc::new(file) });
            self.0.len() - 1
        };
        Ok(&self.0[at].file)
    }
}

fn failed(site: &Site, source: impl std::error::Error + Send + Sync + 'static) -> BpfError {
    BpfError::attach(site.symbol.clone(), site.shown_path.clone(), site.file_offset, source)
}

fn refused(site: &Site, refused: Refused) -> BpfError {
    match refused {
        Refused::Held(holder) => BpfError::Held { object: site.shown_path.clone(), holder },
        Refused::Late(since) => {
            BpfError::Late { object: site.shown_path.clone(), seconds: since.as_secs_f64() }
        }
        Refused::Kernel(error) => failed(site, error),
    }
}

const fn has_stacks(probe: &PlannedProbe) -> bool {
    probe.spec.flags & flags::STACKS != 0
}

/// Loads a program for uprobes, and makes sure that it runs on the stack of its thread.
pub(super) fn load_uprobe(name: &str, program: &mut UProbe) -> Result<(), BpfError> {
    program.load().map_err(|source| load_error(name, source))?;
    let excluded = match program.fd() {
        Ok(loaded) => private_stack::exclude(name, loaded.as_fd()),
        Err(source) => Err(load_error(name, source)),
    };
    if excluded.is_err() {
        // Nothing can be attached to it by mistake.
        let _ = program.unload();
    }
    excluded
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
        let place = Place {
            path: PathBuf::from(format!("/proc/self/fd/{}", object.as_raw_fd())),
            offset: site.file_offset,
            counter: site.usdt.as_ref().and_then(|usdt| usdt.semaphore),
            cookie,
            pid,
        };
        let link = |hold, is_quick| Link {
            pid,
            is_quick,
            hold: Some(hold),
            file: Arc::clone(object),
            _spec: spec.cloned(),
        };
        if let Some(multi) = self.multi.as_mut().filter(|multi| multi.is_for(pid)) {
            match multi.attach(name, object, place.clone(), (self.patience, spec.cloned())) {
                Ok(hold) => {
                    self.links.push(link(hold, true));
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
        let work = move || event::attach(loaded.as_fd(), at_return, &place);
        let hold = placing::place(object, self.patience, spec.cloned(), work)
            .map_err(|why| refused(site, why))?;
        self.links.push(link(hold, false));
        Ok(())
    }

    /// The probes of one process.
    pub(super) fn take_of(&mut self, pid: u32) -> Leftover {
        let is_its = |link: &mut Link| link.pid.is_some_and(|of| of.get() == pid);
        Leftover(self.links.extract_if(.., is_its).collect())
    }

    /// All probes, the last ones first: profiles name objects' probes after granules', and those are hit most often.
    pub(super) fn take_all(&mut self) -> Leftover {
        Leftover(std::mem::take(&mut self.links).into_iter().rev().collect())
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
