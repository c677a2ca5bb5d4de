//! States without a daemon: an observer of our own, and one more for each diagnostic window.

use std::{
    collections::{BTreeMap, VecDeque},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use drainprof_node::{Answer, NodeState, Outcome, Refusal, Request, WindowRecord};
use drainprof_observe::{Observer, names::Symbols, settle};
use drainprof_process::{Process, memory::MemoryReader, printable};
use drainprof_report::{
    self as report, Report,
    facts::{History, Snapshot},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::{
    cli::{
        args::{LevelArg, ObserveArgs},
        drive::{SLACK, block_on, take},
        options, symbols,
    },
    ui::{
        Source, SourceError,
        standalone::{Beside, Courses, state_of},
    },
};

/// How often the maps are looked at for room, and ends of processes are looked for.
const RELIEF: Duration = Duration::from_millis(200);
/// Granules and call paths that a report lists.
const TOP: usize = 200;
/// How long a window's report waits for names.
const NAMING: Duration = Duration::from_secs(5);
/// Reports of windows that are kept, and windows that are listed.
const KEPT: usize = 20;
const LISTED: usize = 100;
/// Longest window.
const LONGEST: Duration = Duration::from_secs(3_600);
/// Stacks that are unwound before keys are looked at again.
const STACKS: usize = 64;

/// An observer, and what it needs to be driven.
struct Watched {
    observer: Observer,
    symbols: Option<Symbols>,
    options: report::Options,
    /// Readable when there are events, and when there are stacks to unwind.
    rings: [OwnedFd; 2],
    /// Readable when the process has ended.
    ends: Vec<(u32, OwnedFd)>,
    met: usize,
    history: History,
    relief: Instant,
    sample: Instant,
}

impl Watched {
    /// Puts the probes in place.
    fn start(args: &ObserveArgs, pids: &[u32]) -> Result<Self> {
        for pid in pids {
            Process::open(*pid)?;
        }
        let symbols = symbols::wanted(args)?;
        let observer = options::observer(args)?;
        let session = observer.session();
        let rings =
            session.events_fd().and_then(|events| Ok([events, session.stacks.snapshots_fd()?]));
        let rings = rings.context("cannot wait for events of the kernel side")?;
        let now = Instant::now();
        let mut watched = Self {
            observer,
            symbols,
            options: report::Options { top: TOP, ..options::report(args) },
            rings,
            ends: Vec::new(),
            met: 0,
            history: History::default(),
            relief: now,
            sample: now,
        };
        for pid in pids {
            watched.observer.add(*pid, false)?;
            watched.follow(&[*pid]);
        }
        Ok(watched)
    }

    fn follow(&mut self, pids: &[u32]) {
        if let Some(symbols) = &mut self.symbols {
            let newcomers = self.observer.newcomers(self.met);
            self.met += newcomers.len();
            symbols.meet(&newcomers);
        }
        for pid in pids {
            match self.observer.pidfd(*pid) {
                Some(pidfd) => self.ends.push((*pid, pidfd)),
                // It has ended already.
                None => self.observer.ended(*pid, None),
            }
        }
    }

    /// Takes notice of all that has happened since, and does what is due. Does not wait.
    fn turn(&mut self) {
        let mut follow = Vec::new();
        while take(&mut self.observer, &mut follow, |_, _, _| ()) {}
        self.follow(&follow);
        for _ in 0..STACKS {
            if !self.observer.learn_some_paths() {
                break;
            }
        }
        symbols::place(&mut self.symbols, &mut self.observer);
        let now = Instant::now();
        if now >= self.relief {
            self.relief = now + RELIEF;
            self.end();
            self.observer.relieve();
            self.observer.retry_paths();
            if self.history.due(self.observer.observed()) {
                self.history.add(self.observer.moment());
            }
        }
        if now >= self.sample {
            self.sample = now + self.observer.sample();
        }
    }

    /// Looks which processes have ended.
    fn end(&mut self) {
        let mut waited: Vec<PollFd<'_>> =
            self.ends.iter().map(|(_, fd)| PollFd::new(fd.as_fd(), PollFlags::POLLIN)).collect();
        if poll(&mut waited, PollTimeout::ZERO).is_err() {
            // Interrupted: it is looked again soon.
            return;
        }
        let over: Vec<bool> = waited.iter().map(|fd| fd.any() == Some(true)).collect();
        let mut over = over.into_iter();
        let observer = &mut self.observer;
        self.ends.retain(|(pid, _)| {
            let ended = over.next() == Some(true);
            if ended {
                observer.ended(*pid, None);
            }
            !ended
        });
    }

    /// What is known now, with the names that are known now.
    fn report(&mut self, slack: u64) -> Report {
        let snapshot = self.observer.snapshot();
        let halfway = self.history.middle(snapshot.observed()).cloned();
        let mut snapshot = Snapshot { halfway, ..snapshot };
        symbols::now(&mut self.symbols, &mut snapshot);
        Report::build(&snapshot, &report::Options { slack, ..self.options.clone() })
    }

    /// Stops counting, and takes notice of all that came before.
    fn stop(&mut self) {
        self.observer.stop();
        let observer = &self.observer;
        // Without a runtime, the last few events of running programs may be missing from the counts.
        let settled = block_on(async {
            settle(|| observer.totals()).await;
            Ok(())
        });
        if let Err(error) = settled {
            tracing::debug!(%error, "cannot wait for the last events");
        }
        self.observer.learn_paths();
        self.turn();
    }

    fn still_naming(&self) -> bool {
        self.symbols.as_ref().is_some_and(|symbols| symbols.pending() > 0 || symbols.postponed())
    }
}

/// A window that has not left its report yet.
struct Window {
    record: WindowRecord,
    watched: Watched,
    /// When it is over.
    until: Instant,
    /// When it was over, and how it ended: its report waits for names, and it shows as running until then.
    over: Option<(Instant, Outcome)>,
}

/// Processes that are looked at from the command line.
pub(super) struct Live {
    args: ObserveArgs,
    watched: Watched,
    memory: MemoryReader,
    courses: Courses,
    period: Duration,
    due: Instant,
    window: Option<Box<Window>>,
    length: Duration,
    windows: VecDeque<WindowRecord>,
    reports: BTreeMap<u64, Report>,
    last: u64,
}

impl Live {
    /// Puts the probes in place.
    pub(super) fn start(
        args: ObserveArgs,
        pids: &[u32],
        period: Duration,
        length: Duration,
    ) -> Result<Self> {
        options::require_host_pids()?;
        let mut pids = pids.to_vec();
        pids.sort_unstable();
        pids.dedup();
        let watched = Watched::start(&args, &pids)?;
        Ok(Self {
            args,
            watched,
            memory: MemoryReader::new(),
            courses: Courses::default(),
            period,
            due: Instant::now(),
            window: None,
            length,
            windows: VecDeque::new(),
            reports: BTreeMap::new(),
            last: 0,
        })
    }

    /// Takes all probes out.
    pub(super) fn finish(mut self) {
        self.watched.observer.stop();
        if let Some(mut window) = self.window.take() {
            window.watched.observer.stop();
            window.watched.observer.detach().wait();
        }
        self.watched.observer.detach().wait();
    }

    fn state(&mut self) -> NodeState {
        let report = self.watched.report(SLACK);
        let pids = self.watched.observer.running();
        self.memory.begin();
        let read = |pid| Some((pid, self.memory.read(pid, false)?));
        let memory: BTreeMap<_, _> = pids.into_iter().filter_map(read).collect();
        self.courses.take(&report, &memory);
        let running = self.window.as_ref().map(|window| window.record.clone());
        let beside = Beside {
            unix_ms: unix_ms(),
            pressure: None,
            memory,
            windows: self.windows.iter().cloned().chain(running).collect(),
        };
        state_of(&report, &self.courses, &beside)
    }

    fn diagnose(&mut self, pid: u32, seconds: Option<f64>) -> Result<WindowRecord, Refusal> {
        if self.window.is_some() {
            let message = "a window runs already; wait until it is over".to_owned();
            return Err(Refusal::NotNow { message });
        }
        if !self.watched.observer.running().contains(&pid) {
            let message = format!("process {pid} is not looked at, or has ended");
            return Err(Refusal::NotFound { message });
        }
        let length = match seconds.map(Duration::try_from_secs_f64) {
            None => self.length,
            Some(Ok(length)) => length,
            Some(Err(error)) => {
                return Err(Refusal::Failed { message: format!("no length of a window: {error}") });
            }
        };
        let length = length.min(LONGEST);
        let args = ObserveArgs { level: Some(LevelArg::Stacks), ..self.args.clone() };
        let failed = |error: &anyhow::Error| Refusal::Failed {
            message: format!("no window on process {pid}: {error:#}"),
        };
        let process = Process::open(pid).map_err(|error| failed(&error.into()))?;
        let watched = Watched::start(&args, &[pid]).map_err(|error| failed(&error))?;
        self.last += 1;
        let record = WindowRecord {
            id: self.last,
            pid,
            comm: process.comm,
            exe: printable(process.exe.as_os_str().as_encoded_bytes()),
            asked_by: "user".to_owned(),
            why: "asked for by a key".to_owned(),
            began_unix_ms: unix_ms(),
            seconds: length.as_secs_f64(),
            outcome: Outcome::Running,
            has_report: false,
        };
        let until = Instant::now() + length;
        let window = Window { record: record.clone(), watched, until, over: None };
        self.window = Some(Box::new(window));
        Ok(record)
    }

    /// Drives the window; when it is over and its names have come, keeps its report.
    fn drive_window(&mut self) {
        let Some(mut window) = self.window.take() else { return };
        let now = Instant::now();
        let ended = window.watched.observer.running().is_empty();
        let Some((over, outcome)) = window.over else {
            window.watched.turn();
            if now >= window.until || ended {
                window.watched.stop();
                let outcome = if ended { Outcome::TargetEnded } else { Outcome::Finished };
                window.over = Some((now, outcome));
                let past = unix_ms().saturating_sub(window.record.began_unix_ms);
                window.record.seconds = past as f64 / 1000.0;
                // The probes go in the background meanwhile.
                drop(window.watched.observer.detach());
            }
            self.window = Some(window);
            return;
        };
        let report = window.watched.report(0);
        if window.watched.still_naming() && over.elapsed() < NAMING {
            self.window = Some(window);
            return;
        }
        (window.record.outcome, window.record.has_report) = (outcome, true);
        self.reports.insert(window.record.id, report);
        while self.reports.len() > KEPT {
            self.reports.pop_first();
        }
        self.windows.push_back(window.record);
        for record in &mut self.windows {
            record.has_report = self.reports.contains_key(&record.id);
        }
        while self.windows.len() > LISTED {
            self.windows.pop_front();
        }
    }
}

impl Source for Live {
    fn name(&self) -> &'static str {
        "stand-alone"
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let window = self.window.iter().filter(|window| window.over.is_none());
        let watched = [&self.watched].into_iter().chain(window.map(|window| &window.watched));
        watched.flat_map(|watched| &watched.rings).map(OwnedFd::as_fd).collect()
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        self.watched.turn();
        self.drive_window();
        let now = Instant::now();
        if now < self.due {
            return Ok(None);
        }
        self.due = now + self.period;
        Ok(Some(self.state()))
    }

    fn ask(&mut self, request: &Request) -> Result<Result<Answer, Refusal>, SourceError> {
        let not_found = |message: String| Err(Refusal::NotFound { message });
        Ok(match request {
            Request::State => Ok(Answer::State { state: Box::new(self.state()) }),
            Request::Report { pid } => {
                let mut report = self.watched.report(SLACK);
                report.targets.retain(|target| target.pid == *pid);
                if report.targets.is_empty() {
                    not_found(format!("process {pid} is not looked at"))
                } else {
                    Ok(Answer::Report { report: Box::new(report) })
                }
            }
            Request::Windows { limit } => {
                let latest = self.windows.iter().rev().take(*limit as usize);
                Ok(Answer::Windows { windows: latest.cloned().collect() })
            }
            Request::WindowReport { id } => match self.reports.get(id) {
                Some(report) => Ok(Answer::Report { report: Box::new(report.clone()) }),
                None => not_found(format!("window {id} has left no report that is still kept")),
            },
            Request::Diagnose { growth: Some(true), .. } => Err(Refusal::Failed {
                message: "that is for a daemon: `drainprof growth` shows it without one".to_owned(),
            }),
            Request::Diagnose { pid, seconds, .. } => {
                self.diagnose(*pid, *seconds).map(|window| Answer::Window { window })
            }
            Request::Kill | Request::Resume | Request::Reload => Err(Refusal::Failed {
                message: "that is for a daemon, and there is none".to_owned(),
            }),
        })
    }
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
