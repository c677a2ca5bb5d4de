//! The diagnostic windows: which run, which have ended, and their reports.

use std::collections::{BTreeMap, VecDeque};

use drainprof_report::Report;
use tokio::{sync::oneshot, task::JoinSet};

use super::{
    roster::Subject,
    window::{Ended, Window, WindowOptions},
};
use crate::{
    Labels, Outcome, Refusal, WindowRecord,
    clock::unix_ms,
    config::Config,
    trigger::{self, By},
};

/// Ended windows that are shown.
const MAX_ENDED_SHOWN: usize = 32;
/// Reports in memory, for a daemon without a history.
const MAX_REPORTS: usize = 4;

/// A request for a window.
pub(super) struct Order {
    /// Whether a rule or a user requests it.
    pub(super) by: By,
    /// The name of the rule, or `user`.
    pub(super) asked_by: &'static str,
    /// Why, in one sentence.
    pub(super) why: String,
    /// For how long; `None`: as configured.
    pub(super) seconds: Option<f64>,
    /// Whether growth is traced; `None`: as configured.
    pub(super) growth: Option<bool>,
}

struct Running {
    record: WindowRecord,
    /// The labels of the process, which may be gone when the window ends.
    labels: Labels,
    /// Ends it early.
    stop: Option<oneshot::Sender<()>>,
}

/// A window that has ended.
pub(super) struct Closed {
    pub(super) record: WindowRecord,
    pub(super) labels: Option<Labels>,
    pub(super) report: Option<Box<Report>>,
}

/// All windows.
pub(super) struct Windows {
    /// The drainprof that runs windows.
    program: std::path::PathBuf,
    /// Why this kernel cannot trace growth.
    growth: Result<(), String>,
    grants: trigger::Windows<u32>,
    tasks: JoinSet<(WindowRecord, Ended)>,
    running: BTreeMap<u64, Running>,
    ended: VecDeque<WindowRecord>,
    reports: VecDeque<(u64, Report)>,
    next: u64,
}

impl Windows {
    /// No windows yet; `next` is the number of the first.
    pub(super) fn new(program: std::path::PathBuf, growth: Result<(), String>, next: u64) -> Self {
        Self {
            program,
            growth,
            grants: trigger::Windows::new(),
            tasks: JoinSet::new(),
            running: BTreeMap::new(),
            ended: VecDeque::new(),
            reports: VecDeque::new(),
            next,
        }
    }

    /// Opens a window, if it is granted. `now` is in seconds since any fixed moment; `census`: whether it reads heaps, of
    /// processes of at most so many bytes.
    pub(super) fn open(
        &mut self,
        config: &Config,
        now: f64,
        subject: Subject,
        order: Order,
        census: Option<u64>,
    ) -> Result<WindowRecord, Refusal> {
        let growth = match (&self.growth, order.growth) {
            // Without a profile there is nothing else to see.
            (Ok(()), _) if !subject.matched => true,
            (Ok(()), asked) => config.window.growth.watches(asked, subject.memory_fires),
            (Err(why), asked) if asked == Some(true) || !subject.matched => {
                let message = format!("this kernel cannot trace growth: {why}");
                return Err(Refusal::Failed { message });
            }
            // The rest of the window is still useful.
            (Err(_), _) => false,
        };
        let pid = subject.pid;
        let grant = self.grants.ask(&config.window, now, pid, order.by, order.seconds)?;
        let record = WindowRecord {
            id: self.next,
            pid,
            comm: subject.comm,
            exe: subject.exe,
            asked_by: order.asked_by.to_owned(),
            why: order.why,
            began_unix_ms: unix_ms(),
            seconds: grant.seconds,
            outcome: Outcome::Running,
            has_report: false,
        };
        let options = WindowOptions {
            start_time: subject.start_time,
            program: self.program.clone(),
            level: config.window.level,
            growth,
            census,
            census_memory: config.census.memory.0 / 2 / u64::from(config.window.at_once.max(1)),
            budget: config.window.cost.0,
            profiles: config.daemon.profiles.clone(),
            directories: config.daemon.profile_directories.clone(),
        };
        let window = Window::begin(record.clone(), options).map_err(|error| {
            self.grants.end(now, pid);
            Refusal::Failed { message: format!("cannot start the window's process: {error}") }
        })?;
        self.next += 1;
        let (id, asked_by, why) = (record.id, order.asked_by, &record.why);
        tracing::info!(pid, id, asked_by, growth, why, "a diagnostic window opens");
        let (stop, stopped) = oneshot::channel();
        self.tasks.spawn(window.run(stopped));
        let running = Running { record: record.clone(), labels: subject.labels, stop: Some(stop) };
        self.running.insert(record.id, running);
        Ok(record)
    }

    /// Whether a window is open, or its process has not been waited for.
    pub(super) fn is_busy(&self) -> bool {
        !self.tasks.is_empty()
    }

    /// Waits for the next window that ends; `None`: none runs.
    pub(super) async fn next_ended(&mut self) -> Option<(WindowRecord, Ended)> {
        self.tasks.join_next().await?.ok()
    }

    /// Records the end of a window.
    pub(super) fn close(
        &mut self,
        config: &Config,
        now: f64,
        (mut record, ended): (WindowRecord, Ended),
    ) -> Closed {
        self.grants.end(now, record.pid);
        let (pid, id) = (record.pid, record.id);
        match ended.outcome {
            Outcome::Failed => {
                tracing::warn!(pid, id, "a diagnostic window failed: {}", ended.failure);
                record.why = format!("{} ({})", record.why, ended.failure);
            }
            Outcome::OverCost => tracing::warn!(
                pid,
                id,
                "a diagnostic window ended early: its probes cost more than window.cost, {}",
                config.window.cost
            ),
            outcome => tracing::info!(pid, id, ?outcome, "a diagnostic window has ended"),
        }
        if let Some(report) = &ended.report {
            self.reports.push_back((id, report.as_ref().clone()));
            while self.reports.len() > MAX_REPORTS {
                self.reports.pop_front();
            }
        }
        self.ended.push_back(record.clone());
        while self.ended.len() > MAX_ENDED_SHOWN {
            self.ended.pop_front();
        }
        let labels = self.running.remove(&id).map(|running| running.labels);
        Closed { record, labels, report: ended.report }
    }

    /// Ends all windows early.
    pub(super) fn stop_all(&mut self) {
        for stop in self.running.values_mut().filter_map(|running| running.stop.take()) {
            // It may have ended meanwhile.
            let _ = stop.send(());
        }
    }

    /// Windows that ended last and those that run, oldest first.
    pub(super) fn list(&self) -> Vec<WindowRecord> {
        let running = self.running.values().map(|running| &running.record);
        self.ended.iter().chain(running).cloned().collect()
    }

    /// Whether this window runs.
    pub(super) fn is_running(&self, id: u64) -> bool {
        self.running.contains_key(&id)
    }

    /// The report of a window, if it is still in memory.
    pub(super) fn report(&self, id: u64) -> Option<&Report> {
        self.reports.iter().find(|(known, _)| *known == id).map(|(_, report)| report)
    }
}
