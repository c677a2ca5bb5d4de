//! Putting probes in place, and taking them out, without waiting for ever.
//!
//! The kernel may wait for a process without end meanwhile (`locks`), and nothing can end that wait. So it is asked only
//! where no lock is held that it would wait for. Between that check and the call a process can still take its lock: then
//! a thread of our own hangs, no other probe is tried until it does not any more, and the caller goes on.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{RecvTimeoutError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use drainprof_process::Workers;

use super::{
    Detaching, lock,
    locks::{self, Holder},
};

/// The kernel puts one probe in place at a time, whoever asks.
static PLACER: Workers = Workers::new("attach", 1);
/// Pauses before a probe that cannot be taken out is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A refusal is reported for so long, unless it is repeated.
const REPORTED: Duration = Duration::from_secs(60);

/// Since when the kernel has not come back with a probe that it was asked to put in place.
static LATE: Mutex<Option<Instant>> = Mutex::new(None);
/// Since when threads wait for the kernel to take a probe out.
static CLOSING: Mutex<BTreeMap<i32, Instant>> = Mutex::new(BTreeMap::new());
/// Taking one out takes longer only where the kernel waits for a process.
const LONG: Duration = Duration::from_secs(5);
/// Who was in the way lately, and when that was last so.
static IN_THE_WAY: Mutex<BTreeMap<u32, (Holder, Instant)>> = Mutex::new(BTreeMap::new());
/// How often a probe was not put in place for such a reason.
static TIMES: AtomicU64 = AtomicU64::new(0);
/// Since when probes that are to go wait for a process.
static WAITS: Mutex<Option<Instant>> = Mutex::new(None);

/// Why a probe is not in place.
#[derive(Debug)]
pub(super) enum Refused {
    /// A process holds a lock that the kernel would wait for.
    Held(Holder),
    /// The kernel has not come back with this probe or an earlier one, for so long.
    Late(Duration),
    /// What the kernel says.
    Kernel(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Kernel(error)
    }
}

/// What stands between probes and their places.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Obstacles {
    /// Processes that were in the way lately.
    pub holders: Vec<Holder>,
    /// For how long the kernel has not come back with a probe that it puts in place or takes out.
    pub late: Option<Duration>,
    /// Processes that it may wait for.
    pub suspects: Vec<String>,
    /// How often a probe was not put in place for such reasons.
    pub times: u64,
}

/// What stands between probes and their places now. Waits for nothing.
#[must_use]
pub fn obstacles() -> Obstacles {
    let leaving = lock(&CLOSING).values().map(Instant::elapsed).filter(|time| *time > LONG).max();
    let late = lock(&LATE).map(|since| since.elapsed()).max(leaving);
    let mut holders = lock(&IN_THE_WAY);
    holders.retain(|_, (_, when)| when.elapsed() < REPORTED);
    Obstacles {
        holders: holders.values().map(|(holder, _)| holder.clone()).collect(),
        late,
        suspects: if late.is_some() { locks::suspects() } else { Vec::new() },
        times: TIMES.load(Ordering::SeqCst),
    }
}

/// For how long probes that are to go have waited for a process.
pub(super) fn waits() -> Option<Duration> {
    lock(&WAITS).map(|since| since.elapsed())
}

/// Whether probes that are to go wait for a process.
#[must_use]
pub fn is_detach_put_off() -> bool {
    waits().is_some()
}

/// Whether the kernel can work on `file` now without waiting for a process.
pub(super) fn check(file: &File) -> Result<(), Holder> {
    let checked = locks::check(file);
    let mut holders = lock(&IN_THE_WAY);
    if let Err(holder) = &checked {
        holders.insert(holder.pid, (holder.clone(), Instant::now()));
    }
    checked
}

/// Where a caller and the thread that works for it meet.
#[derive(Default)]
struct Meeting {
    /// The caller has gone on.
    is_left: bool,
}

/// A probe that came too late, with what it may use: it is taken out when this is dropped.
struct TooLate<T> {
    file: Arc<File>,
    hold: Option<OwnedFd>,
    _uses: T,
}

impl<T> Drop for TooLate<T> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            remove(&self.file, hold);
        }
    }
}

/// Asks the kernel to put a probe into `file`, by `work`, and waits for it as long as `patience`. What comes after that is
/// taken out again, and `uses` what it needs until then.
pub(super) fn place<T: Send + 'static>(
    file: &Arc<File>,
    patience: Duration,
    uses: T,
    work: impl FnOnce() -> io::Result<OwnedFd> + Send + 'static,
) -> Result<OwnedFd, Refused> {
    let refused = |refused| {
        TIMES.fetch_add(1, Ordering::SeqCst);
        Err(refused)
    };
    if let Some(since) = *lock(&LATE) {
        return refused(Refused::Late(since.elapsed()));
    }
    let (done, result) = sync_channel(1);
    let meeting = Arc::new(Mutex::new(Meeting::default()));
    let (object, met) = (Arc::clone(file), Arc::clone(&meeting));
    let work = move || {
        let placed = check(&object).map_err(Refused::Held).and_then(|()| Ok(work()?));
        let meeting = lock(&met);
        if !meeting.is_left {
            // The caller waits until it has left.
            let _ = done.send(placed);
            return;
        }
        drop(meeting);
        *lock(&LATE) = None;
        if let Ok(hold) = placed {
            let late = TooLate { file: object, hold: Some(hold), _uses: uses };
            drop(Detaching::begin(late, ()));
        }
    };
    PLACER.start(work)?;
    let placed = match result.recv_timeout(patience) {
        Err(RecvTimeoutError::Timeout) => {
            let mut meeting = lock(&meeting);
            // It may have come meanwhile.
            result.try_recv().unwrap_or_else(|_| {
                meeting.is_left = true;
                lock(&LATE).get_or_insert_with(Instant::now);
                tracing::warn!(
                    "the kernel does not come back with a probe: it waits for a process"
                );
                Err(Refused::Late(patience))
            })
        }
        received => {
            received.unwrap_or_else(|_| Err(Refused::Kernel(io::ErrorKind::BrokenPipe.into())))
        }
    };
    match placed {
        Err(Refused::Held(_) | Refused::Late(_)) => placed.or_else(refused),
        placed => placed,
    }
}

/// Takes a probe out of `file`, once the kernel can do that without waiting for a process.
pub(super) fn remove(file: &File, hold: OwnedFd) {
    await_locks(file);
    let thread = nix::unistd::gettid().as_raw();
    lock(&CLOSING).insert(thread, Instant::now());
    drop(hold);
    lock(&CLOSING).remove(&thread);
}

/// Waits until the kernel can take a probe out of `file` without waiting for a process.
fn await_locks(file: &File) {
    let mut pause = FIRST_PAUSE;
    while let Err(holder) = check(file) {
        if lock(&WAITS).is_none() {
            tracing::warn!("probes stay in place: {holder}");
        }
        lock(&WAITS).get_or_insert_with(Instant::now);
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    *lock(&WAITS) = None;
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn descriptor() -> io::Result<OwnedFd> {
        Ok(File::open("/dev/null")?.into())
    }

    /// A call that does not come back costs its caller the patience, and no later one anything, until it has come back.
    #[test]
    fn late() {
        const PATIENCE: Duration = Duration::from_millis(100);
        const LONGEST: Duration = Duration::from_secs(30);
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(4096).unwrap();
        assert!(place(&file, LONGEST, (), descriptor).is_ok());
        let (answer, waits) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = waits.recv();
            descriptor()
        };
        let before = obstacles().times;
        assert!(matches!(place(&file, PATIENCE, (), hangs), Err(Refused::Late(_))));
        let began = Instant::now();
        assert!(matches!(place(&file, LONGEST, (), descriptor), Err(Refused::Late(_))));
        assert!(began.elapsed() < LONGEST / 2);
        assert!(obstacles().late.is_some() && obstacles().times >= before + 2);
        answer.send(()).unwrap();
        while obstacles().late.is_some() {
            assert!(began.elapsed() < LONGEST, "it has come back");
            thread::yield_now();
        }
        assert!(place(&file, LONGEST, (), descriptor).is_ok());
        let kernel = place(&file, LONGEST, (), || Err(io::ErrorKind::NotFound.into()));
        assert!(matches!(kernel, Err(Refused::Kernel(_))), "{kernel:?}");
    }
}
