//! The ptrace and wait calls that `nix` has no safe, or no complete, form for.
//!
//! `nix` knows signals 1 to 31 only, so a real-time signal could be neither seen nor passed on through
//! it; `PTRACE_LISTEN` and the signal mask requests it lacks. Nothing here keeps state. Called by the
//! tracer thread alone: ptrace requests are refused from any other thread.

use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, ptr};

use nix::{
    errno::Errno,
    libc::{self, c_int, c_long},
    unistd::Pid,
};

/// The event number of a stop that is not a signal delivery (`linux/ptrace.h`; not in `libc`).
const PTRACE_EVENT_STOP: c_int = 128;

/// What a task did last.
#[derive(Debug)]
pub(super) enum Waited {
    /// Nothing new.
    Nothing,
    /// It is no longer ours: reaped, or replaced by an exec of another thread.
    Gone,
    /// It stopped and waits for us.
    Stopped(Stop),
    /// It ended, and is reaped now.
    Ended(ExitStatus),
}

/// Why a traced task stands still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// It executes another program; not one instruction of it has run.
    Exec,
    /// It made a child with memory of its own.
    Fork,
    /// It made a child in its own memory, and waits until that execs or ends.
    Vfork,
    /// It made a thread, or a process with unusual flags.
    Clone,
    /// An interrupt that we asked for, the first stop of a new task, or the end of a job control stop.
    Trap,
    /// Job control stopped the process; it must stay stopped until it is continued.
    Group,
    /// A signal is about to be delivered.
    Signal(c_int),
    /// An event that was not asked for.
    Unknown,
}

/// Decodes the stop code (`status >> 8` of a wait status).
pub(super) fn decode(code: c_int) -> Stop {
    let (signal, event) = (code & 0xff, code >> 8);
    match event {
        0 => Stop::Signal(signal),
        libc::PTRACE_EVENT_EXEC => Stop::Exec,
        libc::PTRACE_EVENT_FORK => Stop::Fork,
        libc::PTRACE_EVENT_VFORK => Stop::Vfork,
        libc::PTRACE_EVENT_CLONE => Stop::Clone,
        PTRACE_EVENT_STOP if signal == libc::SIGTRAP => Stop::Trap,
        PTRACE_EVENT_STOP => Stop::Group,
        _ => Stop::Unknown,
    }
}

/// Asks what `tid` did, without waiting. With `reap` false its end is left for other code to reap.
pub(super) fn poll_task(tid: Pid, reap: bool) -> Waited {
    if reap { poll_all(tid) } else { poll_stops(tid) }
}

fn poll_all(tid: Pid) -> Waited {
    let mut status: c_int = 0;
    // SAFETY: `status` outlives the call, and the other arguments are plain numbers.
    match unsafe { libc::waitpid(tid.as_raw(), &raw mut status, libc::__WALL | libc::WNOHANG) } {
        0 => Waited::Nothing,
        -1 if Errno::last() == Errno::EINTR => Waited::Nothing,
        -1 => Waited::Gone,
        _ if libc::WIFSTOPPED(status) => Waited::Stopped(decode(status >> 8)),
        _ => Waited::Ended(ExitStatus::from_raw(status)),
    }
}

fn poll_stops(tid: Pid) -> Waited {
    let flags = libc::WSTOPPED | libc::__WALL | libc::WNOHANG;
    // SAFETY: an all-zero `siginfo_t` is a valid one.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` outlives the call, and the other arguments are plain numbers.
    let rc =
        unsafe { libc::waitid(libc::P_PID, tid.as_raw().cast_unsigned(), &raw mut info, flags) };
    // SAFETY: `waitid` fills the SIGCHLD part, or leaves the zeroes.
    let (pid, code) = unsafe { (info.si_pid(), info.si_status()) };
    match rc {
        0 if pid == 0 => Waited::Nothing,
        0 => Waited::Stopped(decode(code)),
        _ if Errno::last() == Errno::ECHILD => Waited::Gone,
        _ => Waited::Nothing,
    }
}

fn request(request: libc::c_uint, tid: Pid, data: c_long) -> nix::Result<()> {
    // SAFETY: the requests that this file passes take numbers only; they touch no memory of ours.
    let rc = unsafe { libc::ptrace(request, tid.as_raw(), ptr::null_mut::<u8>(), data) };
    Errno::result(rc).map(drop)
}

/// Lets a stopped task run on, and delivers `signal` to it (0: none).
pub(super) fn cont(tid: Pid, signal: c_int) -> nix::Result<()> {
    request(libc::PTRACE_CONT, tid, signal.into())
}

/// Lets a stopped task go for good, and delivers `signal` to it (0: none).
pub(super) fn detach(tid: Pid, signal: c_int) -> nix::Result<()> {
    request(libc::PTRACE_DETACH, tid, signal.into())
}

/// Leaves a task in its job control stop, and hears of its end.
pub(super) fn listen(tid: Pid) -> nix::Result<()> {
    request(libc::PTRACE_LISTEN, tid, 0)
}

/// The kernel's signal set is one 64-bit word, whatever the C library's is.
const KERNEL_SIGSET_BYTES: usize = size_of::<u64>();

/// The signals that a stopped task blocks: bit `n - 1` is signal `n`.
pub(super) fn signal_mask(tid: Pid) -> nix::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes the eight bytes that the third argument announces into `mask`.
    let rc = unsafe {
        libc::ptrace(libc::PTRACE_GETSIGMASK, tid.as_raw(), KERNEL_SIGSET_BYTES, &raw mut mask)
    };
    Errno::result(rc).map(|_| mask)
}

/// Sets the signals that a stopped task blocks.
pub(super) fn set_signal_mask(tid: Pid, mask: u64) -> nix::Result<()> {
    // SAFETY: the kernel reads the eight bytes that the third argument announces from `mask`.
    let rc = unsafe {
        libc::ptrace(libc::PTRACE_SETSIGMASK, tid.as_raw(), KERNEL_SIGSET_BYTES, &raw const mask)
    };
    Errno::result(rc).map(drop)
}

/// A descriptor of the process `pid`, which must not have been reaped yet.
pub(super) fn open_pidfd(pid: Pid) -> nix::Result<std::os::fd::OwnedFd> {
    use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};
    // SAFETY: the call takes numbers only.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) })?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Sends a signal through a process descriptor: it can never reach a later owner of the number.
pub(super) fn pidfd_signal(fd: &std::os::fd::OwnedFd, signal: c_int) -> nix::Result<()> {
    use std::os::fd::AsRawFd as _;
    // SAFETY: a null siginfo is allowed, and means the same as `kill` would.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            fd.as_raw_fd(),
            signal,
            ptr::null::<libc::siginfo_t>(),
            0,
        )
    };
    Errno::result(rc).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stop codes as the kernel packs them come out as what they are, real-time signals included.
    #[test]
    fn stop_codes_decode() {
        let with = |event: c_int, signal: c_int| decode(event << 8 | signal);
        assert_eq!(with(0, libc::SIGTERM), Stop::Signal(libc::SIGTERM));
        assert_eq!(with(0, 40), Stop::Signal(40));
        assert_eq!(with(0, libc::SIGTRAP), Stop::Signal(libc::SIGTRAP));
        assert_eq!(with(4, libc::SIGTRAP), Stop::Exec);
        assert_eq!(with(1, libc::SIGTRAP), Stop::Fork);
        assert_eq!(with(2, libc::SIGTRAP), Stop::Vfork);
        assert_eq!(with(3, libc::SIGTRAP), Stop::Clone);
        assert_eq!(with(128, libc::SIGTRAP), Stop::Trap);
        assert_eq!(with(128, libc::SIGSTOP), Stop::Group);
        assert_eq!(with(128, libc::SIGTTIN), Stop::Group);
        assert_eq!(with(77, libc::SIGTRAP), Stop::Unknown);
    }

    /// A process that is not our child is reported as gone, so that no caller waits for it for ever.
    #[test]
    fn strangers_are_gone() {
        assert!(matches!(poll_task(Pid::from_raw(1), true), Waited::Gone));
        assert!(matches!(poll_task(Pid::from_raw(1), false), Waited::Gone));
    }
}
