//! Plans: which probes a process gets. Its files are read on reader threads; a loop does not wait for them to the end.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use drainprof_probe::plan::AttachPlan;
use drainprof_process::{
    ElfCache, Image, ImageOptions, Process, Stuck,
    beside::{Beside, begin},
    guarded, printable,
};
use drainprof_profile::Finding;

use super::{
    observer::{Allocator, ObserveError, Observer},
    place,
};

/// For how long a process is left alone whose files took too long, at first; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Such processes that are remembered.
const MAX_SLOW: usize = 64;

/// The plans of one process, and what the user should know of them.
type Plans = Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError>;
/// The same with the files that were read, and all allocators.
type Made = (Plans, ElfCache, Vec<Allocator>);

/// What is planned beside a loop.
#[derive(Debug, Default)]
pub(super) struct Planner {
    /// Whether a loop waits.
    is_beside: bool,
    pending: Vec<Pending>,
    slow: Vec<Slow>,
}

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

impl Planner {
    /// Gives up work that takes too long.
    fn tidy(&mut self) {
        let (late, pending) =
            std::mem::take(&mut self.pending).into_iter().partition(|one| one.work.is_late());
        self.pending = pending;
        for Pending { process, work, .. } in late {
            let file = work.file();
            tracing::warn!(pid = process.0, file, "its files take too long to read: it waits");
            self.rest(process, file);
        }
    }

    /// Leaves a process alone for a while.
    fn rest(&mut self, process: (u32, u64, PathBuf), file: String) {
        let known = self.slow.iter().position(|one| one.process == process);
        let times = known.map_or(1, |at| self.slow.remove(at).times.saturating_add(1));
        if self.slow.len() >= MAX_SLOW {
            self.slow.remove(0);
        }
        let until = Instant::now() + pause(times);
        self.slow.push(Slow { process, file, until, times });
    }

    fn rests(&self, process: &(u32, u64, PathBuf)) -> bool {
        let now = Instant::now();
        self.slow.iter().any(|one| one.process == *process && one.until > now)
    }
}

impl Observer {
    /// A loop waits for plans from now on: those that take longer go on beside it, and the process is to be asked for
    /// again later ([`Stuck::Slow`]).
    pub const fn plan_beside(&mut self) {
        self.planner.is_beside = true;
    }

    /// Processes that wait since their files took too long, with the files.
    pub fn slow(&self) -> impl Iterator<Item = (u32, &str)> {
        let now = Instant::now();
        let waiting = self.planner.slow.iter().filter(move |one| one.until > now);
        waiting.map(|one| (one.process.0, one.file.as_str()))
    }

    /// The plans of all profiles that match a process, and what the user should know of them. Attaches
    /// nothing.
    pub fn plan(
        &mut self,
        process: &Process,
    ) -> Result<(Vec<AttachPlan>, Vec<Finding>), ObserveError> {
        if place::wanted(&self.library, &self.options).next().is_none() {
            let (pid, comm) = (process.pid, printable(&process.comm));
            return Err(ObserveError::NoMatch { pid, comm, profiles: Vec::new() });
        }
        if self.planner.is_beside {
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
        let (options, sample) = (self.options.clone(), self.config.sample);
        let (mut cache, mut allocators) = (self.cache.clone(), self.allocators.clone());
        move || {
            let image_options = ImageOptions { debug_dirs: options.debug_dirs.clone() };
            let image = Image::load(&process, &image_options, &mut cache);
            let found = image.map_err(ObserveError::from).and_then(|image| {
                let (library, options) = (&library, &options);
                place::plans(&process, &image, library, options, sample, &mut allocators)
            });
            (found, cache, allocators)
        }
    }

    fn planned_beside(&mut self, process: &Process) -> Plans {
        self.planner.tidy();
        let slow = || ObserveError::Files(Stuck::Slow { pid: process.pid });
        let key = key(process);
        if self.planner.rests(&key) {
            return Err(slow());
        }
        let at = self.planner.pending.iter().position(|one| one.process == key);
        let mut pending = match at {
            Some(at) => self.planner.pending.swap_remove(at),
            None => self.begin(process)?,
        };
        // Again where a file system is given up, and where other plans have numbered allocators meanwhile.
        for _ in 0..3 {
            let Pending { process: key, known, work } = pending;
            match work.take() {
                Err(work) => {
                    self.planner.pending.push(Pending { process: key, known, work });
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
        self.planner.pending.push(pending);
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
        let mut planner = Planner::default();
        let one = |pid| (pid, 7, PathBuf::from("/bin/x"));
        planner.rest(one(1), "x.so".to_owned());
        planner.rest(one(1), "x.so".to_owned());
        assert_eq!((planner.slow.len(), planner.slow[0].times), (1, 2));
        assert!(planner.rests(&one(1)) && !planner.rests(&one(2)));
        // With another start it is another process.
        assert!(!planner.rests(&(1, 8, PathBuf::from("/bin/x"))));
        for pid in 0..100 {
            planner.rest(one(pid), String::new());
        }
        assert_eq!(planner.slow.len(), MAX_SLOW);
    }
}
