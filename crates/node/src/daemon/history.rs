//! Writes the history on a thread of its own, so a slow disk never delays the loop.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
    time::Duration,
};

use drainprof_report::Report;
use tokio::sync::oneshot;

use crate::{
    Answer, Refusal, WindowRecord,
    store::{History, Moment, StoreError, Writer},
};

/// Entries that can wait for the disk. Those beyond are left out, with a warning.
const MAX_WAITING_TASKS: usize = 64;

/// A task for the thread.
enum Task {
    Limits(Duration, u64),
    Moment(Box<Moment>),
    Window(Box<WindowRecord>, Option<Box<Report>>),
    Answer(Question, Sender),
}

/// Takes the answer to a request.
pub(super) type Sender = oneshot::Sender<Result<Answer, Refusal>>;

/// What can be asked of the history.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// The latest windows, at most so many.
    Windows(u32),
    /// The report of a window.
    Report(u64),
}

impl Question {
    fn answer(self, path: &Path) -> Result<Answer, Refusal> {
        let failed = |error: StoreError| Refusal::Failed { message: error.to_string() };
        let history = History::open(path).map_err(failed)?;
        match self {
            Self::Windows(limit) => {
                history.windows(limit).map(|windows| Answer::Windows { windows }).map_err(failed)
            }
            Self::Report(id) => match history.window_report(id).map_err(failed)? {
                Some(report) => Ok(Answer::Report { report: Box::new(report) }),
                None => Err(no_report(id)),
            },
        }
    }
}

/// A window without a report.
pub(super) fn no_report(id: u64) -> Refusal {
    Refusal::NotFound { message: format!("there is no report of a window {id}") }
}

/// Hands tasks to the thread.
pub(super) struct HistoryWriter {
    /// `None` once it is to end.
    keep: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread was too slow, and the log says so.
    slow: bool,
    /// Why the last thing could not be written.
    failure: Arc<Mutex<Option<String>>>,
}

impl HistoryWriter {
    /// Starts the thread.
    pub(super) fn start(writer: Writer, path: PathBuf) -> std::io::Result<Self> {
        let (keep, kept) = sync_channel(MAX_WAITING_TASKS);
        let failure = Arc::new(Mutex::new(None));
        let noted = Failures(Arc::clone(&failure));
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || work(writer, &path, &kept, &noted))?;
        Ok(Self { keep: Some(keep), thread: Some(thread), slow: false, failure })
    }

    /// Why the history is not written now; `None`: it is.
    pub(super) fn failure(&self) -> Option<String> {
        let slow = self.slow.then(|| "the disk is too slow; some entries are left out".to_owned());
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone().or(slow)
    }

    /// Keeps a moment. One that finds no room is left out: the next one says the same and more.
    pub(super) fn moment(&mut self, moment: Moment) {
        self.send(Task::Moment(Box::new(moment)));
    }

    /// Changes the limits of the history.
    pub(super) fn limit(&mut self, max_age: Duration, max_bytes: u64) {
        self.send(Task::Limits(max_age, max_bytes));
    }

    /// Keeps a window, with its report once it has one.
    pub(super) fn window(&mut self, record: WindowRecord, report: Option<Box<Report>>) {
        self.send(Task::Window(Box::new(record), report));
    }

    /// Answers a question, on the thread.
    pub(super) fn answer(&mut self, question: Question, answer: Sender) {
        if let Some(Task::Answer(_, answer)) = self.send(Task::Answer(question, answer)) {
            let message = "the history is busy writing; try again".to_owned();
            // The client may be gone.
            let _ = answer.send(Err(Refusal::NotNow { message }));
        }
    }

    /// Hands a task over; returns one that finds no room.
    fn send(&mut self, task: Task) -> Option<Task> {
        let way = self.keep.as_ref()?;
        match way.try_send(task) {
            Ok(()) => {
                self.slow = false;
                None
            }
            Err(TrySendError::Full(task) | TrySendError::Disconnected(task)) => {
                if !std::mem::replace(&mut self.slow, true) {
                    tracing::warn!(
                        "the disk is too slow for the history; some entries are left out"
                    );
                }
                Some(task)
            }
        }
    }

    /// Writes what waits, and ends.
    pub(super) fn end(mut self) {
        self.keep = None;
        if let Some(thread) = self.thread.take() {
            // The thread itself has reported a panic.
            let _ = thread.join();
        }
    }
}

fn work(mut writer: Writer, path: &Path, kept: &Receiver<Task>, failures: &Failures) {
    while let Ok(task) = kept.recv() {
        match task {
            Task::Limits(max_age, max_bytes) => failures.note(writer.limit(max_age, max_bytes)),
            Task::Moment(moment) => failures.note(writer.append(&moment)),
            Task::Window(record, report) => {
                failures.note(writer.window(&record, report.as_deref()));
            }
            // The client may be gone.
            Task::Answer(question, answer) => drop(answer.send(question.answer(path))),
        }
    }
}

/// Keeps the last failure; logs its begin and its end.
struct Failures(Arc<Mutex<Option<String>>>);

impl Failures {
    fn note<T>(&self, result: Result<T, StoreError>) {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match result {
            Ok(_) => {
                if last.take().is_some() {
                    tracing::info!("the history is written again");
                }
            }
            Err(error) => {
                let text = error.to_string();
                if last.as_ref() != Some(&text) {
                    tracing::warn!(%error, "the history is not written");
                    *last = Some(text);
                }
            }
        }
    }
}
