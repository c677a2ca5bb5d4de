//! Processes that come and go: processes that a scan finds, that the kernel side follows, and that have ended.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use drainprof_common::loss::Loss;
use drainprof_observe::ObserveError;
use drainprof_process::{
    Process, ProcessError, printable,
    readers::{ask, each},
};
use drainprof_profile::Level;

use super::{
    super::{
        admit::{Admission, Found, Refused, Watched, admit},
        arrivals::Change,
        lifecycle::{Followed, Lifecycle},
        tracked::Tracked,
    },
    MAX_ADMITTING_TIME, MAX_WAITING, Roster,
};
use crate::{
    Labels,
    clock::unix_ms,
    config::{Config, Facts},
};

/// Newcomers that are examined together.
const LABELS_BATCH: usize = 64;

/// A process with its labels; why it cannot be traced.
type Opened = Result<(Process, Labels), ProcessError>;

impl Roster {
    /// Finds processes that started, changed or ended. `now` is a time since any fixed moment.
    pub(crate) fn scan(&mut self, config: &Config, killed: bool, now: Duration) {
        let changes = match self.arrivals.scan(now) {
            Ok(changes) => changes,
            Err(error) => {
                self.warn_once("proc", || format!("cannot list the processes: {error}"));
                return;
            }
        };
        // The end of a process that was not listed is in the ring already, and is examined before it is forgotten.
        self.take_events(config);
        for change in changes {
            match change {
                Change::Came(process, made_of) | Change::Mapped(process, made_of) => {
                    if self.waiting.len() < MAX_WAITING {
                        self.waiting.push_back((process, made_of));
                    }
                }
                Change::Gone(pid) => self.gone(pid),
            }
        }
        self.admit(config, killed);
    }

    /// Checks newcomers, for a while.
    pub(crate) fn admit(&mut self, config: &Config, killed: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let began = Instant::now();
        let mut later = Vec::new();
        let mut labels = BTreeMap::new();
        let mut is_read = 0;
        while began.elapsed() < MAX_ADMITTING_TIME && !self.waiting.is_empty() {
            if is_read == 0 {
                is_read = self.waiting.len().min(LABELS_BATCH);
                labels = self.labels_of_next(config, is_read);
            }
            is_read -= 1;
            let Some((process, made_of)) = self.waiting.pop_front() else { break };
            // What needs no probe has its turn.
            if self.pool.is_behind() && !self.unmatched.knows(made_of) {
                later.push((process, made_of));
            } else {
                let labels = labels.remove(&process.pid).unwrap_or_else(|| known_of(&process));
                self.meet(config, killed, (process, labels), made_of);
            }
        }
        if !later.is_empty() {
            self.warn_once("behind", || {
                "processes end faster than the kernel takes their probes out: newcomers wait, and those that end \
                 meanwhile are missed; daemon.attach = \"file\" counts all"
                    .to_owned()
            });
            self.waiting.extend(later);
        }
        if self.is_complete() {
            self.pool.forget_files();
        }
    }

    /// The labels of the next newcomers that wait, of those that need some.
    fn labels_of_next(&self, config: &Config, count: usize) -> BTreeMap<u32, Labels> {
        let next = self.waiting.iter().take(count);
        let needed = next.filter(|(process, made_of)| {
            let is_left_out = self.unmatched.knows(*made_of) && !config.select.unmatched;
            !is_left_out || self.tracked.contains_key(&process.pid)
        });
        let exes: Vec<String> =
            needed.clone().map(|(process, _)| process.exe.to_string_lossy().into_owned()).collect();
        let pids: Vec<(u32, usize)> =
            needed.enumerate().map(|(at, (process, _))| (process.pid, at)).collect();
        let read =
            each(pids, move |pid, at| Labels::read(Path::new("/proc"), pid, exes.get(at)?).ok());
        read.into_iter().filter_map(|(pid, labels)| Some((pid, labels?))).collect()
    }

    /// Checks one process that started or changed, with its labels.
    fn meet(
        &mut self,
        config: &Config,
        killed: bool,
        (process, labels): (Process, Labels),
        made_of: u64,
    ) {
        let pid = process.pid;
        let known = self.tracked.get(&pid).map(|known| {
            (known.process.start_time == process.start_time, known.process.exe == process.exe)
        });
        let mut earlier = None;
        match known {
            // The same program with more mapped; or the kernel side has followed its exec.
            Some((true, same)) => {
                if !same && let Some(known) = self.tracked.get_mut(&pid) {
                    known.process = process.clone();
                    known.labels = labels.clone();
                }
                if self.pool.is_observing(pid) {
                    match self.pool.lacks_probes(pid) {
                        Ok(false) => {}
                        Ok(true) => {
                            self.pool.release(pid);
                            self.again.push(pid);
                        }
                        // The next scan finds it again.
                        Err(_) => self.arrivals.forget(pid),
                    }
                    return;
                }
                earlier = self.tracked.remove(&pid).filter(|_| same);
            }
            Some((false, _)) => self.gone(pid),
            None => {}
        }
        self.newcomers.decided(pid);
        let is_unmatched = self.unmatched.knows(made_of);
        if is_unmatched && !config.select.unmatched {
            return;
        }
        let admission = match self.decide(config, &process, &labels) {
            Ok(admission) => admission,
            Err(Refused::Rules(why)) => {
                tracing::debug!(pid, comm = process.comm, %why, "not watched");
                return;
            }
            Err(Refused::Full) => {
                let watched = self.tracked.len();
                self.warn_once("max_processes", || {
                    format!(
                        "{watched} processes are watched, the limit of select.max_processes; process {pid} and others \
                         are not"
                    )
                });
                return;
            }
        };
        let start_time = process.start_time;
        let tracked = Tracked::new(process, labels, String::new(), unix_ms()).after(earlier);
        let found = match admission {
            _ if is_unmatched => Found::Unmatched,
            Admission::Profiles => self.find(config, killed, &tracked.process, made_of),
            Admission::MemoryOnly => Found::Beyond,
        };
        match &found {
            Found::Attached => {
                self.attached(pid, start_time, config.daemon.level, known.is_none());
            }
            Found::Beyond => {
                self.newcomers.refused();
                let limit = config.select.max_targets;
                self.warn_once("max_targets", || {
                    format!(
                        "{limit} processes have probes, the limit of select.max_targets; process {pid} and others get \
                         none"
                    )
                });
            }
            Found::Ended => self.newcomers.undecided(pid),
            Found::Unanswered => {
                self.newcomers.undecided(pid);
                self.arrivals.forget(pid);
            }
            Found::Without(_) | Found::Failed(_) | Found::Unmatched => {}
        }
        self.watch(config, tracked, &found);
    }

    /// The probes of a process are in place.
    fn attached(&mut self, pid: u32, start_time: u64, level: Level, is_new: bool) {
        if is_new && self.newcomers.attached_late(start_time) {
            self.pool.count_process(Loss::AttachedLate);
        }
        if let Err(error) = self.pool.watch_program(pid, level) {
            self.warn_once("programs", || {
                format!("new processes are found by scans only: {error}")
            });
        }
    }

    /// What the configuration says of a process.
    fn decide(
        &self,
        config: &Config,
        process: &Process,
        labels: &Labels,
    ) -> Result<Admission, Refused> {
        let exe = printable(process.exe.as_os_str().as_encoded_bytes());
        let facts = Facts { exe: &exe, comm: &printable(&process.comm), labels };
        let matched = self.tracked.values().filter(|one| one.matched).count();
        let watched = Watched { processes: self.tracked.len(), matched };
        admit(&config.select, &self.selector, &facts, watched)
    }

    /// Tries the profiles on a process, and attaches the probes of those that match.
    fn find(&mut self, config: &Config, killed: bool, process: &Process, made_of: u64) -> Found {
        let pid = process.pid;
        let level = config.daemon.level;
        let tried =
            if killed { self.pool.matches(process, level) } else { self.pool.add(pid, level) };
        let found = match tried {
            Ok(()) | Err(ObserveError::Level { .. }) if killed => {
                Found::Without("the kill switch is on".to_owned())
            }
            Ok(()) => Found::Attached,
            Err(error) => {
                tracing::debug!(pid, %error, "no probes");
                Found::of_error(error, level)
            }
        };
        match found {
            // A later scan finds what became of it.
            Found::Unmatched if !self.unmatched.learn(process, made_of) => Found::Ended,
            found => found,
        }
    }

    /// Watches a process from now on: its granules where a profile matches, its memory in any case.
    fn watch(&mut self, config: &Config, mut tracked: Tracked, found: &Found) {
        if !found.is_watched(&config.select) {
            return;
        }
        tracked.matched = found.is_match();
        match found {
            Found::Failed(error) => tracked.fail(error, unix_ms()),
            found => {
                let level = matches!(found, Found::Attached).then_some(config.daemon.level);
                tracked.turn(level, found.reason().to_owned(), unix_ms());
            }
        }
        let pid = tracked.process.pid;
        if tracked.matched {
            tracing::info!(
                pid,
                comm = tracked.process.comm,
                level = tracked.level.map_or("none", Level::name),
                "watched"
            );
        }
        self.tracked.insert(pid, tracked);
    }

    /// A process has ended. The next cycle counts it.
    fn gone(&mut self, pid: u32) {
        self.pool.ended(pid);
        let observed = self.tracked.remove(&pid);
        self.newcomers.gone(pid, observed.is_some());
        if let Some(tracked) = observed {
            self.left.insert(pid, tracked.labels);
        }
    }

    /// Takes events that have come from the kernel sides, and reclaims room in their maps.
    pub(crate) fn take_events(&mut self, config: &Config) {
        self.newcomers.turn();
        let Lifecycle { followed, unseen, ended } = Lifecycle::take(self.pool.kernels_mut());
        let mut opened = open_all(&followed);
        for Followed { pid, level, kernel, target } in followed {
            // Of a number that two processes had, each has its turn.
            let found = opened.remove(&pid).unwrap_or_else(|| open(pid));
            match target {
                Some(target) => self.newcomer(config, (pid, level), (kernel, target), found),
                None => self.follow(pid, level, "its parent is watched", found),
            }
        }
        for (pid, ended) in unseen {
            let is_known = self.tracked.contains_key(&pid);
            if !is_known && self.newcomers.is_missed(pid, ended) {
                tracing::debug!(pid, "ended before it had probes");
                self.pool.count_process(Loss::ProcessMissed);
            }
        }
        self.note_ended(&ended);
        self.pool.reclaim();
    }

    /// Forgets processes whose first thread has ended, if it was not that alone. Of those of which nothing is known, a scan
    /// finds out.
    fn note_ended(&mut self, pids: &[u32]) {
        let known: Vec<Process> =
            pids.iter().filter_map(|pid| Some(self.tracked.get(pid)?.process.clone())).collect();
        let numbers: Vec<(u32, usize)> =
            known.iter().enumerate().map(|(at, process)| (process.pid, at)).collect();
        let alive = each(numbers, move |_, at| known.get(at).is_none_or(Process::is_alive));
        for (pid, _) in alive.into_iter().filter(|(_, is_alive)| !is_alive) {
            self.gone(pid);
        }
    }

    /// The kernel side has noticed a process of a program that is watched, and counts it already: keeps it, unless the
    /// configuration says otherwise.
    fn newcomer(
        &mut self,
        config: &Config,
        (pid, level): (u32, Level),
        (id, target): (u64, u32),
        found: Opened,
    ) {
        let (process, labels) = match found {
            Ok(found) => found,
            // It would count twice if a scan finds it later.
            Err(ProcessError::Silent(_)) => {
                self.pool.discard(id, pid, target);
                self.pool.count_process(Loss::ProcessMissed);
                return;
            }
            // What is gone by now is counted with its program.
            Err(_) => return,
        };
        let admission = self.decide(config, &process, &labels);
        let is_refused_by_rules = matches!(admission, Err(Refused::Rules(_)));
        let is_admitted = admission == Ok(Admission::Profiles);
        if !is_admitted && !is_refused_by_rules {
            self.newcomers.refused();
        }
        if !is_admitted || self.pool.observes_elsewhere(pid, id) {
            self.pool.discard(id, pid, target);
        } else {
            self.follow(pid, level, "its program is watched", Ok((process, labels)));
        }
    }

    /// The kernel side has followed a fork or an exec: the process is watched already.
    fn follow(&mut self, pid: u32, level: Level, why: &str, found: Opened) {
        let (process, labels) = match found {
            Ok(found) => found,
            Err(ProcessError::Silent(_)) => {
                self.pool.release(pid);
                self.pool.count_process(Loss::ProcessMissed);
                return;
            }
            Err(_) => return,
        };
        let unix_ms = unix_ms();
        if let Some(known) = self.tracked.get_mut(&pid) {
            known.process = process;
            known.labels = labels;
            return;
        }
        let mut tracked = Tracked::new(process, labels, String::new(), unix_ms);
        tracked.turn(Some(level), why.to_owned(), unix_ms);
        self.tracked.insert(pid, tracked);
    }
}

/// Opens processes that kernel sides follow, all in one go. Those that the kernel does not answer for are missing.
fn open_all(followed: &[Followed]) -> BTreeMap<u32, Opened> {
    each(followed.iter().map(|one| (one.pid, ())), |pid, ()| with_labels(pid)).into_iter().collect()
}

/// Opens one process.
fn open(pid: u32) -> Opened {
    ask(pid, move || with_labels(pid))?
}

fn with_labels(pid: u32) -> Opened {
    let process = Process::open(pid)?;
    let read = Labels::read(Path::new("/proc"), pid, &process.exe.to_string_lossy());
    let labels = read.unwrap_or_else(|_| known_of(&process));
    Ok((process, labels))
}

/// The labels of a process that has ended already, or that the kernel does not answer for: its executable alone.
fn known_of(process: &Process) -> Labels {
    Labels::parse(&process.exe.to_string_lossy(), b"")
}
