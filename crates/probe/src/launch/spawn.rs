//! Starts the command, and hands it to its tracer before it executes anything.
//!
//! `Command::spawn` returns only after the exec, so the tracer thread must have taken hold of the child
//! before. The child therefore reports its pid from between fork and exec and waits at a gate until the
//! tracer has seized it. Seizing, rather than letting the child ask to be traced, is what keeps job
//! control stops faithful.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsRawFd as _, OwnedFd, RawFd},
        unix::process::CommandExt as _,
    },
    process::Command,
    sync::{Arc, atomic::AtomicU64, mpsc},
    thread,
};

use nix::{
    errno::Errno,
    fcntl::OFlag,
    libc,
    sys::ptrace,
    unistd::{Pid, pipe2},
};
use tokio::sync::mpsc::Receiver;

use super::{
    EVENT_CAPACITY, Handle, LaunchError, LaunchEvent, LaunchOptions, handle, sys,
    tracer::{self, MAX_TASKS},
    wake::Sleeper,
};

/// The tracer's word to the child at the gate.
const GO: u8 = 1;
const REFUSED: u8 = 0;

fn setup<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> LaunchError {
    move |source| LaunchError::Setup { step, source: source.into() }
}

pub(super) fn spawn(
    options: LaunchOptions,
) -> Result<(Handle, Receiver<LaunchEvent>), LaunchError> {
    let Some((program, arguments)) = options.argv.split_first() else {
        return Err(LaunchError::NoCommand);
    };
    let name = program.to_string_lossy().into_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut command = Command::new(program);
    command.args(arguments);
    command.stdin(options.stdin).stdout(options.stdout).stderr(options.stderr);

    let (report, report_in) = pipe2(OFlag::O_CLOEXEC).map_err(setup("creating a pipe"))?;
    let (gate_out, gate) = pipe2(OFlag::O_CLOEXEC).map_err(setup("creating a pipe"))?;
    wait_at_gate(&mut command, &report_in, &gate_out, gate.as_raw_fd());

    let (sleeper, waker) = Sleeper::new().map_err(setup("installing the SIGCHLD handler"))?;
    let (commands, requests) = mpsc::sync_channel(MAX_TASKS);
    let (events, receiver) = tokio::sync::mpsc::channel(EVENT_CAPACITY);
    let (seized_in, seized) = mpsc::sync_channel(1);
    let lost = Arc::new(AtomicU64::new(0));
    let outlet = tracer::Outlet::new(events, Arc::clone(&lost));
    let settings =
        tracer::Settings { follow_forks: options.follow_forks, hold_limit: options.hold_limit };
    thread::Builder::new()
        .name("drainprof-trace".into())
        .spawn(move || {
            let answer = seize(report, gate);
            let child = answer.as_ref().ok().copied().flatten();
            // The caller takes this only after the child has passed the gate or failed there.
            let _ = seized_in.send(answer);
            tracer::run(child, sleeper, &requests, outlet, settings);
        })
        .map_err(setup("starting the tracer thread"))?;

    let started = command.spawn();
    // Our copies of the child's ends must go, or the tracer would wait for a child that never was.
    drop((report_in, gate_out, command));
    let answer = seized.recv().unwrap_or(Err(Errno::ECANCELED));
    let send = |command| {
        let _ = commands.try_send(command);
        waker.wake();
    };
    let child = match (started, answer) {
        (Ok(child), Ok(Some(_))) => child,
        (_, Err(errno)) => {
            send(handle::Command::NotStarted);
            return Err(LaunchError::Trace(errno));
        }
        (Err(source), Ok(_)) => {
            send(handle::Command::NotStarted);
            return Err(refused(name, source, &path));
        }
        (Ok(_), Ok(None)) => {
            send(handle::Command::NotStarted);
            return Err(LaunchError::Trace(Errno::ESRCH));
        }
    };
    // It cannot have been reaped before `Started` is sent, so the number is still its own.
    let pidfd = match sys::open_pidfd(Pid::from_raw(child.id().cast_signed())) {
        Ok(pidfd) => pidfd,
        Err(errno) => {
            send(handle::Command::Started);
            send(handle::Command::Release);
            return Err(setup("opening the process descriptor")(errno));
        }
    };
    send(handle::Command::Started);
    Ok((Handle::new(child.id(), pidfd, commands, waker, lost), receiver))
}

fn refused(command: String, source: io::Error, path: &OsStr) -> LaunchError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => LaunchError::NotFound { command, source },
        // One directory of PATH that we may not search makes the answer EACCES, wherever else it was
        // not found.
        Some(libc::EACCES) if !command.contains('/') && !is_in_path(&command, path) => {
            LaunchError::NotFound { command, source }
        }
        Some(libc::EACCES | libc::ENOEXEC) => LaunchError::NotExecutable { command, source },
        _ => LaunchError::Spawn { command, source },
    }
}

fn is_in_path(command: &str, path: &OsStr) -> bool {
    std::env::split_paths(path).any(|directory| directory.join(command).exists())
}

/// Takes hold of the child that reports itself. None: there was no child.
fn seize(report: OwnedFd, gate: OwnedFd) -> Result<Option<Pid>, Errno> {
    let mut bytes = [0; 4];
    if File::from(report).read_exact(&mut bytes).is_err() {
        return Ok(None);
    }
    let child = Pid::from_raw(i32::from_ne_bytes(bytes));
    // No PTRACE_O_EXITKILL: if we die, the command runs on.
    let options = ptrace::Options::PTRACE_O_TRACEEXEC
        | ptrace::Options::PTRACE_O_TRACEFORK
        | ptrace::Options::PTRACE_O_TRACEVFORK
        | ptrace::Options::PTRACE_O_TRACECLONE;
    let seized = ptrace::seize(child, options);
    // A child that is gone already needs no message.
    let _ = File::from(gate).write_all(&[if seized.is_ok() { GO } else { REFUSED }]);
    seized.map(|()| Some(child))
}

/// Makes the child, between fork and exec, report its pid and wait until it is seized.
fn wait_at_gate(command: &mut Command, report: &OwnedFd, gate: &OwnedFd, tracers_end: RawFd) {
    let (report, gate) = (report.as_raw_fd(), gate.as_raw_fd());
    let at_gate = move || {
        // With our copy of the tracer's end open, the death of the tracer could not be noticed.
        let _ = nix::unistd::close(tracers_end);
        let pid = nix::unistd::getpid().as_raw().to_ne_bytes();
        if raw_write(report, &pid) != pid.len().cast_signed() {
            return Err(io::Error::last_os_error());
        }
        let mut answer = [REFUSED];
        if raw_read(gate, &mut answer) != 1 || answer != [GO] {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only closes, writes and reads descriptors that are
    // open then; it takes no lock and allocates nothing.
    unsafe { command.pre_exec(at_gate) };
}

fn raw_write(fd: RawFd, bytes: &[u8]) -> isize {
    // SAFETY: the pointer and the length describe one live slice.
    unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }
}

fn raw_read(fd: RawFd, bytes: &mut [u8]) -> isize {
    // SAFETY: the pointer and the length describe one live slice.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "Permission denied" means the program only if `PATH` leads to it, or it was named by its path.
    #[test]
    fn denied_directories_are_not_denied_programs() {
        let path = OsStr::new("/usr/bin:/bin");
        let code = |name: &str| {
            refused(name.to_owned(), io::Error::from_raw_os_error(libc::EACCES), path).exit_code()
        };
        assert_eq!(code("no-such-program-anywhere"), 127);
        assert_eq!(code("sh"), 126);
        assert_eq!(code("./no-such-program-anywhere"), 126);
    }
}
