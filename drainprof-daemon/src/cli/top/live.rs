//! States without a daemon: an engine of our own, and one more for each diagnostic window.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use drainprof_node::{Answer, NodeState, Outcome, Refusal, Request, WindowRecord};
use drainprof_observe::engine::{Engine, Options, Step};
use drainprof_probe::bpf::Sizes;
use drainprof_process::{Process, memory::MemoryReader, printable, readers};
use drainprof_profile::Level;
use drainprof_report::{self as report, Report};

use crate::{
    cli::{drive::SLACK, options::kernel_release, selection::Selection},
    ui::{
        Source, SourceError,
        standalone::{Beside, Courses, state_of},
    },
};

/// Granules and call paths that a report lists.
const TOP: usize = 200;
/// How long a window's report waits for names.
const NAMING: Duration = Duration::from_secs(5);
/// Reports of windows that are kept, and windows that are listed.
const KEPT: usize = 20;
const LISTED: usize = 100;
/// Longest window.
const LONGEST: Duration = Duration::from_secs(3_600);

/// Puts probes into the processes that were selected; what cannot be observed is left out as long as others can.
fn start(options: Options, processes: &[Process], selection: &Selection) -> anyhow::Result<Engine> {
    let mut engine = Engine::new(options)?;
    let mut left_out = None;
    for process in processes {
        match engine.add(process.pid, false) {
            Err(error) if selection.may_leave_out(&error) => {
                tracing::warn!("not observed: {error}");
                left_out = Some(error);
            }
            added => added?,
        }
    }
    match left_out.filter(|_| engine.running().is_empty()) {
        Some(error) => Err(error.into()),
        None => Ok(engine),
    }
}

/// Takes notice of all that has happened. Does not wait.
fn turn(engine: &mut Engine) -> io::Result<()> {
    engine.turn(&mut ())?;
    while let Some(step) = engine.step() {
        if let Step::Ended(pid) = step {
            engine.ended(pid, None);
        }
    }
    Ok(())
}

/// What is known now, with the names that are known now.
fn report(engine: &mut Engine, slack: u64) -> Report {
    let options =
        report::Options { kernel: kernel_release(), top: TOP, slack, ..report::Options::default() };
    Report::build(&engine.snapshot(), &options)
}

/// A window that has not left its report yet.
struct Window {
    record: WindowRecord,
    engine: Engine,
    /// When it is over.
    until: Instant,
    /// When it was over, and how it ended: its report waits for names, and it shows as running until then.
    over: Option<(Instant, Outcome)>,
}

/// Processes that are examined from the command line.
pub(super) struct Live {
    options: Options,
    engine: Engine,
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
        options: Options,
        processes: &[Process],
        selection: &Selection,
        period: Duration,
        length: Duration,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            engine: start(options.clone(), processes, selection)?,
            options,
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
        let window = self.window.as_mut().map(|window| &mut window.engine);
        for engine in [&mut self.engine].into_iter().chain(window) {
            if let Err(error) = engine.stop(&mut ()) {
                tracing::debug!(%error, "the last events are missing");
            }
            if let Some(detaching) = engine.detach() {
                detaching.wait();
            }
        }
    }

    fn state(&mut self) -> NodeState {
        let report = report(&mut self.engine, SLACK);
        let pids = self.engine.running();
        self.memory.begin();
        let read = self.memory.read_each(pids).into_iter();
        let memory: BTreeMap<_, _> = read.filter_map(|(pid, read)| Some((pid, read?.0))).collect();
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
        if !self.engine.running().contains(&pid) {
            let message = format!("process {pid} is not watched, or has ended");
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
        let mut options = self.options.clone();
        options.side.level = Some(Level::Stacks);
        options.session.sizes.call_paths = Sizes::CALL_PATHS;
        let failed = |error: &anyhow::Error| Refusal::Failed {
            message: format!("no window on process {pid}: {error:#}"),
        };
        let process = readers::open(pid).map_err(|error| failed(&error.into()))?;
        let mut engine = Engine::new(options).map_err(|error| failed(&error.into()))?;
        engine.add(pid, false).map_err(|error| failed(&error.into()))?;
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
        let window = Window { record: record.clone(), engine, until, over: None };
        self.window = Some(Box::new(window));
        Ok(record)
    }

    /// Drives the window; when it is over and its names have come, keeps its report.
    fn drive_window(&mut self) -> io::Result<()> {
        let Some(mut window) = self.window.take() else { return Ok(()) };
        let now = Instant::now();
        let ended = window.engine.running().is_empty();
        let Some((over, outcome)) = window.over else {
            turn(&mut window.engine)?;
            if now >= window.until || ended {
                window.engine.stop(&mut ())?;
                let outcome = if ended { Outcome::TargetEnded } else { Outcome::Finished };
                window.over = Some((now, outcome));
                let past = unix_ms().saturating_sub(window.record.began_unix_ms);
                window.record.seconds = past as f64 / 1000.0;
                // The probes go in the background meanwhile.
                drop(window.engine.detach());
            }
            self.window = Some(window);
            return Ok(());
        };
        let report = report(&mut window.engine, 0);
        if window.engine.is_naming() && over.elapsed() < NAMING {
            self.window = Some(window);
            return Ok(());
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
        Ok(())
    }
}

impl Source for Live {
    fn name(&self) -> &'static str {
        "stand-alone"
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let window = self.window.iter().filter(|window| window.over.is_none());
        let all = [&self.engine].into_iter().chain(window.map(|window| &window.engine));
        all.map(Engine::descriptor).collect()
    }

    fn poll(&mut self) -> Result<Option<NodeState>, SourceError> {
        turn(&mut self.engine)
            .and_then(|()| self.drive_window())
            .map_err(|error| SourceError::because("cannot wait for events", error))?;
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
                let mut report = report(&mut self.engine, SLACK);
                report.targets.retain(|target| target.pid == *pid);
                if report.targets.is_empty() {
                    not_found(format!("process {pid} is not watched"))
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
