//! Writes the history on a thread of its own, so a slow disk never delays the loop.

use std::{
    path::PathBuf,
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
    WindowRecord,
    store::{History, Moment, StoreError, Writer},
};

/// Entries that can wait for the disk. Those beyond are left out, with a warning.
const WAITING: usize = 64;

/// A task for the thread.
enum Task {
    Limits(Duration, u64),
    Moment(Box<Moment>),
    Window(Box<WindowRecord>, Option<Box<Report>>),
    Windows(u32, oneshot::Sender<Result<Vec<WindowRecord>, StoreError>>),
    Report(u64, oneshot::Sender<Result<Option<Report>, StoreError>>),
}

/// Hands tasks to the thread.
pub(super) struct HistoryWriter {
    /// `None` once it is to end.
    keep: Option<SyncSender<Task>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread was too slow, and the log says so.
    slow: bool,
    /// Why the last thing could not be written.
    trouble: Arc<Mutex<Option<String>>>,
}

impl HistoryWriter {
    /// Starts the thread.
    pub(super) fn start(writer: Writer, path: PathBuf) -> std::io::Result<Self> {
        let (keep, kept) = sync_channel(WAITING);
        let trouble = Arc::new(Mutex::new(None));
        let noted = Trouble(Arc::clone(&trouble));
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || work(writer, &path, &kept, &noted))?;
        Ok(Self { keep: Some(keep), thread: Some(thread), slow: false, trouble })
    }

    /// Why the history is not written now; `None`: it is.
    pub(super) fn trouble(&self) -> Option<String> {
        let slow = self.slow.then(|| "the disk is too slow; some entries are left out".to_owned());
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone().or(slow)
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

    /// Looks windows up, the latest first.
    pub(super) fn windows(
        &mut self,
        limit: u32,
    ) -> oneshot::Receiver<Result<Vec<WindowRecord>, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.send(Task::Windows(limit, answer));
        answered
    }

    /// Looks a window's report up.
    pub(super) fn report(
        &mut self,
        id: u64,
    ) -> oneshot::Receiver<Result<Option<Report>, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.send(Task::Report(id, answer));
        answered
    }

    fn send(&mut self, task: Task) {
        let Some(way) = &self.keep else { return };
        match way.try_send(task) {
            Ok(()) => self.slow = false,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if !std::mem::replace(&mut self.slow, true) {
                    tracing::warn!(
                        "the disk is too slow for the history; some entries are left out"
                    );
                }
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

fn work(mut writer: Writer, path: &std::path::Path, kept: &Receiver<Task>, trouble: &Trouble) {
    while let Ok(task) = kept.recv() {
        match task {
            Task::Limits(max_age, max_bytes) => trouble.note(writer.limit(max_age, max_bytes)),
            Task::Moment(moment) => trouble.note(writer.append(&moment)),
            Task::Window(record, report) => {
                trouble.note(writer.window(&record, report.as_deref()));
            }
            // Whoever asked may have gone.
            Task::Windows(limit, answer) => {
                let _ = answer.send(History::open(path).and_then(|history| history.windows(limit)));
            }
            Task::Report(id, answer) => {
                let _ =
                    answer.send(History::open(path).and_then(|history| history.window_report(id)));
            }
        }
    }
}

/// Logs a trouble once, and its end.
struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
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
