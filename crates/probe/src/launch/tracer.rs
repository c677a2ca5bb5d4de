//! The tracer thread: one loop over the stops of all its tasks and the requests of the owner.
//!
//! A task (a thread, in the kernel's sense) is running, held for the owner, or listening in a job control
//! stop. Threads are traced besides processes only because any of them may fork or exec; they are never
//! reported. Nothing here waits for the owner: an event that does not fit lets its process run on.

use std::{
    collections::HashMap,
    fs,
    process::ExitStatus,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, TryRecvError},
    },
    time::{Duration, Instant},
};

use nix::{libc, sys::ptrace, unistd::Pid};
use tokio::sync::mpsc::{Sender, error::TrySendError};

use super::{
    Disposition, LaunchEvent, Origin, TraceError,
    entry::{self, Breakpoint},
    handle::Command,
    sys::{self, Stop, Waited},
    wake::Sleeper,
};

/// How many tasks are traced at once; children beyond that run untraced.
pub(super) const MAX_TASKS: usize = 4096;

/// Woken by nothing, the thread checks this often: a guard against a lost SIGCHLD (another library's
/// handler, or a mask), not a means of progress.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The same while the last event waits for room in the channel, whose reader cannot wake us.
const SEND_RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// What the owner chose for the whole launch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    pub(super) follow_forks: bool,
    pub(super) hold_limit: Duration,
}

/// Where events go.
#[derive(Debug)]
pub(super) struct Outlet {
    events: Sender<LaunchEvent>,
    lost: Arc<AtomicU64>,
}

impl Outlet {
    pub(super) fn new(events: Sender<LaunchEvent>, lost: Arc<AtomicU64>) -> Self {
        Self { events, lost }
    }

    /// Whether the event reached the channel.
    fn send(&self, event: LaunchEvent) -> bool {
        let sent = self.events.try_send(event).is_ok();
        if !sent {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        sent
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Made by a traced task, which is the value; its first stop has not been seen.
    Newborn(Pid),
    Running,
    Listening,
    Held(Instant),
}

#[derive(Debug)]
struct Task {
    process: Pid,
    state: State,
    /// To be detached at its next stop.
    leaving: bool,
}

struct Tracer {
    command: Pid,
    settings: Settings,
    outlet: Outlet,
    tasks: HashMap<Pid, Task>,
    /// Breakpoints that are not behind their process yet.
    breakpoints: HashMap<Pid, Breakpoint>,
    /// The command's own image has been executed.
    executed: bool,
    /// The owner's side of the start is done, so ends are ours to reap.
    started: bool,
    ended: Option<ExitStatus>,
}

/// Runs until the command has ended and nothing is traced.
pub(super) fn run(
    command: Option<Pid>,
    mut sleeper: Sleeper,
    requests: &mpsc::Receiver<Command>,
    outlet: Outlet,
    settings: Settings,
) {
    let Some(command) = command else { return };
    let mut tracer = Tracer {
        command,
        settings,
        outlet,
        tasks: HashMap::from([(
            command,
            Task { process: command, state: State::Running, leaving: false },
        )]),
        breakpoints: HashMap::new(),
        executed: false,
        started: false,
        ended: None,
    };
    let mut reported = false;
    loop {
        loop {
            match requests.try_recv() {
                Ok(Command::Started) => tracer.started = true,
                Ok(Command::Resume(pid, disposition)) => tracer.resume(pid, disposition),
                Ok(Command::Release) => tracer.release_all(),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) if tracer.started => {
                    tracer.release_all();
                    break;
                }
                Ok(Command::NotStarted) | Err(TryRecvError::Disconnected) => return,
            }
        }
        tracer.look_at_tasks();
        tracer.let_go_of_forgotten();
        if !reported && let Some(status) = tracer.ended {
            reported = tracer.report_end(status);
        }
        if reported && tracer.tasks.is_empty() {
            return;
        }
        let unsent = !reported && tracer.ended.is_some();
        sleeper.sleep(if unsent { SEND_RETRY_INTERVAL } else { tracer.next_deadline() });
    }
}

impl Tracer {
    /// Takes in all that happened to the tasks, until nothing is new.
    fn look_at_tasks(&mut self) {
        loop {
            let mut quiet = true;
            let mut tids: Vec<Pid> = self.tasks.keys().copied().collect();
            if self.ended.is_none() && !self.tasks.contains_key(&self.command) {
                tids.push(self.command);
            }
            for tid in tids {
                match sys::poll_task(tid, self.started) {
                    Waited::Nothing => continue,
                    // Without asking for ends, the kernel calls a child that ended no child of ours.
                    Waited::Gone if !self.started => continue,
                    Waited::Stopped(stop) => self.stopped(tid, stop),
                    Waited::Ended(status) => self.left(tid, Some(status)),
                    Waited::Gone => self.left(tid, None),
                }
                quiet = false;
            }
            if quiet {
                return;
            }
        }
    }

    fn left(&mut self, tid: Pid, status: Option<ExitStatus>) {
        let task = self.tasks.remove(&tid);
        self.breakpoints.remove(&tid);
        if tid == self.command {
            // A command that other code has reaped has ended all the same; how is not known.
            self.ended = Some(status.unwrap_or_default());
        } else if let Some(status) = status
            && task.is_some_and(|task| task.process == tid)
        {
            self.outlet.send(LaunchEvent::Exited { pid: number(tid), status });
        }
    }

    fn stopped(&mut self, tid: Pid, stop: Stop) {
        let Some(task) = self.tasks.get_mut(&tid) else {
            // A thread that was about to be let go executed, and so became the command itself.
            gone_is_fine(sys::detach(
                tid,
                if let Stop::Signal(signal) = stop { signal } else { 0 },
            ));
            return;
        };
        let (process, leaving) = (task.process, task.leaving);
        let before = std::mem::replace(&mut task.state, State::Running);
        if let State::Newborn(parent) = before
            && process == tid
        {
            self.born(tid, parent);
            return;
        }
        match stop {
            Stop::Exec => self.executed(tid),
            Stop::Fork | Stop::Vfork | Stop::Clone => {
                self.gave_birth(tid, stop);
                self.go_on(tid, 0);
            }
            Stop::Group if !leaving => {
                self.set_state(tid, State::Listening);
                gone_is_fine(sys::listen(tid));
            }
            Stop::Group | Stop::Trap | Stop::Unknown => self.go_on(tid, 0),
            Stop::Signal(libc::SIGTRAP)
                if self.breakpoints.get(&process).is_some_and(|at| at.is_hit_by(tid)) =>
            {
                self.at_entry(tid, process);
            }
            Stop::Signal(signal) => self.go_on(tid, signal),
        }
    }

    /// A new image: not one instruction of it has run, and its loader has not either.
    fn executed(&mut self, pid: Pid) {
        if let Ok(before) = ptrace::getevent(pid) {
            // Another thread than the leader called exec, and has taken the leader's number over.
            let before = Pid::from_raw(before as i32);
            if before != pid && self.tasks.get(&before).is_some_and(|task| task.process == pid) {
                self.tasks.remove(&before);
            }
        }
        self.breakpoints.remove(&pid);
        if !self.is_leaving(pid) {
            match entry::plant(pid) {
                Ok(breakpoint) => drop(self.breakpoints.insert(pid, breakpoint)),
                Err(error) => {
                    self.executed = true;
                    self.outlet.send(LaunchEvent::Error { pid: number(pid), error });
                }
            }
        }
        self.go_on(pid, 0);
    }

    fn at_entry(&mut self, tid: Pid, process: Pid) {
        if let Some(mut breakpoint) = self.breakpoints.remove(&process)
            && let Err(errno) = breakpoint.rewind(tid)
        {
            let error = TraceError::Unplant(errno);
            self.outlet.send(LaunchEvent::Error { pid: number(process), error });
        }
        let first = !std::mem::replace(&mut self.executed, true);
        let origin = if first && process == self.command { Origin::Command } else { Origin::Exec };
        self.hold(process, LaunchEvent::AtEntry { pid: number(process), origin });
    }

    /// Notes the child that the stopped task `tid` just made; its own first stop comes separately.
    fn gave_birth(&mut self, tid: Pid, stop: Stop) {
        let Ok(child) = ptrace::getevent(tid) else { return };
        let child = Pid::from_raw(child as i32);
        let Some(task) = self.tasks.get(&tid) else { return };
        let (parent, mut leaving) = (task.process, task.leaving);
        let is_thread = stop == Stop::Clone && process_of(child) != Some(child);
        let process = if is_thread { parent } else { child };
        if self.tasks.len() >= MAX_TASKS && !leaving {
            leaving = true;
            let error = TraceError::TooManyTasks;
            self.outlet.send(LaunchEvent::Error { pid: number(process), error });
        }
        if !is_thread
            && stop != Stop::Vfork
            && let Some(breakpoint) = self.breakpoints.get(&parent)
        {
            // The child has a copy of the memory, and so of the breakpoint.
            self.breakpoints.insert(child, breakpoint.clone());
        }
        self.tasks.insert(child, Task { process, state: State::Newborn(parent), leaving });
    }

    /// A new process stands before its first instruction.
    fn born(&mut self, child: Pid, parent: Pid) {
        if !self.settings.follow_forks {
            self.set_leaving(child);
        }
        self.hold(child, LaunchEvent::Forked { parent: number(parent), child: number(child) });
    }

    /// Holds a stopped process for the owner, unless it is to leave or the owner cannot be reached.
    fn hold(&mut self, pid: Pid, event: LaunchEvent) {
        if !self.is_leaving(pid) && self.outlet.send(event) {
            self.set_state(pid, State::Held(Instant::now() + self.settings.hold_limit));
        } else {
            self.go_on(pid, 0);
        }
    }

    /// Lets a stopped task run, or go for good if it is to leave.
    fn go_on(&mut self, tid: Pid, signal: libc::c_int) {
        let Some(task) = self.tasks.get_mut(&tid) else { return };
        task.state = State::Running;
        if !task.leaving {
            gone_is_fine(sys::cont(tid, signal));
            return;
        }
        let process = task.process;
        if let Some(breakpoint) = self.breakpoints.get_mut(&process) {
            if breakpoint.is_hit_by(tid) {
                // Its SIGTRAP is still to come, and would kill it once it is not traced any more.
                gone_is_fine(sys::cont(tid, signal));
                return;
            }
            gone_is_fine(breakpoint.remove(tid));
        }
        if sys::detach(tid, signal).is_ok() {
            self.tasks.remove(&tid);
            if tid == process {
                self.breakpoints.remove(&process);
            }
        }
    }

    fn resume(&mut self, pid: u32, disposition: Disposition) {
        let Some(pid) = i32::try_from(pid).ok().map(Pid::from_raw) else { return };
        if !matches!(self.tasks.get(&pid), Some(Task { state: State::Held(_), .. })) {
            return;
        }
        match disposition {
            Disposition::KeepTracing => self.go_on(pid, 0),
            Disposition::Detach => self.release(pid),
        }
    }

    /// Detaches all tasks of a process: at once where they stand still, else at their next stop.
    fn release(&mut self, process: Pid) {
        let of_process = |task: &Task| task.process == process && !task.leaving;
        let tids: Vec<Pid> =
            self.tasks.iter().filter(|(_, task)| of_process(task)).map(|(tid, _)| *tid).collect();
        for tid in tids {
            self.set_leaving(tid);
            match self.tasks.get(&tid).map(|task| task.state) {
                Some(State::Held(_)) => self.go_on(tid, 0),
                Some(State::Running | State::Listening) => gone_is_fine(ptrace::interrupt(tid)),
                Some(State::Newborn(_)) | None => {}
            }
        }
    }

    fn release_all(&mut self) {
        let mut processes: Vec<Pid> = self.tasks.values().map(|task| task.process).collect();
        processes.sort_unstable();
        processes.dedup();
        for process in processes {
            self.release(process);
        }
    }

    fn let_go_of_forgotten(&mut self) {
        let now = Instant::now();
        let overdue = |task: &Task| matches!(task.state, State::Held(until) if until <= now);
        let tids: Vec<Pid> =
            self.tasks.iter().filter(|(_, task)| overdue(task)).map(|(tid, _)| *tid).collect();
        for pid in tids {
            self.release(pid);
            let error = TraceError::HeldTooLong;
            self.outlet.send(LaunchEvent::Error { pid: number(pid), error });
        }
    }

    fn next_deadline(&self) -> Duration {
        let until = |task: &Task| match task.state {
            State::Held(until) => Some(until),
            _ => None,
        };
        let first = self.tasks.values().filter_map(until).min();
        first.map_or(IDLE_CHECK_INTERVAL, |at| {
            at.saturating_duration_since(Instant::now()).min(IDLE_CHECK_INTERVAL)
        })
    }

    /// Whether the end of the command has been reported, or its receiver is gone.
    fn report_end(&self, status: ExitStatus) -> bool {
        let event = LaunchEvent::Exited { pid: number(self.command), status };
        !matches!(self.outlet.events.try_send(event), Err(TrySendError::Full(_)))
    }

    fn is_leaving(&self, tid: Pid) -> bool {
        self.tasks.get(&tid).is_none_or(|task| task.leaving)
    }

    fn set_leaving(&mut self, tid: Pid) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.leaving = true;
        }
    }

    fn set_state(&mut self, tid: Pid, state: State) {
        if let Some(task) = self.tasks.get_mut(&tid) {
            task.state = state;
        }
    }
}

/// A request fails when its task was killed meanwhile; its end is then reported by the next look.
fn gone_is_fine(result: nix::Result<()>) {
    if let Err(errno) = result {
        tracing::debug!(%errno, "ptrace request failed");
    }
}

fn number(pid: Pid) -> u32 {
    pid.as_raw().cast_unsigned()
}

/// The process that a task belongs to.
fn process_of(tid: Pid) -> Option<Pid> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok().map(Pid::from_raw)
}
