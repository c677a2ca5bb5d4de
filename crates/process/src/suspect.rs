//! Whether a process should be asked, and which are not: of those that do not answer (`silent`), each costs one of the
//! threads that may be left behind, users' processes some, and one thread is kept for what cannot wait. Called by
//! `readers`.

use std::fs;

use crate::{
    guard::{self, MAX_STUCK},
    printable,
    silent::{self, MAX_OF_USER, MAX_OF_USERS, user},
    status::number,
};

/// Threads that are left behind from which on processes are not asked that wait in the kernel.
const CAUTIOUS: usize = 2;
/// Threads that are left behind from which on nothing is asked that can wait, nor any process that did not answer before:
/// the last one is for newcomers, and for those that have always answered.
const MAX_SPARE: usize = MAX_STUCK - 1;

/// Whether an answer is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// Which processes there are, and what they execute.
    Now,
    /// What is in their memory, and how much they share of it.
    CanWait,
}

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

/// How often processes were given up so far.
#[must_use]
pub fn times_given_up() -> u64 {
    guard::judge_abandoned();
    silent::times()
}

/// The processes that are left alone now.
#[must_use]
pub fn silent_processes() -> Vec<Silent> {
    guard::judge_abandoned();
    if silent::all().iter().any(|one| !one.is_described) {
        // No caller waits for it: the next message has the names.
        drop(guard::start(describe));
    }
    silent::left_alone(|one| Silent {
        pid: one.pid,
        comm: one.comm.clone(),
        seconds: one.since.elapsed().as_secs(),
    })
}

/// Finds out name and user of those that were given up: their status can be read as a rule. Called on a reader thread.
fn describe() {
    loop {
        let next = silent::all().iter_mut().find(|one| !one.is_described).map(|one| {
            one.is_described = true;
            one.pid
        });
        let Some(pid) = next else { return };
        let Some((status, uid)) = guard::ask_process(pid, || status(pid)) else { continue };
        let comm = status.lines().find_map(|line| line.strip_prefix("Name:"));
        if let Some(one) = silent::all().iter_mut().find(|one| one.pid == pid) {
            one.comm = comm.map(|comm| printable(comm.trim()));
            one.uid = uid;
        }
    }
}

fn status(pid: u32) -> Option<(String, Option<u32>)> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status).into_owned();
    let uid = number(&status, "Uid", 0);
    Some((status, uid))
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
        can_wait: need == Need::CanWait || silent::all().iter().any(|one| one.pid == pid),
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
    let known: Vec<(u32, Option<u32>)> =
        silent::all().iter().map(|one| (one.pid, one.uid)).collect();
    let user_of = |left: u32| {
        let known = known.iter().find(|(pid, _)| *pid == left).and_then(|(_, uid)| *uid);
        // Of those that are not given up yet.
        let read = || guard::ask_process(left, || status(left)).and_then(|(_, uid)| uid);
        known.or_else(read).and_then(user)
    };
    let users: Vec<u32> = left.iter().filter_map(|pid| user_of(*pid)).collect();
    (users.iter().filter(|user| **user == own).count(), users.len())
}

/// Whose process it is, if it is not the system's own.
pub(crate) fn owner(pid: u32) -> Option<u32> {
    user(status(pid)?.1?)
}

/// Tests that count the threads that are left behind, one after the other.
#[cfg(test)]
pub(crate) static ONE_TEST: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;
    use crate::silent::is_silent;

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
        while !silent_processes().is_empty() {
            std::thread::yield_now();
        }
    }
}
