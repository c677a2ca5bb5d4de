//! Reading files without waiting for ever: a network file system whose server is gone, or one that lies over another
//! that hangs, must not stop whoever reads.
//!
//! Work that reads files runs on a thread of its own, which says when it asks the kernel for something of a file. One
//! request that takes too long ends the wait: the thread is left behind, and the file's device is given up until the
//! request is answered. FUSE file systems are not read at all (`mounts`). Called by whoever must not be stopped.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc::RecvTimeoutError},
    time::{Duration, Instant},
};

use crate::workers::Workers;

/// Longest time for one request to a file system. A disk that is busy takes less.
const LIMIT: Duration = Duration::from_secs(2);
/// Between two examines a thread that works.
const PAUSE: Duration = Duration::from_millis(100);
/// Threads that are left behind from which on only what certainly does not block is read.
const CAUTIOUS: usize = 4;
/// Most threads that are left behind at a time.
const MAX_STUCK: usize = 8;
/// Threads that read: some beside those that are left behind.
static READERS: Workers = Workers::new("files", 2 * MAX_STUCK);

/// A file does not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stuck {
    /// The kernel has not answered a request about it in time.
    #[error("{file} was not read within {} s: its file system does not answer", LIMIT.as_secs())]
    Hangs {
        /// The file, escaped.
        file: String,
    },
    /// As many threads are stuck as may be.
    #[error("{MAX_STUCK} reads of files hang already: none is begun until one of them ends")]
    TooMany,
    /// There is no thread for it.
    #[error("no thread can be started to read files")]
    NoThread,
}

/// What a thread does now.
#[derive(Debug, Default)]
struct Work {
    /// The file that is read: its device, if that is known, and how messages call it.
    file: (Option<u64>, String),
    /// Since when the kernel is asked for something of it.
    asks: Option<Instant>,
    /// The file that did not answer, if nobody waits any more.
    left: Option<(Option<u64>, String)>,
}

type Shared = Arc<Mutex<Work>>;

thread_local! {
    /// The work of this thread, if it is one that is watched.
    static OWN: RefCell<Option<Shared>> = const { RefCell::new(None) };
}

/// The files that did not answer, with the devices that are given up: one for each thread that is left behind.
static GIVEN_UP: Mutex<Vec<(Option<u64>, String)>> = Mutex::new(Vec::new());

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The files of which a request is not answered yet, for messages.
#[must_use]
pub fn given_up() -> Vec<String> {
    lock(&GIVEN_UP).iter().map(|(_, file)| file.clone()).collect()
}

/// Whether a device is given up.
pub(crate) fn is_given_up(device: u64) -> bool {
    lock(&GIVEN_UP).iter().any(|(known, _)| *known == Some(device))
}

/// Whether so many reads hang that only what certainly does not block is read.
pub(crate) fn is_cautious() -> bool {
    lock(&GIVEN_UP).len() >= CAUTIOUS
}

/// From here on, this thread reads the file that messages call `shown`; what hangs costs the file's device, if given.
pub(crate) fn reads(device: Option<u64>, shown: &str) {
    with_own(|work| work.file = (device, shown.to_owned()));
}

/// Asks the kernel for something of a file.
pub(crate) fn ask<T>(request: impl FnOnce() -> T) -> T {
    with_own(|work| work.asks = Some(Instant::now()));
    let answer = request();
    with_own(|work| work.asks = None);
    answer
}

fn with_own(change: impl FnOnce(&mut Work)) {
    OWN.with_borrow(|own| {
        if let Some(work) = own {
            change(&mut lock(work));
        }
    });
}

/// Does `work`, which reads files, on a thread of its own, and waits for it as long as it gets answers.
pub fn guarded<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Stuck> {
    // Whoever is watched already is not watched twice.
    if OWN.with_borrow(Option::is_some) {
        return Ok(work());
    }
    if lock(&GIVEN_UP).len() >= MAX_STUCK {
        return Err(Stuck::TooMany);
    }
    let shared = Shared::default();
    let own = Arc::clone(&shared);
    let body = move || {
        OWN.set(Some(Arc::clone(&own)));
        let found = work();
        OWN.set(None);
        if let Some(file) = &lock(&own).left {
            let mut given_up = lock(&GIVEN_UP);
            let at = given_up.iter().position(|known| known == file);
            at.map(|at| given_up.swap_remove(at));
        }
        found
    };
    let result = READERS.start(body).map_err(|_| Stuck::NoThread)?;
    loop {
        match result.recv_timeout(PAUSE) {
            Ok(found) => return Ok(found),
            Err(RecvTimeoutError::Disconnected) => return Err(Stuck::NoThread),
            Err(RecvTimeoutError::Timeout) => {}
        }
        let mut work = lock(&shared);
        if work.asks.is_some_and(|since| since.elapsed() > LIMIT) {
            work.left = Some(work.file.clone());
            tracing::warn!(file = work.file.1, "a file system does not answer");
            lock(&GIVEN_UP).push(work.file.clone());
            return Err(Stuck::Hangs { file: work.file.1.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    /// Work that gets its answers is waited for, however long it takes; what asks and gets none is left behind, named,
    /// and its device given up until the answer comes.
    #[test]
    fn left_behind() {
        let busy = guarded(|| {
            let until = Instant::now() + LIMIT + PAUSE * 3;
            while Instant::now() < until {
                ask(|| thread::sleep(PAUSE));
            }
            // On a watched thread, work is not handed on.
            guarded(|| thread::current().name().map(str::to_owned))
        });
        assert_eq!(busy, Ok(Ok(Some("files".to_owned()))));
        assert_eq!(guarded(|| panic!("a defect")), Err::<(), _>(Stuck::NoThread));

        let (answer, waits) = mpsc::channel::<()>();
        let began = Instant::now();
        let stuck = guarded(move || {
            reads(Some(7), "x.so");
            let is_answered = ask(|| waits.recv()).is_ok();
            reads(Some(9), "another file");
            is_answered
        });
        assert_eq!(stuck, Err(Stuck::Hangs { file: "x.so".to_owned() }));
        assert!(began.elapsed() < LIMIT * 3);
        assert!(is_given_up(7) && !is_given_up(8) && !is_cautious());
        assert_eq!(given_up(), ["x.so"]);
        answer.send(()).unwrap();
        while is_given_up(7) {
            assert!(began.elapsed() < LIMIT * 10, "the answer has come");
            thread::yield_now();
        }
        assert_eq!(given_up(), Vec::<String>::new());
    }
}
