//! Answers requests: state, reports, windows, kill switch and reload.

use super::{
    super::{
        history::{Question, Sender, no_report},
        window::Ended,
        windows::{Closed, Order},
    },
    Service,
};
use crate::{
    AlertState, Answer, Asked, NodeTarget, Refusal, Request, WindowRecord, clock::unix_ms,
    config::Applies, trigger::By,
};

/// Windows that a list has at most.
const MAX_LISTED_WINDOWS: u32 = 1_000;

impl Service {
    /// Answers a request; the thread of the history answers what is kept there.
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
            Request::Diagnose { pid, seconds, growth } => {
                let why = "requested by user".to_owned();
                let order = Order { by: By::User, asked_by: "user", why, seconds, growth };
                self.diagnose(pid, order).map(|window| Answer::Window { window })
            }
            Request::Kill => {
                self.kill.request(true);
                self.check_kill_switch();
                Ok(done(
                    "the kill switch is on: counting has stopped, and all probes are being removed",
                ))
            }
            Request::Resume => self.resume(),
            Request::Reload => match self.reload() {
                Ok(message) => Ok(Answer::Done { message }),
                Err(message) => Err(Refusal::Failed { message }),
            },
        };
        // The client may be gone.
        let _ = answer.send(result);
    }

    fn report_of(&self, pid: u32) -> Result<Answer, Refusal> {
        match self.last.report_of(pid) {
            Some(report) => Ok(Answer::Report { report: Box::new(report) }),
            None if self.roster.subject(pid).is_some() => Err(Refusal::NotNow {
                message: format!("no probe is in process {pid} now: request a diagnostic window"),
            }),
            None => Err(not_watched(pid)),
        }
    }

    fn list_windows(&mut self, limit: u32, answer: Sender) {
        let limit = limit.min(MAX_LISTED_WINDOWS);
        if let Some(history) = &mut self.history {
            return history.answer(Question::Windows(limit), answer);
        }
        let windows = self.windows.list().into_iter().rev().take(limit as usize).collect();
        let _ = answer.send(Ok(Answer::Windows { windows }));
    }

    fn find_report(&mut self, id: u64, answer: Sender) {
        let found = if self.windows.is_running(id) {
            Err(Refusal::NotNow { message: format!("window {id} has not ended") })
        } else if let Some(report) = self.windows.report(id) {
            Ok(Answer::Report { report: Box::new(report.clone()) })
        } else if let Some(history) = &mut self.history {
            return history.answer(Question::Report(id), answer);
        } else {
            Err(no_report(id))
        };
        let _ = answer.send(found);
    }

    /// Opens a window, if it is granted.
    fn diagnose(&mut self, pid: u32, order: Order) -> Result<WindowRecord, Refusal> {
        if self.kill.is_on() {
            let message = "the kill switch is on: `drainprof ctl resume` turns it off";
            return Err(Refusal::NotNow { message: message.to_owned() });
        }
        let subject = self.roster.subject(pid).ok_or_else(|| not_watched(pid))?;
        let now = self.began.elapsed().as_secs_f64();
        let census = self.censuses.affords(&self.config);
        let record = self.windows.open(&self.config, now, subject, order, census)?;
        self.roster.served(pid);
        if let Some(history) = &mut self.history {
            history.window(record.clone(), None);
        }
        self.publish_windows();
        Ok(record)
    }

    /// Opens the windows that rules request, as far as they are granted.
    pub(super) fn open_windows(&mut self) {
        if self.kill.is_on() {
            return;
        }
        for (pid, want) in self.roster.wanted_windows(&self.config.triggers) {
            if !self.roster.wants_window(&self.config.triggers, pid) {
                continue;
            }
            let (by, asked_by) = (By::Rule, want.rule);
            let order = Order { by, asked_by, why: want.why, seconds: None, growth: None };
            if let Err(refusal) = self.diagnose(pid, order) {
                tracing::debug!(pid, rule = want.rule, %refusal, "no window");
            }
        }
    }

    /// SIGUSR1: a window on the process whose rules fire, or whose closes drain worst.
    pub(super) fn diagnose_worst(&mut self) {
        let state = self.publish.borrow().clone();
        let dsr = |target: &NodeTarget| {
            target.allocators.iter().filter_map(|one| one.dsr).fold(f64::INFINITY, f64::min)
        };
        let is_quiet = |target: &NodeTarget| {
            !target.alerts.iter().any(|alert| alert.state == AlertState::Firing)
        };
        let worst = state
            .targets
            .iter()
            .min_by(|a, b| (is_quiet(a)).cmp(&is_quiet(b)).then(dsr(a).total_cmp(&dsr(b))));
        let Some(worst) = worst else {
            tracing::warn!("SIGUSR1: no process is watched, so no window opens");
            return;
        };
        let why = "requested by SIGUSR1: this process has the worst state".to_owned();
        let order = Order { by: By::User, asked_by: "signal", why, seconds: None, growth: None };
        if let Err(refusal) = self.diagnose(worst.pid, order) {
            tracing::warn!(pid = worst.pid, %refusal, "SIGUSR1: no window opens");
        }
    }

    /// A window has ended.
    pub(super) fn window_ended(&mut self, ended: (WindowRecord, Ended)) {
        let now = self.began.elapsed().as_secs_f64();
        let Closed { record, labels, report } = self.windows.close(&self.config, now, ended);
        if let (Some(labels), Some(report)) = (labels, &report) {
            self.counters.blame(&labels, (record.id, unix_ms()), report);
            self.pushers.window(&record, &labels, report);
        }
        if let Some(report) = &report {
            self.censuses.charge(report);
        }
        if let Some(history) = &mut self.history {
            history.window(record, report);
        }
        self.publish_windows();
    }

    fn resume(&mut self) -> Result<Answer, Refusal> {
        let file = &self.config.daemon.kill_file;
        if file.exists() {
            let message = format!("{} exists: remove it first", file.display());
            return Err(Refusal::NotNow { message });
        }
        if !self.kill.is_requested() {
            return Ok(done("the kill switch was not on"));
        }
        self.kill.request(false);
        self.check_kill_switch();
        Ok(done("the kill switch is off: processes are being attached again"))
    }

    /// Reads the configuration again and applies what has changed. Returns what that is.
    pub(super) fn reload(&mut self) -> Result<String, String> {
        let (new, library) = (self.reread)().map_err(|error| {
            let message = format!("the old configuration stays in force: {error}");
            self.refused = Some(message.clone());
            message
        })?;
        let changes = self.config.difference(&new);
        let (at_once, later): (Vec<_>, Vec<_>) =
            changes.iter().partition(|change| change.applies == Applies::AtOnce);
        let names = |changes: &[&crate::config::Change]| {
            changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>().join(", ")
        };
        let mut message = match at_once.as_slice() {
            [] => "nothing has changed that applies at once".to_owned(),
            some => format!("changed: {}", names(some)),
        };
        if !later.is_empty() {
            message.push_str("; applies after a restart of the daemon: ");
            message.push_str(&names(&later));
        }
        self.refused =
            library.as_ref().err().map(|error| format!("the old profiles stay in force: {error}"));
        if let Some(refused) = &self.refused {
            message = format!("{message}; {refused}");
        }
        let selects_again = self.config.select != new.select
            || self.config.daemon.profiles != new.daemon.profiles
            || self.config.daemon.profile_directories != new.daemon.profile_directories
            || self.config.daemon.level != new.daemon.level;
        let limits = self.config.store != new.store;
        self.config = new.applied_to(&self.config);
        if limits && let Some(history) = &mut self.history {
            history.limit(self.config.store.max_age.get(), self.config.store.max_bytes.0);
        }
        let library = library.ok().filter(|new| selects_again || self.roster.library_differs(new));
        if selects_again || library.is_some() {
            self.roster.select_again(&self.config, library)?;
            self.hurry = true;
            self.scan();
        }
        Ok(message)
    }
}

fn done(message: &str) -> Answer {
    Answer::Done { message: message.to_owned() }
}

fn not_watched(pid: u32) -> Refusal {
    Refusal::NotFound {
        message: format!(
            "process {pid} is not watched: it has ended, or the configuration excludes it"
        ),
    }
}
