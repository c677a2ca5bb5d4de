//! Writes the history on a thread of its own, so that a slow disk never holds up the loop.

use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::JoinHandle,
};

use drainprof_report::Report;
use tokio::sync::oneshot;

use crate::{
    WindowRecord,
    store::{History, Moment, StoreError, Writer},
};

/// So much may wait for the disk. What does not fit is left out, and told.
const WAITING: usize = 64;

/// What is to be kept, or looked up.
enum Keep {
    Moment(Box<Moment>),
    Window(Box<WindowRecord>, Option<Box<Report>>),
    Windows(u32, oneshot::Sender<Result<Vec<WindowRecord>, StoreError>>),
    Report(u64, oneshot::Sender<Result<Option<Report>, StoreError>>),
}

/// The way to the thread.
pub(super) struct Keeper {
    /// `None` once it is to end.
    keep: Option<SyncSender<Keep>>,
    thread: Option<JoinHandle<()>>,
    /// Whether the thread has been too slow, and that was told.
    told: bool,
    /// Why the last thing could not be written.
    trouble: Arc<Mutex<Option<String>>>,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(writer: Writer, path: PathBuf) -> std::io::Result<Self> {
        let (keep, kept) = sync_channel(WAITING);
        let trouble = Arc::new(Mutex::new(None));
        let told = Trouble(Arc::clone(&trouble));
        let thread = std::thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || work(writer, &path, &kept, &told))?;
        Ok(Self { keep: Some(keep), thread: Some(thread), told: false, trouble })
    }

    /// Why the history is not written now; `None`: it is.
    pub(super) fn trouble(&self) -> Option<String> {
        let slow = self.told.then(|| "it comes faster than the disk takes it".to_owned());
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone().or(slow)
    }

    /// Keeps a moment. One that finds no room is left out: the next one says the same and more.
    pub(super) fn moment(&mut self, moment: Moment) {
        self.send(Keep::Moment(Box::new(moment)));
    }

    /// Keeps a window, with its report once it has one.
    pub(super) fn window(&mut self, record: WindowRecord, report: Option<Box<Report>>) {
        self.send(Keep::Window(Box::new(record), report));
    }

    /// Looks windows up, the latest first.
    pub(super) fn windows(
        &mut self,
        limit: u32,
    ) -> oneshot::Receiver<Result<Vec<WindowRecord>, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.send(Keep::Windows(limit, answer));
        answered
    }

    /// Looks a window's report up.
    pub(super) fn report(
        &mut self,
        id: u64,
    ) -> oneshot::Receiver<Result<Option<Report>, StoreError>> {
        let (answer, answered) = oneshot::channel();
        self.send(Keep::Report(id, answer));
        answered
    }

    fn send(&mut self, keep: Keep) {
        let Some(way) = &self.keep else { return };
        match way.try_send(keep) {
            Ok(()) => self.told = false,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                if !std::mem::replace(&mut self.told, true) {
                    tracing::warn!(
                        "the history cannot be written as fast as it comes; some is left out"
                    );
                }
            }
        }
    }

    /// Writes what waits, and ends.
    pub(super) fn end(mut self) {
        self.keep = None;
        if let Some(thread) = self.thread.take() {
            // A panic there was told by the thread itself.
            let _ = thread.join();
        }
    }
}

fn work(mut writer: Writer, path: &std::path::Path, kept: &Receiver<Keep>, trouble: &Trouble) {
    while let Ok(keep) = kept.recv() {
        match keep {
            Keep::Moment(moment) => trouble.note(writer.append(&moment)),
            Keep::Window(record, report) => {
                trouble.note(writer.window(&record, report.as_deref()));
            }
            // Whoever asked may have gone.
            Keep::Windows(limit, answer) => {
                let _ = answer.send(History::open(path).and_then(|history| history.windows(limit)));
            }
            Keep::Report(id, answer) => {
                let _ =
                    answer.send(History::open(path).and_then(|history| history.window_report(id)));
            }
        }
    }
}

/// Tells a trouble once, and its end.
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
