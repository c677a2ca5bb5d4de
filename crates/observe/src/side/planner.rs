//! Plans: which probes a process gets. Its files are read on reader threads; a loop does not wait for them to the end.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use drainprof_probe::{bpf::Session, plan::AttachPlan};
use drainprof_process::{
    ElfCache, Image, ImageOptions, Process, Stuck,
    beside::{Beside, begin},
    guarded, printable,
};
use drainprof_profile::{Finding, Level, Library};

use super::{
    allocators::{Allocator, Allocators},
    options::SideOptions,
    plan,
};
use crate::ObserveError;

/// For how long a process is left alone whose files took too long, at first; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Such processes that are remembered.
const MAX_SLOW: usize = 64;

/// The plans of one process, and what the user should know of them.
pub(super) type Plans = Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError>;
/// The same with the files that were read, and all allocators.
type Made = (Plans, ElfCache, Allocators);

/// Plans by the profiles that are wanted, and numbers their allocators.
pub(super) struct Planner {
    library: Library,
    options: SideOptions,
    /// One of so many granules is examined.
    sample: u32,
    cache: ElfCache,
    allocators: Allocators,
    /// Whether a loop waits.
    is_beside: bool,
    pending: Vec<Pending>,
    rests: Rests,
}

/// Processes that are left alone for a while.
#[derive(Debug, Default)]
struct Rests(Vec<Slow>);

/// A process whose plans are made. One that executes another program is planned anew.
#[derive(Debug)]
struct Pending {
    process: (u32, u64, PathBuf),
    /// How many allocators there were.
    known: usize,
    work: Beside<Made>,
}

/// A process whose files took too long.
#[derive(Debug)]
struct Slow {
    process: (u32, u64, PathBuf),
    /// The file that was read last.
    file: String,
    until: Instant,
    times: u32,
}

fn key(process: &Process) -> (u32, u64, PathBuf) {
    (process.pid, process.start_time, process.exe.clone())
}

fn pause(times: u32) -> Duration {
    FIRST_PAUSE.saturating_mul(1 << times.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
}

impl Rests {
    /// Leaves a process alone for a while.
    fn add(&mut self, process: (u32, u64, PathBuf), file: String) {
        let known = self.0.iter().position(|one| one.process == process);
        let times = known.map_or(1, |at| self.0.remove(at).times.saturating_add(1));
        if self.0.len() >= MAX_SLOW {
            self.0.remove(0);
        }
        let until = Instant::now() + pause(times);
        self.0.push(Slow { process, file, until, times });
    }

    /// Those that rest now.
    fn now(&self) -> impl Iterator<Item = &Slow> {
        let now = Instant::now();
        self.0.iter().filter(move |one| one.until > now)
    }

    fn contains(&self, process: &(u32, u64, PathBuf)) -> bool {
        self.now().any(|one| one.process == *process)
    }
}

impl Planner {
    /// Checks that the profiles that are named exist, and can be observed so.
    pub(super) fn new(
        library: Library,
        options: SideOptions,
        sample: u32,
    ) -> Result<Self, ObserveError> {
        if let Some(name) = options.profiles.iter().find(|name| library.get(name).is_none()) {
            let known = library.iter().map(|profile| profile.name.clone()).collect();
            return Err(ObserveError::UnknownProfile { name: name.clone(), known });
        }
        let census = plan::wanted(&library, &options).find(|profile| profile.implicit);
        if let Some(profile) = census.filter(|_| options.duty.is_some()) {
            return Err(ObserveError::Census { profile: profile.name.clone() });
        }
        Ok(Self {
            library,
            options,
            sample,
            cache: ElfCache::new(),
            allocators: Allocators::default(),
            is_beside: false,
            pending: Vec::new(),
            rests: Rests::default(),
        })
    }

    pub(super) const fn options(&self) -> &SideOptions {
        &self.options
    }

    pub(super) const fn allocators(&self) -> &Allocators {
        &self.allocators
    }

    /// Whether there is any profile at all.
    pub(super) fn has_profiles(&self) -> bool {
        self.library.iter().next().is_some()
    }

    /// Other plans are made from now on, at this level.
    pub(super) const fn set_level(&mut self, level: Level) {
        self.options.level = Some(level);
    }

    /// The next level below, where the level is a profile's default and the profile offers one that costs less.
    pub(super) fn cheaper_level(&self) -> Option<Level> {
        if self.options.level.is_some() {
            return None;
        }
        let above = self.allocators.iter().filter(|allocator| allocator.level() > Level::Close);
        above.filter_map(Allocator::cheaper_level).max()
    }

    /// Begins to load the programs of the profiles that are named.
    pub(super) fn load_ahead(&self, session: &mut Session) {
        plan::load_ahead(session, &self.library, &self.options);
    }

    /// Begins to load the programs of all allocators that are numbered.
    pub(super) fn load_known(&self, session: &mut Session) {
        for known in self.allocators.iter() {
            session.load_ahead(known.profile(), known.level());
        }
    }

    /// Forgets what was read of ELF files; what is needed again is read again.
    pub(super) fn forget_files(&mut self) {
        self.cache = ElfCache::new();
    }

    /// A loop waits for plans from now on: those that take longer go on beside it, and the process is to be asked for
    /// again later ([`Stuck::Slow`]).
    pub(super) const fn plan_beside(&mut self) {
        self.is_beside = true;
    }

    /// Processes that wait since their files took too long, with the files.
    pub(super) fn slow(&self) -> impl Iterator<Item = (u32, &str)> {
        self.rests.now().map(|one| (one.process.0, one.file.as_str()))
    }

    /// The plans of all profiles that match a process, and what the user should know of them. Attaches nothing.
    pub(super) fn plan(&mut self, process: &Process) -> Plans {
        if plan::wanted(&self.library, &self.options).next().is_none() {
            let (pid, comm) = (process.pid, printable(&process.comm));
            return Err(ObserveError::NoMatch { pid, comm, profiles: Vec::new() });
        }
        if self.is_beside {
            return self.planned_beside(process);
        }
        // The file system of a file that hangs is given up; then the others can be read.
        let mut made = guarded(self.work(process));
        if matches!(made, Err(Stuck::Hangs { .. })) {
            made = guarded(self.work(process));
        }
        let (found, cache, allocators) = made?;
        (self.cache, self.allocators) = (cache, allocators);
        found
    }

    /// Reads the process's files and plans; to be done on a reader thread.
    fn work(&self, process: &Process) -> impl FnOnce() -> Made + Send + use<> {
        let (process, library) = (process.clone(), self.library.clone());
        let (options, sample) = (self.options.clone(), self.sample);
        let (mut cache, mut allocators) = (self.cache.clone(), self.allocators.clone());
        move || {
            let image_options = ImageOptions { debug_dirs: options.debug_dirs.clone() };
            let image = Image::load(&process, &image_options, &mut cache);
            let found = image.map_err(ObserveError::from).and_then(|image| {
                let (library, options) = (&library, &options);
                plan::plans(&process, &image, library, options, sample, &mut allocators)
            });
            (found, cache, allocators)
        }
    }

    /// Gives up work that takes too long.
    fn tidy(&mut self) {
        let (late, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|one| one.work.is_late());
        self.pending = pending;
        for Pending { process, work, .. } in late {
            let file = work.file();
            tracing::warn!(pid = process.0, file, "its files take too long to read: it waits");
            self.rests.add(process, file);
        }
    }

    fn planned_beside(&mut self, process: &Process) -> Plans {
        self.tidy();
        let slow = || ObserveError::Files(Stuck::Slow { pid: process.pid });
        let key = key(process);
        if self.rests.contains(&key) {
            return Err(slow());
        }
        let at = self.pending.iter().position(|one| one.process == key);
        let mut pending = match at {
            Some(at) => self.pending.swap_remove(at),
            None => self.begin(process)?,
        };
        // Again where a file system is given up, and where other plans have numbered allocators meanwhile.
        for _ in 0..3 {
            let Pending { process: key, known, work } = pending;
            match work.take() {
                Err(work) => {
                    self.pending.push(Pending { process: key, known, work });
                    return Err(slow());
                }
                Ok(Ok((found, cache, allocators))) => {
                    self.cache.absorb(cache);
                    if allocators.len() == known || self.allocators.len() == known {
                        if allocators.len() > self.allocators.len() {
                            self.allocators = allocators;
                        }
                        return found;
                    }
                }
                Ok(Err(Stuck::Hangs { .. })) => {}
                Ok(Err(stuck)) => return Err(stuck.into()),
            }
            pending = self.begin(process)?;
        }
        self.pending.push(pending);
        Err(slow())
    }

    fn begin(&self, process: &Process) -> Result<Pending, ObserveError> {
        let work = begin(process.pid, self.work(process))?;
        Ok(Pending { process: key(process), known: self.allocators.len(), work })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process is left alone for longer each time, but not for ever; few are remembered.
    #[test]
    fn slow_processes_rest() {
        assert_eq!(
            [1, 2, 5, 6, u32::MAX].map(|times| pause(times).as_secs()),
            [10, 20, 160, 300, 300]
        );
        let mut rests = Rests::default();
        let one = |pid| (pid, 7, PathBuf::from("/bin/x"));
        rests.add(one(1), "x.so".to_owned());
        rests.add(one(1), "x.so".to_owned());
        assert_eq!((rests.0.len(), rests.0[0].times), (1, 2));
        assert!(rests.contains(&one(1)) && !rests.contains(&one(2)));
        // With another start it is another process.
        assert!(!rests.contains(&(1, 8, PathBuf::from("/bin/x"))));
        for pid in 0..100 {
            rests.add(one(pid), String::new());
        }
        assert_eq!(rests.0.len(), MAX_SLOW);
    }
}
