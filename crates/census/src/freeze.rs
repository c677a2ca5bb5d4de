//! Holds all threads of a process while it is read, and lets them go again.
//!
//! By ptrace, not by the cgroup freezer: the kernel lets go of whatever a tracer holds when that ends, however it ends. A
//! thread of our own does it, so that even threads that did not stop in time are let go with it. No signal is sent that a
//! parent would see; a process that was stopped before stays stopped. A thread that waits in the kernel resumes its
//! wait; a few calls (`epoll_wait`) give `EINTR` instead, as under a debugger.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use drainprof_process::{Process, ProcessError};
use nix::{
    errno::Errno,
    libc,
    sys::signal::{SigSet, SigmaskHow, Signal, pthread_sigmask},
};

use crate::error::CensusError;

/// The longest time that it may take until all threads stand still.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);
/// The time between two checks whether one does.
const STOP_CHECK_INTERVAL: Duration = Duration::from_micros(100);
/// The event of a stop that is not the delivery of a signal (`linux/ptrace.h`).
const EVENT_STOP: libc::c_int = 128;

/// The longest time for which a thread stands still. Then the process runs on, whatever the reading waits for.
pub(crate) const MAX_FROZEN_TIME: Duration = Duration::from_secs(5);

/// Calls `read` while all threads of a process stand still; also gives the seconds for which they did. They run on after
/// `most`; `stop` is set before, so that nothing is read that has changed.
pub(crate) fn while_frozen<T: Send>(
    process: &Process,
    (most, stop): (Duration, &AtomicBool),
    read: impl FnOnce() -> Result<T, CensusError> + Send,
) -> Result<(T, f64), CensusError> {
    let _untouched = NoJobControl::begin();
    thread::scope(|scope| {
        let broke_off = move |error| CensusError::Process(error_of(process.pid, error));
        let panicked = move || broke_off(io::Error::other("the reading broke off"));
        let work = move || {
            let began = Instant::now();
            let held = Held::all(process)?;
            let (ends, ended) = mpsc::channel::<()>();
            // The thread that holds the others may not wait for the process itself.
            let reading = move || {
                let _ends = ends;
                read()
            };
            let reader = thread::Builder::new().name("reader".to_owned());
            let reader = reader.spawn_scoped(scope, reading).map_err(broke_off)?;
            // It sends nothing; what is waited for is its end.
            let left = most.saturating_sub(began.elapsed());
            if ended.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Timeout) {
                stop.store(true, Ordering::Relaxed);
            }
            drop(held);
            let seconds = began.elapsed().as_secs_f64();
            let result = reader.join().unwrap_or_else(|_| Err(panicked()));
            Ok((result?, seconds))
        };
        let thread = thread::Builder::new().name("freeze".to_owned()).spawn_scoped(scope, work);
        thread.map_err(broke_off)?.join().unwrap_or_else(|_| Err(panicked()))
    })
}

fn error_of(pid: u32, error: io::Error) -> ProcessError {
    ProcessError::from_io(
        pid,
        "stop the threads",
        PathBuf::from(format!("/proc/{pid}/task")),
        error,
    )
}

/// As long as it lives, Ctrl-Z does not stop this process, which would leave the other one standing still.
struct NoJobControl(Option<SigSet>);

impl NoJobControl {
    fn begin() -> Self {
        let stops: SigSet =
            [Signal::SIGTSTP, Signal::SIGTTIN, Signal::SIGTTOU].into_iter().collect();
        let mut before = SigSet::empty();
        let set = pthread_sigmask(SigmaskHow::SIG_BLOCK, Some(&stops), Some(&mut before));
        Self(set.is_ok().then_some(before))
    }
}

impl Drop for NoJobControl {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // It was the mask before, so it is a valid one.
            let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(before), None);
        }
    }
}

/// Threads that stand still, each with the signal that it was about to take; 0: none.
struct Held(BTreeMap<libc::pid_t, libc::c_int>);

impl Held {
    /// Stops all threads of a process, those included that others make meanwhile.
    fn all(process: &Process) -> Result<Self, CensusError> {
        let until = Instant::now() + STOP_TIMEOUT;
        let mut held = Self(BTreeMap::new());
        // A thread that runs may make another one. Where all that are listed stand still, none can.
        loop {
            let threads: Vec<libc::pid_t> =
                process.threads()?.into_iter().map(u32::cast_signed).collect();
            let new: Vec<libc::pid_t> =
                threads.into_iter().filter(|thread| !held.0.contains_key(thread)).collect();
            let seized = seize(process.pid, &new)?;
            if seized.is_empty() {
                break;
            }
            for thread in seized {
                if let Some(signal) = stopped(process.pid, thread, until)? {
                    held.0.insert(thread, signal);
                }
            }
            if Instant::now() > until {
                return Err(CensusError::NotFrozen { pid: process.pid });
            }
        }
        if held.0.is_empty() {
            return Err(ProcessError::Ended { pid: process.pid }.into());
        }
        Ok(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (thread, signal) in &self.0 {
            // A thread that was killed meanwhile is gone.
            let _ = request(libc::PTRACE_DETACH, *thread, *signal);
        }
    }
}

/// Seizes threads and interrupts them; those that are gone are left out.
fn seize(pid: u32, threads: &[libc::pid_t]) -> Result<Vec<libc::pid_t>, CensusError> {
    let mut seized = Vec::with_capacity(threads.len());
    for thread in threads {
        let taken = request(libc::PTRACE_SEIZE, *thread, 0)
            .and_then(|()| request(libc::PTRACE_INTERRUPT, *thread, 0));
        match taken {
            Ok(()) => seized.push(*thread),
            Err(Errno::ESRCH) => {}
            Err(error) => {
                if let Some(tracer) = tracer(pid, *thread) {
                    return Err(CensusError::Traced { pid, tracer });
                }
                return Err(error_of(pid, error.into()).into());
            }
        }
    }
    Ok(seized)
}

/// The process that traces a thread already.
fn tracer(pid: u32, thread: libc::pid_t) -> Option<u32> {
    let number = |path: String, key: &str| {
        let status = std::fs::read_to_string(path).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        line.trim().parse().ok().filter(|number| *number != 0)
    };
    let tracer: u32 = number(format!("/proc/{pid}/task/{thread}/status"), "TracerPid:")?;
    // That is a thread.
    Some(number(format!("/proc/{tracer}/status"), "Tgid:").unwrap_or(tracer))
}

/// Waits until a thread stands still: the signal that it was about to take, or 0. `None`: it has ended.
fn stopped(
    pid: u32,
    thread: libc::pid_t,
    until: Instant,
) -> Result<Option<libc::c_int>, CensusError> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is valid for the call, which writes to nothing else.
        let waited =
            unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
        match waited {
            0 if Instant::now() > until => return Err(CensusError::NotFrozen { pid }),
            0 => thread::sleep(STOP_CHECK_INTERVAL),
            -1 if Errno::last() == Errno::EINTR => {}
            -1 => return Ok(None),
            _ if !libc::WIFSTOPPED(status) => return Ok(None),
            _ if status >> 16 == EVENT_STOP => return Ok(Some(0)),
            _ => return Ok(Some(libc::WSTOPSIG(status))),
        }
    }
}

fn request(request: libc::c_uint, thread: libc::pid_t, data: libc::c_int) -> nix::Result<()> {
    // SAFETY: none of the requests of this file reads or writes memory of ours: the address is 0, the data a number.
    let result =
        unsafe { libc::ptrace(request, thread, 0 as libc::c_long, libc::c_long::from(data)) };
    Errno::result(result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// A process runs on after its time, though the reading has not ended; the reading learns of it before.
    #[test]
    fn runs_on() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        let is_held = || {
            let path = format!("/proc/{}/stat", process.pid);
            let stat = std::fs::read_to_string(path).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('t'))
        };
        let (stop, most) = (AtomicBool::new(false), Duration::from_millis(200));
        let wait = |until: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !until() && began.elapsed() < Duration::from_secs(30) {
                thread::sleep(STOP_CHECK_INTERVAL);
            }
            until()
        };
        let reading = || {
            let was_held = is_held();
            let is_told = wait(&|| stop.load(Ordering::Relaxed));
            Ok((was_held, is_told, wait(&|| !is_held())))
        };
        let (found, seconds) = while_frozen(&process, (most, &stop), reading).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, (true, true, true));
        assert!((0.2..10.0).contains(&seconds), "{seconds}");
    }
}
