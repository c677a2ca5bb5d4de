//! Which processes the kernel does not answer for: one of their locks is held, or a page of theirs is not delivered.
//!
//! Any user can cause that, with a FUSE server or a pager of their own, and even the process's state cannot be read then.
//! A process that did not answer is left alone while its request is not answered, and for a while after that, longer
//! each time. A descriptor holds on to it, so that another process with its number is asked. A register that asks
//! nothing: `guard` writes it, `suspect` decides by it.

use std::{
    collections::BTreeSet,
    os::fd::{AsFd as _, OwnedFd},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

/// Threads that the processes of one user may leave behind, and those of all users. The system's own are not counted
/// against each other.
pub(crate) const MAX_OF_USER: usize = 3;
pub(crate) const MAX_OF_USERS: usize = 5;
/// For how long a process is left alone after its first late answer; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A process that answers for so long begins anew.
const FORGOTTEN: Duration = Duration::from_secs(900);
/// Processes that are remembered.
const MAX_KNOWN: usize = 64;

/// A process that does not answer.
#[derive(Debug)]
pub(crate) struct One {
    pub(crate) pid: u32,
    /// Becomes readable at its end.
    held: Option<OwnedFd>,
    pub(crate) comm: Option<String>,
    pub(crate) uid: Option<u32>,
    /// Whether name and user were asked for.
    pub(crate) is_described: bool,
    /// Threads that wait for an answer.
    stuck: usize,
    /// Since when it does not answer.
    pub(crate) since: Instant,
    /// Until when it is not asked.
    until: Instant,
    /// How often it did not answer.
    times: u32,
}

impl One {
    fn is_left_alone(&self) -> bool {
        self.stuck > 0 || self.until > Instant::now()
    }
}

static ALL: Mutex<Vec<One>> = Mutex::new(Vec::new());
/// How many there are: nearly always none.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static STUCK: AtomicUsize = AtomicUsize::new(0);
/// How often a process was given up.
static TIMES: AtomicU64 = AtomicU64::new(0);

/// All that are remembered.
pub(crate) fn all() -> MutexGuard<'static, Vec<One>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that wait for processes.
pub(crate) fn stuck() -> usize {
    STUCK.load(Ordering::SeqCst)
}

/// How often processes were given up so far.
pub(crate) fn times() -> u64 {
    TIMES.load(Ordering::SeqCst)
}

/// Those that are left alone now, each as `shown`.
pub(crate) fn left_alone<T>(shown: impl Fn(&One) -> T) -> Vec<T> {
    let mut all = all();
    tidy(&mut all);
    all.iter().filter(|one| one.is_left_alone()).map(shown).collect()
}

/// Whether a process is left alone now.
pub fn is_silent(pid: u32) -> bool {
    // Nearly always, there is none.
    KNOWN.load(Ordering::SeqCst) > 0 && left_alone(|one| one.pid).contains(&pid)
}

/// Forgets those that have ended, and those that have answered for long.
fn tidy(all: &mut Vec<One>) {
    all.retain(|one| {
        let is_over = one.stuck == 0 && one.until.elapsed() > FORGOTTEN;
        !is_over && (one.stuck > 0 || !has_ended(one))
    });
    KNOWN.store(all.len(), Ordering::SeqCst);
}

fn has_ended(one: &One) -> bool {
    let Some(held) = &one.held else { return false };
    let mut fds = [PollFd::from_borrowed_fd(held.as_fd(), PollFlags::IN)];
    let none = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&none)).is_ok_and(|ready| ready > 0)
}

/// A process does not answer.
pub(crate) fn give_up(pid: u32) {
    TIMES.fetch_add(1, Ordering::SeqCst);
    STUCK.fetch_add(1, Ordering::SeqCst);
    let mut all = all();
    tidy(&mut all);
    let now = Instant::now();
    if let Some(one) = all.iter_mut().find(|one| one.pid == pid) {
        one.stuck += 1;
        one.times += 1;
        if one.stuck == 1 {
            one.since = now;
        }
        return;
    }
    if all.len() >= MAX_KNOWN
        && let Some(at) = all.iter().position(|one| one.stuck == 0)
    {
        all.remove(at);
    }
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let held = number.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    all.push(One {
        pid,
        held,
        comm: None,
        uid: None,
        is_described: false,
        stuck: 1,
        since: now,
        until: now,
        times: 1,
    });
    KNOWN.store(all.len(), Ordering::SeqCst);
    tracing::warn!(pid, "the kernel does not answer for a process: it is left alone");
}

/// A process has answered late: it is left alone for a while.
pub(crate) fn has_answered(pid: u32) {
    STUCK.fetch_sub(1, Ordering::SeqCst);
    if let Some(one) = all().iter_mut().find(|one| one.pid == pid) {
        one.stuck = one.stuck.saturating_sub(1);
        one.until = Instant::now() + pause(one.times);
    }
}

fn pause(times: u32) -> Duration {
    let doubled = times.saturating_sub(1).min(16);
    FIRST_PAUSE.saturating_mul(1 << doubled).min(LONGEST_PAUSE)
}

/// The user of a process by its id, as far as users are distinguished; `None`: the system's own. Any user may have some ids
/// beyond two bytes for containers, so these count as one.
pub(crate) const fn user(uid: u32) -> Option<u32> {
    match uid {
        0 => None,
        1..=0xffff => Some(uid),
        _ => Some(u32::MAX),
    }
}

/// Whether processes are not asked because of others of the same user.
#[must_use]
pub fn is_user_silenced() -> bool {
    let all = all();
    let users = all.iter().filter_map(|one| user(one.uid?)).collect::<BTreeSet<u32>>();
    let of_user = |own: u32| {
        let of_user = all.iter().filter(|one| one.uid.and_then(user) == Some(own));
        of_user.map(|one| one.stuck).sum::<usize>()
    };
    let stuck: Vec<usize> = users.into_iter().map(of_user).collect();
    stuck.iter().any(|one| *one >= MAX_OF_USER) || stuck.iter().sum::<usize>() >= MAX_OF_USERS
}

/// The processes that threads wait for, each as often.
pub(crate) fn waited_for() -> Vec<u32> {
    let all = all();
    all.iter().flat_map(|one| std::iter::repeat_n(one.pid, one.stuck)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time, a process is left alone for longer, but not for ever.
    #[test]
    fn pauses() {
        let seconds = [1, 2, 3, 8, 9, 10, 40, u32::MAX].map(|times| pause(times).as_secs());
        assert_eq!(seconds, [1, 2, 4, 128, 256, 300, 300, 300]);
    }

    /// The system's own processes are no user's; ids of containers are one user's.
    #[test]
    fn users() {
        let users = [0, 1000, 65_534, 100_000, 165_535].map(user);
        let shared = Some(u32::MAX);
        assert_eq!(users, [None, Some(1000), Some(65_534), shared, shared]);
    }
}
