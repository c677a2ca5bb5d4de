//! Processes that the kernel does not answer for: one of their locks is held, or a page of theirs is not delivered.
//!
//! Any user can bring that about, with a FUSE server or a pager of his own, and even the process's state cannot be read
//! then. A process that did not answer is left alone while its request is not answered, and for a while after that,
//! longer each time. A descriptor holds on to it, so that another one with its number is asked. A process costs one of
//! the threads that may be left behind, users' processes some, and one is kept for what cannot wait. Called by `guard` and
//! `readers`.

use std::{
    collections::BTreeSet,
    fs,
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

use crate::{guard, guard::MAX_STUCK, printable, process::status_word};

/// Threads that are left behind from which on processes are not asked that wait in the kernel.
const CAUTIOUS: usize = 2;
/// Threads that the processes of one user may leave behind, and those of all users. The system's own are not counted
/// against each other.
const MAX_OF_USER: usize = 3;
const MAX_OF_USERS: usize = 5;
/// Threads that are left behind from which on nothing is asked that can wait, nor any process that did not answer before:
/// the last one is for newcomers, and for those that have always answered.
const MAX_SPARE: usize = MAX_STUCK - 1;
/// For how long a process is left alone after its first late answer; then twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// A process that answers for so long begins anew.
const FORGOTTEN: Duration = Duration::from_secs(900);
/// Processes that are remembered.
const MAX_KNOWN: usize = 64;

/// Whether an answer is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Which processes there are, and what they execute.
    Now,
    /// What is in their memory, and how much they share of it.
    CanWait,
}

/// A process that does not answer.
#[derive(Debug)]
struct One {
    pid: u32,
    /// Becomes readable at its end.
    held: Option<OwnedFd>,
    comm: Option<String>,
    uid: Option<u32>,
    /// Whether name and user were asked for.
    is_described: bool,
    /// Threads that wait for an answer.
    stuck: usize,
    /// Since when it does not answer.
    since: Instant,
    /// Until when it is not asked.
    until: Instant,
    /// How often it did not answer.
    times: u32,
}

static ALL: Mutex<Vec<One>> = Mutex::new(Vec::new());
/// How many there are: nearly always none.
static KNOWN: AtomicUsize = AtomicUsize::new(0);
static STUCK: AtomicUsize = AtomicUsize::new(0);
/// How often a process was given up.
static TIMES: AtomicU64 = AtomicU64::new(0);

/// A process that does not answer, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silent {
    /// Its number.
    pub pid: u32,
    /// Its name, escaped; `None`: not known.
    pub comm: Option<String>,
    /// For how long it has not answered, or did not.
    pub seconds: u64,
}

fn all() -> MutexGuard<'static, Vec<One>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads that wait for processes.
pub(crate) fn stuck() -> usize {
    STUCK.load(Ordering::SeqCst)
}

/// How often processes were given up so far.
#[must_use]
pub fn times_given_up() -> u64 {
    guard::judge_abandoned();
    TIMES.load(Ordering::SeqCst)
}

/// The processes that are left alone now.
#[must_use]
pub fn silent() -> Vec<Silent> {
    guard::judge_abandoned();
    if all().iter().any(|one| !one.is_described) {
        // No caller waits for it: the next message has the names.
        drop(guard::start(describe));
    }
    let now = Instant::now();
    let mut all = all();
    tidy(&mut all);
    let left = all.iter().filter(|one| one.stuck > 0 || one.until > now);
    left.map(|one| Silent {
        pid: one.pid,
        comm: one.comm.clone(),
        seconds: one.since.elapsed().as_secs(),
    })
    .collect()
}

/// Whether a process is left alone now.
pub fn is_silent(pid: u32) -> bool {
    if KNOWN.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let mut all = all();
    tidy(&mut all);
    let now = Instant::now();
    all.iter().any(|one| one.pid == pid && (one.stuck > 0 || one.until > now))
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

/// Finds out name and user of those that were given up: their status can be read as a rule. Called on a reader thread.
fn describe() {
    loop {
        let next = all().iter_mut().find(|one| !one.is_described).map(|one| {
            one.is_described = true;
            one.pid
        });
        let Some(pid) = next else { return };
        let Some((status, uid)) = guard::ask_process(pid, || status(pid)) else { continue };
        let comm = status.lines().find_map(|line| line.strip_prefix("Name:"));
        if let Some(one) = all().iter_mut().find(|one| one.pid == pid) {
            one.comm = comm.map(|comm| printable(comm.trim()));
            one.uid = uid;
        }
    }
}

fn status(pid: u32) -> Option<(String, Option<u32>)> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    let uid = status_word(&status, "Uid", 0);
    Some((status, uid))
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

/// What is known when a process is to be asked.
#[derive(Clone, Copy, Debug, Default)]
struct Case {
    /// Threads that are left behind.
    left: usize,
    /// A thread that is left behind waits for this very process.
    is_waited_for: bool,
    /// It waits in the kernel itself.
    in_kernel: bool,
    /// It did not answer before, or what is asked can wait.
    can_wait: bool,
    /// Threads that wait for processes of its user, and of any user; none for the system's own.
    of_user: usize,
    of_users: usize,
}

impl Case {
    /// Whether it may cost another thread.
    const fn is_asked(self) -> bool {
        if self.is_waited_for {
            return false;
        }
        let is_fair = self.of_user < MAX_OF_USER && self.of_users < MAX_OF_USERS;
        let has_room = !self.can_wait || self.left < MAX_SPARE;
        self.left < CAUTIOUS || (!self.in_kernel && is_fair && has_room)
    }
}

/// Whether a process should rather not be asked now: a thread waits for it already, or others do not answer, and it waits
/// in the kernel itself, did not answer before, or users' processes have left enough threads behind. Called on a reader
/// thread.
pub(crate) fn is_suspect(pid: u32, need: Need) -> bool {
    let left = guard::left_processes();
    let case = Case {
        left: left.len(),
        is_waited_for: left.contains(&pid),
        can_wait: need == Need::CanWait || all().iter().any(|one| one.pid == pid),
        ..Case::default()
    };
    if left.len() < CAUTIOUS || !case.is_asked() {
        return !case.is_asked();
    }
    // What cannot be read has ended; the next request shows it.
    let Some((status, uid)) = guard::ask_process(pid, || status(pid)) else { return false };
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    let in_kernel = state.is_some_and(|state| state.trim_start().starts_with('D'));
    let (of_user, of_users) = uid.and_then(user).map_or((0, 0), |own| left_by(&left, own));
    !Case { in_kernel, of_user, of_users, ..case }.is_asked()
}

/// Of the processes that threads wait for: how many are this user's, and how many are any user's.
fn left_by(left: &[u32], own: u32) -> (usize, usize) {
    describe();
    let known: Vec<(u32, Option<u32>)> = all().iter().map(|one| (one.pid, one.uid)).collect();
    let user_of = |left: u32| {
        let known = known.iter().find(|(pid, _)| *pid == left).and_then(|(_, uid)| *uid);
        // Of those that are not given up yet.
        let read = || guard::ask_process(left, || status(left)).and_then(|(_, uid)| uid);
        known.or_else(read).and_then(user)
    };
    let users: Vec<u32> = left.iter().filter_map(|pid| user_of(*pid)).collect();
    (users.iter().filter(|user| **user == own).count(), users.len())
}

/// The user of a process by its id, as far as users are distinguished; `None`: the system's own. Any user may have some ids
/// beyond two bytes for containers, so these count as one.
const fn user(uid: u32) -> Option<u32> {
    match uid {
        0 => None,
        1..=0xffff => Some(uid),
        _ => Some(u32::MAX),
    }
}

/// Whose process it is, if it is not the system's own.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    user(status(pid)?.1?)
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

/// Tests that count the threads that are left behind, one after the other.
#[cfg(test)]
pub(crate) static ONE_TEST: Mutex<()> = Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time, a process is left alone for longer, but not for ever.
    #[test]
    fn pauses() {
        let seconds = [1, 2, 3, 8, 9, 10, 40, u32::MAX].map(|times| pause(times).as_secs());
        assert_eq!(seconds, [1, 2, 4, 128, 256, 300, 300, 300]);
    }

    /// Whatever users' processes do, and whichever do not answer again and again: threads are left for newcomers, and a process
    /// costs one thread at most.
    #[test]
    fn fair() {
        let waited_for = Case { left: 1, is_waited_for: true, ..Case::default() };
        assert!(!waited_for.is_asked(), "one thread waits for it");
        let many = Case { left: CAUTIOUS, ..Case::default() };
        assert!(many.is_asked() && !Case { in_kernel: true, ..many }.is_asked());
        assert!(Case { in_kernel: true, left: CAUTIOUS - 1, ..many }.is_asked());
        // Two users, or one with his containers, take no more than their part.
        const { assert!(MAX_OF_USERS < 2 * MAX_OF_USER && MAX_OF_USERS < MAX_SPARE) };
        assert!(!Case { of_user: MAX_OF_USER, of_users: MAX_OF_USER, ..many }.is_asked());
        assert!(!Case { of_user: 0, of_users: MAX_OF_USERS, ..many }.is_asked());
        assert!(Case { of_user: 2, of_users: MAX_OF_USERS - 1, ..many }.is_asked());
        // Of the system's own: those that did not answer, and what is in their memory, leave room for others.
        let again = Case { left: MAX_SPARE, can_wait: true, ..Case::default() };
        assert!(!again.is_asked() && Case { can_wait: false, ..again }.is_asked());
        assert!(Case { left: MAX_SPARE - 1, ..again }.is_asked());
    }

    /// A process is not asked while a thread waits for it that is not given up yet: it would cost one thread after the
    /// other until none is left.
    #[test]
    fn one_thread_for_one_process() {
        let _alone = ONE_TEST.lock().unwrap();
        let (answer, waits) = std::sync::mpsc::channel::<()>();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let (began, begins) = std::sync::mpsc::channel::<()>();
        let first = guard::start(move || {
            guard::ask_process(pid, || {
                let _ = began.send(());
                waits.recv()
            })
        });
        begins.recv().unwrap();
        assert!(!is_suspect(pid, Need::Now), "its caller waits for it still");
        // The caller goes on: whether it hangs is not known yet.
        drop(first);
        assert!(!is_silent(pid) && guard::left_processes().contains(&pid));
        assert!(is_suspect(pid, Need::Now));
        answer.send(()).unwrap();
        while guard::left_processes().contains(&pid) {
            guard::judge_abandoned();
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        while !silent().is_empty() {
            std::thread::yield_now();
        }
    }

    /// The system's own processes are no user's; ids of containers are one user's.
    #[test]
    fn users() {
        let users = [0, 1000, 65_534, 100_000, 165_535].map(user);
        let shared = Some(u32::MAX);
        assert_eq!(users, [None, Some(1000), Some(65_534), shared, shared]);
    }
}
