//! `drainprof run`.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus};

use anyhow::{Context as _, Result};
use drainprof_observe::ObserveError;
use drainprof_probe::launch::{Disposition, Handle, Launch, LaunchEvent, LaunchOptions, Origin};
use drainprof_process::readers;
use drainprof_report::Verdict;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::mpsc::Receiver,
};

use super::{
    args::RunArgs,
    code,
    drive::{Driver, Happening, block_on},
    exit::Failure,
};

/// Programs that do nothing but execute another one. What they hold themselves is of no interest, and ptrace has let go of
/// them by then if they were observed: what they execute would be met late.
const WRAPPERS: [&str; 25] = [
    "chroot",
    "chrt",
    "dumb-init",
    "env",
    "flock",
    "gosu",
    "ionice",
    "nice",
    "nohup",
    "nsenter",
    "numactl",
    "prlimit",
    "runuser",
    "setarch",
    "setpriv",
    "setsid",
    "stdbuf",
    "su",
    "su-exec",
    "sudo",
    "taskset",
    "time",
    "timeout",
    "tini",
    "unshare",
];

/// Whether a process executes such a program.
fn is_wrapper(pid: u32) -> bool {
    readers::open(pid).is_ok_and(|process| WRAPPERS.contains(&process.comm.as_str()))
}

/// Starts a command under observation.
pub(super) fn main(args: RunArgs) -> Result<u8> {
    if args.observe.dry_run {
        return Err(Failure::new(
            code::USAGE,
            "--dry-run needs a process to examine: use it with `drainprof attach -p PID`",
        )
        .into());
    }
    if args.observe.duty.is_some() {
        return Err(Failure::new(
            code::USAGE,
            "--duty looks at a process that runs already: use it with `drainprof attach -p PID`; \
             `run` is for seeing a command from its first instruction on",
        )
        .into());
    }
    block_on(run(args))
}

/// What is known of the command so far.
struct Command {
    handle: Handle,
    events: Receiver<LaunchEvent>,
    /// `Ok(code)` or `Err(signal)`.
    status: Option<Result<i32, i32>>,
    /// Whether children are followed although an image was attached to.
    follow_forks: bool,
    /// Whether any image was attached to.
    attached: bool,
    /// Why the last image that was examined was not.
    refused: Option<anyhow::Error>,
    /// Whether the tracer has nothing more to say.
    silent: bool,
}

async fn run(args: RunArgs) -> Result<u8> {
    let mut driver = Driver::new(&args.observe)?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot wait for SIGTERM")?;
    let mut hang_up = signal(SignalKind::hangup()).context("cannot wait for SIGHUP")?;
    let mut options = LaunchOptions::new(args.command);
    // A shell or another wrapper matches no profile: what it starts may.
    options.follow_forks = true;
    let (handle, events) = Launch::spawn(options)?;
    let mut command = Command {
        handle,
        events,
        status: None,
        follow_forks: args.observe.follow_forks,
        attached: false,
        refused: None,
        silent: false,
    };

    let mut over_budget = false;
    loop {
        let happening = tokio::select! {
            happening = driver.next(), if command.attached => Some(happening?),
            event = command.events.recv(), if !command.silent => {
                match event {
                    Some(event) => command.heard(event, &mut driver),
                    None => command.silent = true,
                }
                None
            }
            // Ctrl-C reaches the command too: we wait for its end.
            _ = interrupt.recv() => None,
            _ = terminate.recv() => command.pass_on(nix::libc::SIGTERM),
            _ = hang_up.recv() => command.pass_on(nix::libc::SIGHUP),
        };
        match happening {
            Some(Happening::Ended(pid)) if pid == command.handle.pid() => {
                // Its status comes from the tracer, which waits for it as its parent.
                command.wait().await;
                driver.observation.ended(pid, command.status);
            }
            Some(Happening::Ended(pid)) => driver.observation.ended(pid, None),
            Some(Happening::TimeUp) => break,
            Some(Happening::OverBudget) => {
                over_budget = true;
                break;
            }
            Some(Happening::BeganAgain) | None => {}
        }
        let running = command.attached && !driver.observation.running().is_empty();
        if command.status.is_some() && !running {
            break;
        }
    }
    if !command.attached {
        return Err(command.refused.unwrap_or_else(|| {
            Failure::new(code::NO_TARGET, "the command ended before it could be examined").into()
        }));
    }
    let (verdict, leaving) = driver.finish()?;
    command.wait().await;
    leaving.wait();
    if over_budget {
        return Ok(code::GOVERNOR);
    }
    Ok(match (verdict, command.status) {
        // The low byte, as a shell has it.
        (Verdict::Ok, Some(Ok(status))) => status.to_le_bytes()[0],
        (Verdict::Ok, Some(Err(signal))) => (128 + signal).to_le_bytes()[0],
        (verdict, _) => verdict.exit_code(),
    })
}

/// An exit status as the report has it: `Ok(code)` or `Err(signal)`.
fn outcome(status: ExitStatus) -> Result<i32, i32> {
    status.code().ok_or_else(|| status.signal().unwrap_or_default())
}

impl Command {
    /// Deals with what the tracer says.
    fn heard(&mut self, event: LaunchEvent, driver: &mut Driver) {
        match event {
            LaunchEvent::AtEntry { pid, .. } if is_wrapper(pid) => {
                self.refused.get_or_insert_with(|| {
                    let text = "the command executed nothing but wrappers, such as env or chroot";
                    Failure::new(code::NO_TARGET, text).into()
                });
                self.handle.resume(pid, Disposition::KeepTracing);
            }
            LaunchEvent::AtEntry { pid, origin } => match driver.observation.add(pid, true) {
                Ok(()) => {
                    if !self.attached {
                        self.attached = true;
                        driver.attached();
                    }
                    self.handle.resume(pid, Disposition::Detach);
                }
                Err(error) => {
                    // What it executes next may match.
                    let disposition = if matches!(error, ObserveError::NoMatch { .. }) {
                        tracing::warn!(
                            "no profile matches process {pid} so far; drainprof checks what it \
                             executes and starts next"
                        );
                        Disposition::KeepTracing
                    } else {
                        if origin == Origin::Command {
                            // Nothing of it has run. Nobody wants it unobserved.
                            let _ = self.handle.forward_signal(nix::libc::SIGKILL);
                        }
                        Disposition::Detach
                    };
                    self.refused = Some(error.into());
                    self.handle.resume(pid, disposition);
                }
            },
            LaunchEvent::Forked { child, .. } => {
                let wanted = self.follow_forks || !self.attached;
                let disposition =
                    if wanted { Disposition::KeepTracing } else { Disposition::Detach };
                self.handle.resume(child, disposition);
            }
            LaunchEvent::Exited { pid, status } => {
                if pid == self.handle.pid() {
                    self.status = Some(outcome(status));
                }
            }
            LaunchEvent::Error { pid, error } => {
                tracing::warn!(pid, %error, "a process could not be held at its entry");
                self.refused.get_or_insert_with(|| error.into());
            }
        }
    }

    /// Waits until the command's status is known.
    async fn wait(&mut self) {
        while self.status.is_none() {
            match self.events.recv().await {
                Some(LaunchEvent::Exited { pid, status }) if pid == self.handle.pid() => {
                    self.status = Some(outcome(status));
                }
                Some(LaunchEvent::AtEntry { pid, .. } | LaunchEvent::Forked { child: pid, .. }) => {
                    self.handle.resume(pid, Disposition::Detach);
                }
                Some(_) => {}
                None => break,
            }
        }
    }

    fn pass_on(&self, signal: i32) -> Option<Happening> {
        // It has ended: then there is nobody to pass it on to.
        let _ = self.handle.forward_signal(signal);
        None
    }
}
