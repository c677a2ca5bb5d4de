//! Asking the kernel without waiting for ever. A network file system whose server is gone, a file system that lies over
//! one that hangs, and a process that keeps the kernel from answering do not stop the caller.
//!
//! Work that asks runs on a reader thread, which notes when it asks the kernel for something, and of what. One request
//! that takes too long ends the wait: the thread is left behind, and what did not answer is given up until the request
//! is answered: the device of a file, or the process (`silent`). FUSE file systems are not read at all (`mounts`).
//! `readers` has what loops use.

use std::{
    cell::RefCell,
    fs, io,
    path::Path,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, TryRecvError},
    },
    time::{Duration, Instant},
};

use crate::{silent, workers::Workers};

/// Longest time for one request to a file system. A disk that is busy takes less.
const LIMIT: Duration = Duration::from_secs(2);
/// Longest time for one request about a process whose reader waits in the kernel. One that computes takes its time.
pub(crate) const PROCESS_LIMIT: Duration = Duration::from_millis(500);
/// Longest time that a caller with patience waits for a reader that computes, or waits for a processor.
const COMPUTES: Duration = Duration::from_secs(2);
/// Time between two checks of a thread that reads.
const PAUSE: Duration = Duration::from_millis(50);
/// Threads that are left behind from which on only what certainly does not block is read.
const CAUTIOUS: usize = 4;
/// Most threads that are left behind at a time.
pub(crate) const MAX_STUCK: usize = 8;
/// Threads that read: some beside those that are left behind.
static READERS: Workers = Workers::new("readers", 2 * MAX_STUCK);

/// The kernel does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// The kernel has not answered a request about a file in time.
    #[error("{file} was not read within {} s: its file system does not answer", LIMIT.as_secs())]
    Hangs {
        /// The file, escaped.
        file: String,
    },
    /// The kernel has not answered a request about a process in time, or did not before.
    #[error(
        "the kernel does not answer for process {pid}: a lock of it is held, or its memory is not delivered"
    )]
    Silent {
        /// The process.
        pid: u32,
    },
    /// A process's files take long to read; it is asked again later.
    #[error("the files of process {pid} take long to read: its probes wait for them")]
    Slow {
        /// The process.
        pid: u32,
    },
    /// As many threads are stuck as may be.
    #[error("{MAX_STUCK} reads hang already: none is begun until one of them ends")]
    TooMany,
    /// There is no thread for it.
    #[error("no thread can be started to read")]
    NoThread,
}

/// A request to the kernel.
#[derive(Clone, Copy, Debug)]
struct Request {
    since: Instant,
    /// The process that it is about; `None`: the file that is read.
    process: Option<u32>,
}

/// What does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Left {
    File(Option<u64>, String),
    Process(u32),
}

/// What a thread does now.
#[derive(Debug, Default)]
struct Work {
    /// The file that is read: its device, if that is known, and how messages call it.
    file: (Option<u64>, String),
    /// What the kernel is asked.
    asks: Option<Request>,
    /// The thread.
    thread: i32,
    /// What did not answer.
    left: Option<Left>,
    /// No caller waits for the result.
    is_left: bool,
    is_done: bool,
}

type Shared = Arc<Mutex<Work>>;

thread_local! {
    /// The work of this thread, if it is one that is watched.
    static OWN: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// The files that did not answer, with the devices that are given up: one for each thread that is left behind.
static GIVEN_UP: Mutex<Vec<(Option<u64>, String)>> = Mutex::new(Vec::new());

/// Work that no caller waits for any more, before it is known whether it hangs.
static ABANDONED: Mutex<Vec<Shared>> = Mutex::new(Vec::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of which a request is not answered yet, for messages.
#[must_use]
pub fn given_up() -> Vec<String> {
    judge_abandoned();
    lock(&GIVEN_UP).iter().map(|(_, file)| file.clone()).collect()
}

/// Whether a device is given up.
pub(crate) fn is_given_up(device: u64) -> bool {
    lock(&GIVEN_UP).iter().any(|(known, _)| *known == Some(device))
}

/// Whether so many reads of files hang that only what certainly does not block is read.
pub(crate) fn is_cautious() -> bool {
    lock(&GIVEN_UP).len() >= CAUTIOUS
}

/// Threads that are left behind, or may be.
fn left_behind() -> usize {
    lock(&GIVEN_UP).len() + silent::stuck() + lock(&ABANDONED).len()
}

/// The processes that threads wait for which are left behind, or may be.
pub(crate) fn left_processes() -> Vec<u32> {
    let mut left = silent::waited_for();
    let abandoned = lock(&ABANDONED);
    left.extend(abandoned.iter().filter_map(|work| lock(work).asks?.process));
    left
}

/// From here on, this thread reads the file that messages call `shown`. If it hangs, its device is given up, if given.
pub(crate) fn reads(device: Option<u64>, shown: &str) {
    with_own(|work| work.file = (device, shown.to_owned()));
}

/// Asks the kernel for something of a file.
pub(crate) fn ask<T>(request: impl FnOnce() -> T) -> T {
    ask_of(None, request)
}

/// The same for a part of a file. Where no caller waits for this reader any more, the kernel is not asked and the work ends.
pub(crate) fn ask_file<T>(request: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if is_left() {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "its file takes too long to read"));
    }
    ask(request)
}

/// Asks the kernel for something of a process: its files in `/proc`, its memory.
pub fn ask_process<T>(pid: u32, request: impl FnOnce() -> T) -> T {
    ask_of(Some(pid), request)
}

/// Asks the kernel for what is at a path: something of a process, if that leads into its directory in `/proc`.
pub(crate) fn ask_path<T>(path: &Path, request: impl FnOnce() -> T) -> T {
    // On other threads, requests are not recorded.
    let process = if is_watched() { process_of(path) } else { None };
    ask_of(process, request)
}

/// The process whose directory in `/proc` a path leads into.
fn process_of(path: &Path) -> Option<u32> {
    let mut parts = path.strip_prefix("/proc").ok()?.components();
    parts.next()?.as_os_str().to_str()?.parse().ok()
}

fn ask_of<T>(process: Option<u32>, request: impl FnOnce() -> T) -> T {
    let mut outer = None;
    with_own(|work| outer = work.asks.replace(Request { since: Instant::now(), process }));
    let answer = request();
    // An answer to a part is progress of the whole.
    let outer = outer.map(|outer| Request { since: Instant::now(), ..outer });
    with_own(|work| work.asks = outer);
    answer
}

fn with_own(change: impl FnOnce(&mut Work)) {
    OWN.with_borrow(|own| {
        if let Some(work) = own {
            change(&mut lock(work));
        }
    });
}

/// Whether this thread is a reader already.
pub(crate) fn is_watched() -> bool {
    OWN.with_borrow(Option::is_some)
}

/// Whether no caller waits for this reader any more.
pub(crate) fn is_left() -> bool {
    OWN.with_borrow(|own| own.as_ref().is_some_and(|work| lock(work).is_left))
}

/// Work on a reader thread.
#[derive(Debug)]
pub struct Asked<T> {
    shared: Shared,
    result: Receiver<T>,
    /// Whether it has ended, or was given up.
    is_over: bool,
}

/// Why a caller does not wait any longer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// What it waits for does not answer.
    Stuck(Stuck),
    /// The patience is at an end; the process that it waits for.
    Late(Option<u32>),
}

/// Begins work on a reader thread.
///
/// # Errors
///
/// Too many readers are left behind, or there is no thread.
pub fn start<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Asked<T>, Stuck> {
    judge_abandoned();
    if left_behind() >= MAX_STUCK {
        return Err(Stuck::TooMany);
    }
    let shared = Shared::default();
    let own = Arc::clone(&shared);
    let body = move || {
        lock(&own).thread = nix::unistd::gettid().as_raw();
        OWN.set(Some(Arc::clone(&own)));
        // Also where the work panics.
        let _end = End(own);
        work()
    };
    let result = READERS.start(body).map_err(|_| Stuck::NoThread)?;
    Ok(Asked { shared, result, is_over: false })
}

/// The end of work: the file or process that was given up has answered.
struct End(Shared);

impl Drop for End {
    fn drop(&mut self) {
        OWN.set(None);
        let mut work = lock(&self.0);
        work.is_done = true;
        let left = work.left.take();
        drop(work);
        match left {
            Some(Left::File(device, file)) => {
                let mut given_up = lock(&GIVEN_UP);
                let file = (device, file);
                let at = given_up.iter().position(|known| *known == file);
                at.map(|at| given_up.swap_remove(at));
            }
            Some(Left::Process(pid)) => silent::has_answered(pid),
            None => {}
        }
    }
}

/// Does `work`, which reads files, on a reader thread, and waits for it as long as the kernel answers.
pub fn guarded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Stuck> {
    // Work on a reader thread is watched already.
    if is_watched() {
        return Ok(work());
    }
    let mut asked = start(work)?;
    loop {
        match asked.wait(Duration::MAX) {
            Ok(found) => return Ok(found),
            Err(Unanswered::Stuck(stuck)) => return Err(stuck),
            Err(Unanswered::Late(_)) => {}
        }
    }
}

impl<T> Asked<T> {
    /// The result; `None`: there is none yet. Does not wait.
    pub fn poll(&mut self) -> Option<Result<T, Stuck>> {
        match self.result.try_recv() {
            Ok(found) => {
                self.is_over = true;
                Some(Ok(found))
            }
            Err(TryRecvError::Disconnected) => {
                self.is_over = true;
                Some(Err(Stuck::NoThread))
            }
            Err(TryRecvError::Empty) => {
                let stuck = give_up(&mut lock(&self.shared))?;
                self.is_over = true;
                Some(Err(stuck))
            }
        }
    }

    /// The result, if it comes within `time`; else `None`.
    pub(crate) fn within(&mut self, time: Duration) -> Option<Result<T, Stuck>> {
        let found = match self.result.recv_timeout(time) {
            Ok(found) => Ok(found),
            Err(RecvTimeoutError::Disconnected) => Err(Stuck::NoThread),
            Err(RecvTimeoutError::Timeout) => return self.poll(),
        };
        self.is_over = true;
        Some(found)
    }

    /// The file that it reads, as messages call it.
    pub(crate) fn file(&self) -> String {
        lock(&self.shared).file.1.clone()
    }

    /// Waits for the result, as long as no single request takes more than `patience`; longer where the thread does not
    /// wait in the kernel.
    pub(crate) fn wait(&mut self, patience: Duration) -> Result<T, Unanswered> {
        let mut began = None;
        loop {
            match self.result.recv_timeout(PAUSE.min(patience)) {
                Ok(found) => {
                    self.is_over = true;
                    return Ok(found);
                }
                Err(RecvTimeoutError::Disconnected) => {
                    self.is_over = true;
                    return Err(Unanswered::Stuck(Stuck::NoThread));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            let mut work = lock(&self.shared);
            if let Some(stuck) = give_up(&mut work) {
                self.is_over = true;
                return Err(Unanswered::Stuck(stuck));
            }
            // Where no thread is free, it has not begun.
            let since = match work.asks {
                Some(asks) => {
                    began = None;
                    asks.since
                }
                None => *began.get_or_insert_with(Instant::now),
            };
            let waited = since.elapsed();
            if waited >= patience && (waited >= COMPUTES || !is_running(work.thread)) {
                return Err(Unanswered::Late(work.asks.and_then(|asks| asks.process)));
            }
        }
    }
}

impl<T> Drop for Asked<T> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // In this order, as everywhere.
        let mut abandoned = lock(&ABANDONED);
        let mut work = lock(&self.shared);
        work.is_left = true;
        if !work.is_done {
            abandoned.push(Arc::clone(&self.shared));
        }
    }
}

/// Gives up what work waits for, if that takes too long.
fn give_up(work: &mut Work) -> Option<Stuck> {
    let asks = work.asks.filter(|_| work.left.is_none() && !work.is_done)?;
    match asks.process {
        Some(pid) if asks.since.elapsed() > PROCESS_LIMIT && !is_running(work.thread) => {
            work.left = Some(Left::Process(pid));
            work.is_left = true;
            silent::give_up(pid);
            Some(Stuck::Silent { pid })
        }
        None if asks.since.elapsed() > LIMIT => {
            let (device, file) = work.file.clone();
            work.left = Some(Left::File(device, file.clone()));
            work.is_left = true;
            tracing::warn!(file, "a file system does not answer");
            lock(&GIVEN_UP).push((device, file.clone()));
            Some(Stuck::Hangs { file })
        }
        _ => None,
    }
}

/// Gives up work that hangs and that no caller waits for any more.
pub(crate) fn judge_abandoned() {
    let mut abandoned = lock(&ABANDONED);
    abandoned.retain(|shared| {
        let mut work = lock(shared);
        !work.is_done && give_up(&mut work).is_none()
    });
}

/// Whether a thread of this process computes, or waits for a processor: then it does not hang. A thread that has not
/// begun counts as such.
fn is_running(thread: i32) -> bool {
    if thread == 0 {
        return true;
    }
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R'))
}

#[cfg(test)]
mod tests;
