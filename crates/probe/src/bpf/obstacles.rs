//! What keeps the kernel from putting probes in place and from taking them out: processes that hold a lock.
//!
//! Called by `placing`, `link` and `detach`; [`obstacles`] is for reports.

use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    locks::{self, Holder},
    mutex::lock,
};

/// Pause before a probe that cannot be taken out is tried again; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const MAX_PAUSE: Duration = Duration::from_secs(1);
/// For how long a holder of a lock is reported after it was last seen.
const HOLDER_SHOWN_FOR: Duration = Duration::from_secs(60);

/// Since when the kernel has not come back with a probe that it was asked to put in place.
static LATE: Mutex<Option<Instant>> = Mutex::new(None);
/// Since when threads wait for the kernel to take a probe out.
static CLOSING: Mutex<BTreeMap<i32, Instant>> = Mutex::new(BTreeMap::new());
/// Taking a probe out takes longer only where the kernel waits for a process.
const MAX_CLOSING: Duration = Duration::from_secs(5);
/// The processes that were in the way lately, and when each last was.
static IN_THE_WAY: Mutex<BTreeMap<u32, (Holder, Instant)>> = Mutex::new(BTreeMap::new());
/// How often a probe was not put in place for such a reason.
static TIMES: AtomicU64 = AtomicU64::new(0);
/// Since when probes that are to go wait for a process.
static WAITS: Mutex<Option<Instant>> = Mutex::new(None);

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
    let closing =
        lock(&CLOSING).values().map(Instant::elapsed).filter(|time| *time > MAX_CLOSING).max();
    let late = late().max(closing);
    let mut holders = lock(&IN_THE_WAY);
    holders.retain(|_, (_, when)| when.elapsed() < HOLDER_SHOWN_FOR);
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

/// For how long the kernel has not come back with a probe, if it has not.
pub(super) fn late() -> Option<Duration> {
    lock(&LATE).map(|since| since.elapsed())
}

/// Notes whether the kernel has not come back with a probe in time.
pub(super) fn set_late(is_late: bool) {
    let mut late = lock(&LATE);
    *late = is_late.then(|| late.unwrap_or_else(Instant::now));
}

/// Counts a probe that was not put in place for such a reason.
pub(super) fn count_refusal() {
    TIMES.fetch_add(1, Ordering::SeqCst);
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
        pause = (pause * 2).min(MAX_PAUSE);
    }
    *lock(&WAITS) = None;
}

/// A probe in place. When this is dropped it is taken out, once the kernel can do that without waiting for a process.
pub(super) struct Placed {
    file: Arc<File>,
    /// What keeps it in place.
    hold: Option<OwnedFd>,
}

impl Placed {
    pub(super) const fn new(file: Arc<File>, hold: OwnedFd) -> Self {
        Self { file, hold: Some(hold) }
    }

    /// Whether the kernel can take it out now without waiting for a process.
    pub(super) fn can_go(&self) -> bool {
        check(&self.file).is_ok()
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        await_locks(&self.file);
        let thread = nix::unistd::gettid().as_raw();
        lock(&CLOSING).insert(thread, Instant::now());
        drop(self.hold.take());
        lock(&CLOSING).remove(&thread);
    }
}
