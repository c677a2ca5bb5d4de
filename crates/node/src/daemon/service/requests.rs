//! Those who ask: what they are answered, and the windows, the kill switch and the reload that they order.

use drainprof_process::printable;
use drainprof_profile::Level;
use drainprof_report::Report;
use tokio::sync::oneshot;

use super::{
    service::{KEPT_REPORTS, Running, SHOWN_WINDOWS, Service, policy},
    windows::{Ended, Window, WindowOptions},
};
use crate::{
    Answer, Asked, Outcome, Refusal, Request, WindowRecord,
    config::{Applies, Selector},
    trigger::By,
};

/// Windows that are listed at most, whatever is asked for.
const LISTED_WINDOWS: u32 = 1_000;

impl Service {
    /// Answers one who asks. What takes time is answered by a task of its own.
    pub(super) fn answer(&mut self, asked: Asked) {
        let Asked { request, answer } = asked;
        let result = match request {
            Request::State => {
                let state = self.publish.borrow().clone();
                Ok(Answer::State { state: Box::new(state.as_ref().clone()) })
            }
            Request::Report { pid } => self.report_of(pid),
            Request::Windows { limit } => return self.list_windows(limit, answer),
            Request::WindowReport { id } => return self.find_report(id, answer),
            Request::Diagnose { pid, seconds, growth } => self
                .diagnose(
                    pid,
                    By::User,
                    ("user", "asked for by a user".to_owned()),
                    seconds,
                    growth,
                )
                .map(|window| Answer::Window { window }),
            Request::Kill => {
                self.ordered_kill = true;
                self.heed_kill_file();
                Ok(done(
                    "the kill switch is thrown: nothing counts any more, and all probes are being taken out",
                ))
            }
            Request::Resume => self.resume(),
            Request::Reload => match self.reload() {
                Ok(message) => Ok(Answer::Done { message }),
                Err(message) => Err(Refusal::Failed { message }),
            },
        };
        // Whoever asked may have gone.
        let _ = answer.send(result);
    }

    fn report_of(&self, pid: u32) -> Result<Answer, Refusal> {
        let found = self.last.iter().find_map(|report| {
            let target =
                report.targets.iter().find(|target| target.pid == pid && target.ended.is_none())?;
            Some(Report { targets: vec![target.clone()], ..report.clone() })
        });
        match found {
            Some(report) => Ok(Answer::Report { report: Box::new(report) }),
            None if self.tracked.contains_key(&pid) => Err(Refusal::NotNow {
                message: format!("no probe is in process {pid} now: ask for a diagnostic window"),
            }),
            None => Err(not_watched(pid)),
        }
    }

    fn list_windows(&mut self, limit: u32, answer: Sender) {
        let limit = limit.min(LISTED_WINDOWS);
        let own = self.shown_windows();
        let Some(keeper) = &mut self.keeper else {
            let windows = own.into_iter().rev().take(limit as usize).collect();
            let _ = answer.send(Ok(Answer::Windows { windows }));
            return;
        };
        let kept = keeper.windows(limit);
        tokio::spawn(async move {
            let result = match kept.await {
                Ok(Ok(windows)) => Ok(Answer::Windows { windows }),
                Ok(Err(error)) => Err(Refusal::Failed { message: error.to_string() }),
                Err(_) => Err(too_slow()),
            };
            let _ = answer.send(result);
        });
    }

    fn find_report(&mut self, id: u64, answer: Sender) {
        if self.running.contains_key(&id) {
            let message = format!("window {id} has not ended");
            let _ = answer.send(Err(Refusal::NotNow { message }));
            return;
        }
        if let Some((_, report)) = self.reports.iter().find(|(known, _)| *known == id) {
            let report = Box::new(report.clone());
            let _ = answer.send(Ok(Answer::Report { report }));
            return;
        }
        let none =
            move || Refusal::NotFound { message: format!("there is no report of a window {id}") };
        let Some(keeper) = &mut self.keeper else {
            let _ = answer.send(Err(none()));
            return;
        };
        let kept = keeper.report(id);
        tokio::spawn(async move {
            let result = match kept.await {
                Ok(Ok(Some(report))) => Ok(Answer::Report { report: Box::new(report) }),
                Ok(Ok(None)) => Err(none()),
                Ok(Err(error)) => Err(Refusal::Failed { message: error.to_string() }),
                Err(_) => Err(too_slow()),
            };
            let _ = answer.send(result);
        });
    }

    /// Opens a window, if it may be.
    fn diagnose(
        &mut self,
        pid: u32,
        by: By,
        (asked_by, why): (&str, String),
        seconds: Option<f64>,
        growth: Option<bool>,
    ) -> Result<WindowRecord, Refusal> {
        let now = self.seconds();
        let unix_ms = self.unix_ms();
        if self.killed {
            let message = "the kill switch is thrown: `drainprof ctl resume` takes it back";
            return Err(Refusal::NotNow { message: message.to_owned() });
        }
        let Some(tracked) = self.tracked.get_mut(&pid) else { return Err(not_watched(pid)) };
        let growth = match (&self.growth, growth) {
            (Ok(()), asked) => {
                self.config.window.growth.watches(asked, tracked.engine.memory_fires())
            }
            (Err(why), Some(true)) => {
                let message = format!("growth cannot be watched on this kernel: {why}");
                return Err(Refusal::Failed { message });
            }
            // What else the window shows is worth having.
            (Err(_), _) => false,
        };
        let grant = self.grants.ask(&self.policy, now, pid, by, seconds)?;
        tracked.engine.served();
        let labels = tracked.labels.clone();
        let record = WindowRecord {
            id: self.next_window,
            pid,
            comm: printable(&tracked.process.comm),
            exe: printable(tracked.process.exe.as_os_str().as_encoded_bytes()),
            asked_by: asked_by.to_owned(),
            why,
            began_unix_ms: unix_ms,
            seconds: grant.seconds,
            outcome: Outcome::Running,
            has_report: false,
        };
        let options = WindowOptions {
            program: self.setup_program.clone(),
            level: self.config.window.level,
            growth,
            budget: self.config.window.cost.0,
            profiles: self.config.daemon.profiles.clone(),
            directories: self.config.daemon.profile_directories.clone(),
        };
        let window = Window::begin(record.clone(), &options).map_err(|error| {
            self.grants.end(now, pid);
            Refusal::Failed { message: format!("cannot start the window's process: {error}") }
        })?;
        self.next_window += 1;
        tracing::info!(
            pid,
            id = record.id,
            asked_by,
            growth,
            why = record.why,
            "a diagnostic window opens"
        );
        let (stop, stopped) = oneshot::channel();
        self.windows.spawn(window.run(stopped));
        self.running
            .insert(record.id, Running { record: record.clone(), labels, stop: Some(stop) });
        if let Some(keeper) = &mut self.keeper {
            keeper.window(record.clone(), None);
        }
        self.show_windows();
        Ok(record)
    }

    /// Opens the windows that rules want, as far as they may.
    pub(super) fn open_windows(&mut self) {
        if self.killed {
            return;
        }
        let wanted: Vec<_> = self
            .tracked
            .iter()
            .filter_map(|(pid, tracked)| Some((*pid, tracked.engine.wants(&self.config.triggers)?)))
            .collect();
        for (pid, want) in wanted {
            if let Err(refusal) = self.diagnose(pid, By::Rule, (want.rule, want.why), None, None) {
                tracing::debug!(pid, rule = want.rule, %refusal, "no window");
            }
        }
    }

    /// SIGUSR1: a window on the process whose rules fire, or whose closes drain worst.
    pub(super) fn diagnose_worst(&mut self) {
        let state = self.publish.borrow().clone();
        let dsr = |target: &crate::NodeTarget| {
            target.allocators.iter().filter_map(|one| one.dsr).fold(f64::INFINITY, f64::min)
        };
        let is_quiet = |target: &crate::NodeTarget| {
            !target.alerts.iter().any(|alert| alert.state == crate::AlertState::Firing)
        };
        let worst = state
            .targets
            .iter()
            .min_by(|a, b| (is_quiet(a)).cmp(&is_quiet(b)).then(dsr(a).total_cmp(&dsr(b))));
        let Some(worst) = worst else {
            tracing::warn!("SIGUSR1: no process is watched, so no window opens");
            return;
        };
        let why = "asked for by SIGUSR1: it is the worst off".to_owned();
        if let Err(refusal) = self.diagnose(worst.pid, By::User, ("signal", why), None, None) {
            tracing::warn!(pid = worst.pid, %refusal, "SIGUSR1: no window opens");
        }
    }

    /// A window has ended.
    pub(super) fn window_ended(&mut self, record: WindowRecord, ended: Ended) {
        self.grants.end(self.seconds(), record.pid);
        let unix_ms = self.unix_ms();
        let running = self.running.remove(&record.id);
        if let (Some(running), Some(report)) = (running, &ended.report) {
            self.counters.blame(&running.labels, (record.id, unix_ms), report);
        }
        match ended.outcome {
            Outcome::Failed => {
                tracing::warn!(
                    pid = record.pid,
                    id = record.id,
                    "a diagnostic window failed: {}",
                    ended.failure
                );
            }
            Outcome::TooDear => tracing::warn!(
                pid = record.pid,
                id = record.id,
                "a diagnostic window was ended early: its probes cost the process more than window.cost, {}",
                self.config.window.cost
            ),
            outcome => tracing::info!(
                pid = record.pid,
                id = record.id,
                ?outcome,
                "a diagnostic window has ended"
            ),
        }
        let record = match ended.outcome {
            Outcome::Failed => {
                WindowRecord { why: format!("{} ({})", record.why, ended.failure), ..record }
            }
            _ => record,
        };
        if let Some(report) = &ended.report {
            self.reports.push_back((record.id, report.as_ref().clone()));
            while self.reports.len() > KEPT_REPORTS {
                self.reports.pop_front();
            }
        }
        self.shown.push_back(record.clone());
        while self.shown.len() > SHOWN_WINDOWS {
            self.shown.pop_front();
        }
        if let Some(keeper) = &mut self.keeper {
            keeper.window(record, ended.report);
        }
        self.show_windows();
    }

    /// Publishes the windows at once: whoever has asked for one should find it.
    fn show_windows(&mut self) {
        let windows = self.shown_windows();
        self.publish.send_modify(|state| std::sync::Arc::make_mut(state).windows = windows);
    }

    /// Looks whether the kill switch is thrown, by file or by order, and does what follows if that has changed.
    pub(super) fn heed_kill_file(&mut self) {
        let killed = self.ordered_kill || self.config.daemon.kill_file.exists();
        if killed == self.killed {
            return;
        }
        self.killed = killed;
        self.hurry = true;
        let unix_ms = self.unix_ms();
        let pids: Vec<u32> = self.tracked.keys().copied().collect();
        if killed {
            tracing::warn!("the kill switch is thrown: everything is detached");
            for pid in pids {
                self.pool.release(pid);
                if let Some(tracked) = self.tracked.get_mut(&pid) {
                    tracked.turn(None, "the kill switch is thrown".to_owned(), unix_ms);
                }
            }
            for running in self.running.values_mut() {
                if let Some(stop) = running.stop.take() {
                    let _ = stop.send(());
                }
            }
        } else {
            tracing::warn!("the kill switch is taken back");
            // As if they had just come.
            self.tracked.clear();
            self.arrivals = super::arrivals::Arrivals::default();
            self.discover();
        }
    }

    fn resume(&mut self) -> Result<Answer, Refusal> {
        let file = &self.config.daemon.kill_file;
        if file.exists() {
            let message = format!("{} is there: remove it first", file.display());
            return Err(Refusal::NotNow { message });
        }
        if !self.ordered_kill {
            return Ok(done("the kill switch was not thrown"));
        }
        self.ordered_kill = false;
        self.heed_kill_file();
        Ok(done("the kill switch is taken back: processes are looked for anew"))
    }

    /// Reads the configuration again and applies what has changed; says what.
    pub(super) fn reload(&mut self) -> Result<String, String> {
        let (new, library) = match (self.reread)() {
            Ok(read) => read,
            Err(error) => {
                let message = format!("the configuration in force is kept: {error}");
                self.refused = Some(message.clone());
                return Err(message);
            }
        };
        self.refused = None;
        let changes = self.config.difference(&new);
        let (at_once, later): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| change.applies == Applies::AtOnce);
        let names = |changes: &[&crate::config::Change]| {
            changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
        };
        let mut told = match at_once.as_slice() {
            [] => "nothing has changed that applies at once".to_owned(),
            some => format!("changed: {}", names(some)),
        };
        if !later.is_empty() {
            told.push_str("; applies when the daemon is started again: ");
            told.push_str(&names(&later));
        }
        let level_before: Level = self.config.daemon.level;
        let selects_anew = self.config.select != new.select
            || self.config.daemon.profiles != new.daemon.profiles
            || self.config.daemon.profile_directories != new.daemon.profile_directories
            || level_before != new.daemon.level
            || self.pool.library_differs(&library);
        self.config = new.applied_to(&self.config);
        self.policy = policy(&self.config);
        if selects_anew {
            self.select_anew(library)?;
        }
        Ok(told)
    }

    /// Decides anew who is watched, and how.
    fn select_anew(&mut self, library: drainprof_profile::Library) -> Result<(), String> {
        self.selector = Selector::of_this_process(&self.config.select);
        for pid in self.tracked.keys().copied().collect::<Vec<_>>() {
            self.pool.release(pid);
            if let Some(tracked) = self.tracked.remove(&pid) {
                self.left.insert(pid, tracked.labels);
            }
        }
        self.pool.renew(library, self.config.daemon.profiles.clone());
        self.pool.prepare(self.config.daemon.level).map_err(|error| error.to_string())?;
        self.arrivals = super::arrivals::Arrivals::default();
        self.waiting.clear();
        self.unfit.clear();
        self.hurry = true;
        self.discover();
        Ok(())
    }
}

type Sender = oneshot::Sender<Result<Answer, Refusal>>;

fn done(message: &str) -> Answer {
    Answer::Done { message: message.to_owned() }
}

fn not_watched(pid: u32) -> Refusal {
    Refusal::NotFound {
        message: format!(
            "process {pid} is not watched: it is not there, no profile fits it, or the configuration leaves it out"
        ),
    }
}

fn too_slow() -> Refusal {
    Refusal::NotNow { message: "the history has too much to write; try again".to_owned() }
}
