//! Requests of loops about processes: on reader threads, with a time limit.
//!
//! A process can keep the kernel from answering for as long as it wants (`silent`). A caller waits for half a second at
//! most for one process, and for a tenth of the time for all of them together: then answers come at once or not at all.
//! The caller waits a little longer for threads that compute, or wait for a processor.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

pub use crate::guard::{Asked, start};
use crate::{
    Process, ProcessError,
    guard::{self, Stuck, Unanswered},
    silent,
    suspect::{self, Need},
};

/// Longest wait for one process: a little more than the time after which it is given up.
const LONGEST: Duration = guard::PROCESS_LIMIT.saturating_add(Duration::from_millis(100));
/// Shortest wait, if the patience is at an end.
const SHORTEST: Duration = Duration::from_millis(20);
/// Callers may wait in vain for one part in so many of the time.
const SHARE: u32 = 10;

/// Time that callers may wait in vain.
pub(crate) struct Patience {
    longest: Duration,
    shortest: Duration,
    share: u32,
    left: Duration,
    counted: Option<Instant>,
}

static PATIENCE_LEFT: Mutex<Patience> = Mutex::new(Patience::new(LONGEST, SHORTEST, SHARE));

impl Patience {
    /// A longest and a shortest wait. Of the time that passes, one part in `share` is for waits in vain.
    pub(crate) const fn new(longest: Duration, shortest: Duration, share: u32) -> Self {
        Self { longest, shortest, share, left: longest, counted: None }
    }

    /// For how long a caller may wait at this time.
    pub(crate) fn at(&mut self, now: Instant) -> Duration {
        let passed = self.counted.replace(now).map_or(Duration::ZERO, |then| now - then);
        self.left = (self.left + passed / self.share).min(self.longest);
        self.left.clamp(self.shortest, self.longest)
    }

    /// A caller has waited in vain since `began`.
    pub(crate) fn waited(&mut self, began: Instant) {
        self.left = self.left.saturating_sub(began.elapsed());
    }
}

fn patience() -> Duration {
    PATIENCE_LEFT.lock().unwrap_or_else(PoisonError::into_inner).at(Instant::now())
}

/// A caller has waited in vain since `began`.
fn waited(began: Instant) {
    PATIENCE_LEFT.lock().unwrap_or_else(PoisonError::into_inner).waited(began);
}

/// Asks the kernel about one process, on a reader thread.
///
/// # Errors
///
/// It does not answer, or did not before; or too many readers are left behind.
pub fn ask<T: Send + 'static>(
    pid: u32,
    request: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Stuck> {
    if guard::is_watched() {
        return Ok(guard::ask_process(pid, request));
    }
    let silent = Stuck::Silent { pid };
    if silent::is_silent(pid) {
        return Err(silent);
    }
    let began = Instant::now();
    let mut asked = start(move || {
        (!suspect::is_suspect(pid, Need::Now)).then(|| guard::ask_process(pid, request))
    })?;
    match asked.wait(patience()) {
        Ok(found) => found.ok_or(silent),
        Err(unanswered) => {
            waited(began);
            Err(match unanswered {
                Unanswered::Stuck(stuck) => stuck,
                Unanswered::Late(_) => silent,
            })
        }
    }
}

/// Whether the memory of a process may be read on this reader thread: not where that might cost a thread that others need.
#[must_use]
pub fn may_read(pid: u32) -> bool {
    !suspect::is_suspect(pid, Need::CanWait)
}

/// Opens process `pid`, or says why it cannot be traced.
///
/// # Errors
///
/// It cannot be traced, or the kernel does not answer for it.
pub fn open(pid: u32) -> Result<Process, ProcessError> {
    ask(pid, move || Process::open(pid))?
}

/// Asks the kernel about many processes, one after the other, on one reader thread as long as they answer. Returns the
/// answers of those that do.
pub fn each<K: Copy + Send + 'static, T: Send + 'static>(
    processes: impl IntoIterator<Item = (u32, K)>,
    request: impl Fn(u32, K) -> T + Send + Sync + 'static,
) -> Vec<(u32, T)> {
    each_if(Need::Now, processes, request)
}

/// The same for what is in their memory: it leaves a thread for what cannot wait.
pub fn each_memory<K: Copy + Send + 'static, T: Send + 'static>(
    processes: impl IntoIterator<Item = (u32, K)>,
    request: impl Fn(u32, K) -> T + Send + Sync + 'static,
) -> Vec<(u32, T)> {
    each_if(Need::CanWait, processes, request)
}

fn each_if<K: Copy + Send + 'static, T: Send + 'static>(
    need: Need,
    processes: impl IntoIterator<Item = (u32, K)>,
    request: impl Fn(u32, K) -> T + Send + Sync + 'static,
) -> Vec<(u32, T)> {
    let mut waiting: VecDeque<(u32, K)> =
        processes.into_iter().filter(|(pid, _)| !silent::is_silent(*pid)).collect();
    if guard::is_watched() {
        let answer = |(pid, more)| (pid, guard::ask_process(pid, || request(pid, more)));
        return waiting.into_iter().map(answer).collect();
    }
    let request = Arc::new(request);
    let answers = Arc::new(Mutex::new(Vec::with_capacity(waiting.len())));
    while !waiting.is_empty() {
        let began = Instant::now();
        let batch: Vec<(u32, K)> = waiting.iter().copied().collect();
        let (request, into) = (Arc::clone(&request), Arc::clone(&answers));
        let asked = start(move || {
            for (pid, more) in batch {
                if suspect::is_suspect(pid, need) {
                    continue;
                }
                let answer = guard::ask_process(pid, || request(pid, more));
                let mut into = into.lock().unwrap_or_else(PoisonError::into_inner);
                // An answer that comes too late is dropped.
                if guard::is_left() {
                    return;
                }
                into.push((pid, answer));
            }
        });
        let Ok(mut asked) = asked else { break };
        let at = match asked.wait(patience()) {
            Ok(()) => break,
            Err(Unanswered::Stuck(Stuck::Silent { pid }) | Unanswered::Late(Some(pid))) => pid,
            Err(Unanswered::Stuck(_) | Unanswered::Late(None)) => {
                waited(began);
                break;
            }
        };
        waited(began);
        drop(asked);
        // Continues behind the process that does not answer.
        while waiting.pop_front().is_some_and(|(pid, _)| pid != at) {}
    }
    let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *answers)
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    /// Processes that answer are reported beside one that does not. That one is left alone until it has answered, and for
    /// a while longer. Its late answer is not taken for an answer to a later request.
    #[test]
    fn some_are_silent() {
        let _alone = suspect::ONE_TEST.lock().unwrap();
        let (answer, waits) = mpsc::channel::<()>();
        let waits = Mutex::new(Some(waits));
        let own = std::process::id();
        let began = Instant::now();
        let answers = each([(1, 'a'), (own, 'b'), (2, 'c')], move |pid, more| {
            if pid == own {
                let waits = waits.lock().unwrap().take().unwrap();
                let _ = waits.recv();
            }
            (pid, more)
        });
        assert_eq!(answers, [(1, (1, 'a')), (2, (2, 'c'))]);
        assert!(began.elapsed() < LONGEST * 4, "{:?}", began.elapsed());
        let named =
            |all: Vec<suspect::Silent>| all.into_iter().map(|one| one.pid).collect::<Vec<_>>();
        assert_eq!(named(suspect::silent_processes()), [own]);
        assert_eq!(ask(own, || 7), Err(Stuck::Silent { pid: own }));
        assert_eq!(ask(1, || 7), Ok(7));
        assert!(suspect::times_given_up() > 0);
        answer.send(()).unwrap();
        while silent::stuck() > 0 {
            assert!(began.elapsed() < LONGEST * 20, "it has answered");
            thread::yield_now();
        }
        assert_eq!(ask(own, || 7), Err(Stuck::Silent { pid: own }), "for a while");
        while named(suspect::silent_processes()) == [own] {
            assert!(began.elapsed() < LONGEST * 20, "the while is over");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(ask(own, || 7), Ok(7));
    }

    /// Waiting in vain takes a tenth of the time at most, after a second of it.
    #[test]
    fn patience_ends() {
        let mut patience = Patience::new(LONGEST, SHORTEST, SHARE);
        let began = Instant::now();
        assert_eq!(patience.at(began), LONGEST);
        patience.left = Duration::ZERO;
        assert_eq!(patience.at(began), SHORTEST);
        assert_eq!(patience.at(began + Duration::from_secs(2)), Duration::from_millis(200));
        patience.at(began + Duration::from_secs(600));
        assert_eq!(patience.left, LONGEST);
    }
}
