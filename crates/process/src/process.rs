//! A process: its identity, and whether it is still the same one.
//!
//! Says what a process *is*; what it has mapped is `maps` and `image`. Called by `cli`, `watch` and the tests.

use std::{
    fs, io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use super::{
    ProcessError,
    file::{is_unlinked, read_proc},
    guard, printable,
    status::{last_number, number},
};

/// Longest `/proc` file with facts about one process.
const MAX_STATUS: u64 = 1 << 20;
/// `PF_KTHREAD` of the kernel's `flags` in `/proc/PID/stat`.
const PF_KTHREAD: u64 = 0x0020_0000;
/// The entry of the auxiliary vector with the size of a program header.
const AT_PHENT: u64 = 4;

/// What can be traced by this build.
#[cfg(target_arch = "x86_64")]
const NATIVE: &str = "64-bit x86-64 programs";
/// What can be traced by this build.
#[cfg(not(target_arch = "x86_64"))]
const NATIVE: &str = "programs of this machine's own architecture";

/// One incarnation of a process: its number and the time at which it started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, in the pid namespace of the `/proc` that we see.
    pub pid: u32,
    /// When it started, in clock ticks since boot; with `pid` its identity.
    pub start_time: u64,
    /// Its name (`comm`), as the process set it; hostile: show it with [`printable()`].
    pub comm: String,
    /// Its executable's path as the process itself sees it; hostile: show it with [`printable()`].
    pub exe: PathBuf,
    /// Its effective user.
    pub uid: u32,
    /// Its number in its own (innermost) pid namespace; differs from `pid` in a container.
    pub pid_inside: u32,
}

/// What `/proc/PID/stat` says.
pub(crate) struct Stat {
    pub(crate) comm: String,
    state: u8,
    parent: u32,
    flags: u64,
    pub(crate) start_time: u64,
}

impl Stat {
    /// That of a process; `proc` is where procfs is mounted. `None` where it is gone or hidden.
    pub(crate) fn read(proc: &Path, pid: u32) -> Option<Self> {
        stat_at(pid, &proc.join(pid.to_string()).join("stat")).ok()
    }

    /// Whether it is a program that runs: neither the kernel's own thread nor one that has ended.
    pub(crate) const fn is_running_program(&self) -> bool {
        self.flags & PF_KTHREAD == 0 && !is_dead(self.state)
    }
}

impl Process {
    /// Opens process `pid`, or says why it cannot be traced.
    pub fn open(pid: u32) -> Result<Self, ProcessError> {
        if pid == std::process::id() {
            return Err(ProcessError::Myself { pid });
        }
        Self::identify(pid)
    }

    /// This very process: for calibration and self-inspection, never to attach a profile to.
    pub fn myself() -> Result<Self, ProcessError> {
        Self::identify(std::process::id())
    }

    fn identify(pid: u32) -> Result<Self, ProcessError> {
        let stat = read_stat(pid).map_err(|error| match error {
            ProcessError::Ended { pid } => absent(pid),
            other => other,
        })?;
        let status = read_status(pid)?;
        let tgid = number(&status, "Tgid", 0).unwrap_or(pid);
        if tgid != pid {
            return Err(ProcessError::IsThread { tid: pid, pid: tgid });
        }
        if stat.flags & PF_KTHREAD != 0 {
            return Err(ProcessError::KernelThread { pid, comm: printable(&stat.comm) });
        }
        if is_dead(stat.state) {
            let comm = printable(&stat.comm);
            return Err(match living_threads(pid) {
                0 => ProcessError::Zombie { pid, comm },
                threads => ProcessError::MainThreadEnded { pid, comm, threads },
            });
        }
        let exe = read_exe(pid)?;
        check_executable(pid, &exe)?;
        Ok(Self {
            pid,
            start_time: stat.start_time,
            comm: stat.comm,
            exe,
            uid: number(&status, "Uid", 1).unwrap_or(u32::MAX),
            pid_inside: last_number(&status, "NSpid").unwrap_or(pid),
        })
    }

    /// Whether this incarnation still runs: the same start time, and not a zombie.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        read_stat(self.pid).is_ok_and(|stat| {
            stat.start_time == self.start_time
                && (!is_dead(stat.state) || living_threads(self.pid) > 0)
        })
    }

    /// Resident memory now, in bytes, as `/proc/PID/statm` has it.
    pub fn rss_bytes(&self) -> Result<u64, ProcessError> {
        let path = self.path("statm");
        let text = read_proc(&path, MAX_STATUS).map_err(|error| {
            ProcessError::from_io(self.pid, "read the memory use", path.clone(), error)
        })?;
        let pages: u64 = text
            .split(u8::is_ascii_whitespace)
            .nth(1)
            .and_then(|word| std::str::from_utf8(word).ok()?.parse().ok())
            .ok_or_else(|| self.malformed(path, "it has no second number"))?;
        Ok(pages.saturating_mul(rustix::param::page_size() as u64))
    }

    /// A descriptor that becomes readable when the process ends; the number can be reused, this cannot.
    pub fn pidfd(&self) -> Result<OwnedFd, ProcessError> {
        let pid = i32::try_from(self.pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw)
            .ok_or(ProcessError::NoSuchProcess { pid: self.pid })?;
        let fd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).map_err(
            |error| {
                ProcessError::from_io(
                    self.pid,
                    "open a pidfd",
                    self.path(""),
                    io::Error::from(error),
                )
            },
        )?;
        // Between our examine the process and this call the number may have got another owner; from
        // here on the descriptor holds on to the one that it names.
        if self.is_alive() { Ok(fd) } else { Err(ProcessError::Ended { pid: self.pid }) }
    }

    /// Its threads' numbers, its own included.
    pub fn threads(&self) -> Result<Vec<u32>, ProcessError> {
        let path = self.path("task");
        let entries = guard::ask_process(self.pid, || fs::read_dir(&path))
            .map_err(|error| ProcessError::from_io(self.pid, "list the threads", path, error))?;
        let mut threads: Vec<u32> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        threads.sort_unstable();
        Ok(threads)
    }

    /// The root directory of the process, through which its own paths can be opened.
    #[must_use]
    pub fn root(&self) -> PathBuf {
        self.path("root")
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.pid))
    }

    fn malformed(&self, path: PathBuf, what: &str) -> ProcessError {
        ProcessError::Malformed { pid: self.pid, path, what: what.to_owned() }
    }
}

const fn is_dead(state: u8) -> bool {
    matches!(state, b'Z' | b'X' | b'x')
}

/// A process that `/proc` does not show may still exist: `hidepid` hides those of other users.
fn absent(pid: u32) -> ProcessError {
    let hidden = i32::try_from(pid).is_ok_and(|raw| {
        raw > 0
            && nix::sys::signal::kill(nix::unistd::Pid::from_raw(raw), None)
                == Err(nix::errno::Errno::EPERM)
    });
    if hidden {
        ProcessError::Permission {
            pid,
            step: "see the /proc directory",
            source: io::Error::from_raw_os_error(nix::libc::EPERM),
        }
    } else {
        ProcessError::NoSuchProcess { pid }
    }
}

fn living_threads(pid: u32) -> usize {
    let tasks = guard::ask_process(pid, || fs::read_dir(format!("/proc/{pid}/task")));
    let Ok(entries) = tasks else { return 0 };
    entries
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|tid| {
            stat_at(pid, Path::new(&format!("/proc/{pid}/task/{tid}/stat")))
                .is_ok_and(|stat| !is_dead(stat.state))
        })
        .count()
}

/// The parent of a process; `None` where it is gone or hidden.
pub(super) fn parent_of(pid: u32) -> Option<u32> {
    read_stat(pid).ok().map(|stat| stat.parent)
}

/// When a process started, in clock ticks since boot; `None` where it is gone or hidden. With its number that is who it
/// is.
#[must_use]
pub fn started_at(pid: u32) -> Option<u64> {
    read_stat(pid).ok().map(|stat| stat.start_time)
}

/// How many pages a process has mapped in all, and how many of them are its data and stacks; `None` where it is gone. It
/// is the cheapest sign that something was mapped or unmapped.
#[must_use]
pub fn mapped_pages(pid: u32) -> Option<(u64, u64)> {
    let text = read_proc(Path::new(&format!("/proc/{pid}/statm")), MAX_STATUS).ok()?;
    let mut numbers = std::str::from_utf8(&text).ok()?.split_ascii_whitespace();
    let all = numbers.next()?.parse().ok()?;
    Some((all, numbers.nth(4)?.parse().ok()?))
}

/// Where the program and the first stack of a process lie: another place after each exec, by chance, and zeroes while it is
/// under way. `None` where the process is gone, ends, or may not be asked.
#[must_use]
pub fn executed_image(pid: u32) -> Option<[u64; 3]> {
    /// Fields behind the name: code, stack, arguments.
    const PLACES: [usize; 3] = [23, 25, 45];
    /// The flags of its first thread, and the one of a thread that ends.
    const FLAGS: usize = 6;
    const ENDS: u64 = 4;
    let text = read_proc(Path::new(&format!("/proc/{pid}/stat")), MAX_STATUS).ok()?;
    let text = String::from_utf8_lossy(&text);
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split_ascii_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    if number(FLAGS)? & ENDS != 0 {
        return None;
    }
    let mut places = [0; 3];
    for (place, at) in places.iter_mut().zip(PLACES) {
        *place = number(at)?;
    }
    Some(places)
}

fn read_stat(pid: u32) -> Result<Stat, ProcessError> {
    stat_at(pid, Path::new(&format!("/proc/{pid}/stat")))
}

fn stat_at(pid: u32, path: &Path) -> Result<Stat, ProcessError> {
    let text = read_proc(path, MAX_STATUS)
        .map_err(|error| ProcessError::from_io(pid, "read the state", path.into(), error))?;
    parse_stat(&text).ok_or_else(|| ProcessError::Malformed {
        pid,
        path: path.into(),
        what: "fields are missing".into(),
    })
}

/// Parses `/proc/PID/stat`. The name is chosen by the process and may hold spaces, parentheses, line
/// breaks and half a UTF-8 character, so it ends at the *last* parenthesis.
pub(crate) fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    let close = text.iter().rposition(|&byte| byte == b')').filter(|&close| close > open)?;
    let comm = String::from_utf8_lossy(&text[open + 1..close]).into_owned();
    let rest = std::str::from_utf8(&text[close + 1..]).ok()?;
    // Numbered from 3, as proc_pid_stat(5) does.
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        comm,
        state: *field(3)?.as_bytes().first()?,
        parent: field(4)?.parse().ok()?,
        flags: field(9)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

fn read_status(pid: u32) -> Result<String, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/status"));
    let text = read_proc(&path, MAX_STATUS)
        .map_err(|error| ProcessError::from_io(pid, "read the status", path, error))?;
    // The kernel escapes line breaks of the name in this file, so a line is a line.
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The executable's path, also where it is gone from there.
fn read_exe(pid: u32) -> Result<PathBuf, ProcessError> {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let path = guard::ask_process(pid, || fs::read_link(&link)).map_err(|error| {
        ProcessError::from_io(pid, "read the executable's path", link.clone(), error)
    })?;
    match path.as_os_str().as_bytes().strip_suffix(b" (deleted)") {
        Some(path) if is_unlinked(&link).unwrap_or_default() => {
            Ok(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
        }
        _ => Ok(path),
    }
}

/// Refuses processes of another word size, whose registers and calls the probes would misread. The kernel's own word
/// is taken: the executable may lie on a file system that does not answer.
fn check_executable(pid: u32, exe: &Path) -> Result<(), ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/auxv"));
    let auxv = read_proc(&path, MAX_STATUS).map_err(|source| {
        ProcessError::from_io(pid, "read what the kernel has reported to it", path, source)
    })?;
    if is_narrow(&auxv) {
        return Err(ProcessError::ForeignExecutable {
            pid,
            exe: printable(exe.as_os_str().as_bytes()),
            what: "a 32-bit program".to_owned(),
            wanted: NATIVE,
        });
    }
    Ok(())
}

/// Whether an auxiliary vector is that of a 32-bit process: its words are half as long, and so are the entries of its
/// program headers.
pub(crate) fn is_narrow(auxv: &[u8]) -> bool {
    let wide = auxv.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
    let narrow = auxv.as_chunks::<4>().0.iter().map(|word| u64::from(u32::from_le_bytes(*word)));
    let size_of_header = |words: &mut dyn Iterator<Item = u64>| {
        while let (Some(kind), Some(value)) = (words.next(), words.next()) {
            match kind {
                0 => return None,
                AT_PHENT => return Some(value),
                _ => {}
            }
        }
        None
    };
    size_of_header(&mut { wide }) != Some(56) && size_of_header(&mut { narrow }) == Some(32)
}

#[cfg(test)]
mod tests;
