//! Who is watched, and how deep: newcomers are matched and attached, those that go are let go.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use drainprof_common::event::EventKind;
use drainprof_observe::{Ending, ObserveError};
use drainprof_process::{Process, printable};
use drainprof_profile::Level;

use super::{
    arrivals::Change,
    service::Service,
    tracked::{Tracked, finding},
};
use crate::{Labels, config::Facts};

/// So long at most are probes put in place in one go; the other newcomers have their turn at the next beat.
const ATTACHING: Duration = Duration::from_millis(500);
/// Newcomers that may wait for their turn. Those beyond are found again at a later look.
const WAITING: usize = 4_096;
/// Kinds of processes that no profile fits, and that are remembered.
const UNFIT: usize = 4_096;

impl Service {
    /// Looks for processes that have come, changed or gone.
    pub(super) fn discover(&mut self) {
        let changes = match self.arrivals.look(self.began.elapsed()) {
            Ok(changes) => changes,
            Err(error) => {
                self.say_once("proc", || format!("cannot list the processes: {error}"));
                return;
            }
        };
        for change in changes {
            match change {
                Change::Came(process, made_of) | Change::Mapped(process, made_of) => {
                    if self.waiting.len() < WAITING {
                        self.waiting.push_back((process, made_of));
                    }
                }
                Change::Gone(pid) => self.gone(pid),
            }
        }
        self.attend();
    }

    /// Looks at those who wait, for a while.
    pub(super) fn attend(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let began = Instant::now();
        while began.elapsed() < ATTACHING
            && let Some((process, made_of)) = self.waiting.pop_front()
        {
            self.meet(process, made_of);
        }
        // Also those that have no profile were looked at.
        if self.waiting.is_empty() && !self.arrivals.is_empty() {
            self.ready = true;
            self.pool.forget_files();
        }
    }

    /// Looks at one process that has come, or has changed.
    fn meet(&mut self, process: Process, made_of: u64) {
        let pid = process.pid;
        let known = self.tracked.get(&pid).map(|known| {
            (known.process.start_time == process.start_time, known.process.exe == process.exe)
        });
        match known {
            // The same program with more mapped; or the kernel side has followed its exec.
            Some((true, same)) => {
                if !same && let Some(known) = self.tracked.get_mut(&pid) {
                    known.process = process.clone();
                    known.labels = labels_of(&process);
                }
                if self.pool.is_observing(pid) && !self.pool.lacks_probes(pid) {
                    return;
                }
                if self.pool.is_observing(pid) {
                    self.pool.release(pid);
                    self.again.push(pid);
                    return;
                }
                self.tracked.remove(&pid);
            }
            Some((false, _)) => self.gone(pid),
            None => {}
        }
        // Most processes of a machine are of a few kinds: each kind is looked into once.
        if made_of != 0 && self.unfit.contains(&made_of) {
            return;
        }
        let labels = labels_of(&process);
        let facts = Facts {
            exe: &printable(process.exe.as_os_str().as_encoded_bytes()),
            comm: &printable(&process.comm),
            labels: &labels,
        };
        if let Err(why) = self.selector.selects(&facts) {
            tracing::debug!(pid, comm = process.comm, %why, "not watched");
            return;
        }
        if self.tracked.len() >= self.config.select.max_targets as usize {
            let watched = self.tracked.len();
            self.say_once("max_targets", || {
                format!(
                    "{watched} processes are watched, as many as select.max_targets allows; process {pid} and others are not"
                )
            });
            return;
        }
        self.attach(process, labels, made_of);
    }

    /// Has a process watched, if a profile fits it.
    fn attach(&mut self, process: Process, labels: Labels, made_of: u64) {
        let pid = process.pid;
        let level = self.config.daemon.level;
        if self.killed {
            if !self.fits(&process, level) {
                return;
            }
            let reason = "the kill switch is thrown".to_owned();
            self.tracked.insert(pid, Tracked::new(process, labels, reason, self.unix_ms()));
            return;
        }
        let unix_ms = self.unix_ms();
        let mut tracked = Tracked::new(process, labels, String::new(), unix_ms);
        match self.pool.add(pid, level) {
            Ok(()) => tracked.turn(Some(level), "as configured".to_owned(), unix_ms),
            Err(ObserveError::NoMatch { .. }) => {
                if self.unfit.len() >= UNFIT {
                    self.unfit.clear();
                }
                self.unfit.insert(made_of);
                return;
            }
            // It went while it was looked at.
            Err(ObserveError::Target(error)) => {
                tracing::debug!(pid, %error, "not watched");
                return;
            }
            Err(ObserveError::Level { profile, offers, .. }) => tracked.turn(
                None,
                format!(
                    "profile {profile} cannot look at level {}, only at {}: probes come in a window",
                    level.name(),
                    offers.join(", ")
                ),
                unix_ms,
            ),
            Err(error) => {
                tracing::warn!(pid, %error, "cannot be observed");
                tracked.trouble = Some(finding("not_attached", error.to_string()));
                tracked.turn(None, "its probes could not be put in place".to_owned(), unix_ms);
            }
        }
        tracing::info!(
            pid,
            comm = tracked.process.comm,
            level = tracked.level.map_or("none", Level::name),
            "watched"
        );
        self.tracked.insert(pid, tracked);
    }

    /// Whether a profile fits a process.
    fn fits(&mut self, process: &Process, level: Level) -> bool {
        match self.pool.fits(process, level) {
            Ok(()) | Err(ObserveError::Level { .. }) => true,
            Err(_) => false,
        }
    }

    /// Puts the probes of a process in place again, at the level that it is to be looked at.
    pub(super) fn attach_again(&mut self, pid: u32, level: Level, reason: String) {
        let unix_ms = self.unix_ms();
        let added = self.pool.add(pid, level);
        let Some(tracked) = self.tracked.get_mut(&pid) else { return };
        match added {
            Ok(()) => {
                tracked.trouble = None;
                tracked.turn(Some(level), reason, unix_ms);
            }
            Err(error) => {
                tracing::warn!(pid, %error, "cannot be observed any more");
                tracked.trouble = Some(finding("not_attached", error.to_string()));
                tracked.turn(None, "its probes could not be put in place".to_owned(), unix_ms);
            }
        }
    }

    /// A process is no longer there. Its counts are told by the next look.
    pub(super) fn gone(&mut self, pid: u32) {
        self.pool.ended(pid);
        if let Some(tracked) = self.tracked.remove(&pid) {
            self.left.insert(pid, tracked.labels);
        }
    }

    /// Takes notice of what the kernel sides have to tell, and makes room in their maps.
    pub(super) fn take_events(&mut self) {
        let mut ended = Vec::new();
        let mut followed = Vec::new();
        for kernel in self.pool.kernels_mut() {
            let take = |observer: &mut drainprof_observe::Observer,
                        followed: &mut Vec<_>,
                        ended: &mut Vec<_>| {
                observer.events(|_, kind, event, ending| {
                    if let Ending::Follow(pid) = ending {
                        followed.push((pid, kernel.level));
                    }
                    if kind == EventKind::Exit {
                        ended.push(event.tgid);
                    }
                })
            };
            while take(&mut kernel.observer, &mut followed, &mut ended) != 0 {}
        }
        for (pid, level) in followed {
            self.follow(pid, level);
        }
        for pid in ended {
            // A first thread may end before its process.
            if self.tracked.get(&pid).is_some_and(|known| !known.process.is_alive()) {
                self.gone(pid);
            }
        }
    }

    /// The kernel side has followed a fork or an exec: the process is watched already.
    fn follow(&mut self, pid: u32, level: Level) {
        let Ok(process) = Process::open(pid) else { return };
        let labels = labels_of(&process);
        let unix_ms = self.unix_ms();
        if let Some(known) = self.tracked.get_mut(&pid) {
            known.process = process;
            known.labels = labels;
            return;
        }
        let mut tracked = Tracked::new(process, labels, String::new(), unix_ms);
        tracked.turn(Some(level), "its parent is watched".to_owned(), unix_ms);
        self.tracked.insert(pid, tracked);
    }
}

/// Where a process belongs; of one that is gone already, its executable alone.
fn labels_of(process: &Process) -> Labels {
    let exe = process.exe.to_string_lossy();
    Labels::read(Path::new("/proc"), process.pid, &exe).unwrap_or_else(|_| Labels::parse(&exe, b""))
}
