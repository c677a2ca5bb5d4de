//! Whether the kernel can put a probe into a file, or take it out, without waiting for a process.
//!
//! For either it takes the lock of the address space of every process that maps the file, also where the probe is for
//! one process alone, waits for each without end, and lets no process of the machine fork meanwhile; nor does it begin
//! before each fork that is under way has ended. A process can hold its own lock for as long as it wants (docs/security.md).
//! So those locks are read first, from outside, by programs that read the kernel's memory and wait for nothing.
//! What is held for a moment is waited for; what stays held is refused. A kernel that cannot be read so is not checked.
//!
//! Called by `placing`.

mod mappers;
mod programs;
mod types;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    fs::File,
    io,
    sync::{LazyLock, Mutex},
    thread,
    time::{Duration, Instant},
};

use drainprof_process::printable;

use self::{
    mappers::Fields,
    programs::{Held, Programs},
    types::Types,
};
use super::mutex::lock;

/// Locks that are held for so long are examined: nearly all are free before.
const BRIEF_HOLD: Duration = Duration::from_millis(15);
/// For how long a lock may be held at a stretch.
const MAX_HOLD: Duration = Duration::from_millis(250);
/// Pause between two checks, the first time; doubled each time.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(20);
/// Processes that are named where it is not known which one the kernel waits for.
const MAX_SUSPECTS: usize = 5;
/// A task that a signal at most ends the wait of.
const UNINTERRUPTIBLE: u64 = 2;

/// A process that holds the lock of its address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The process, by the number that the machine knows it by.
    pub pid: u32,
    /// Its name, escaped; empty where it is not known.
    pub comm: String,
    /// For how long it has held the lock, at least.
    pub seconds: u64,
    /// Whether it forks at the same time, so that it is in the way of probes in all files.
    pub forks: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, comm, .. } = self;
        let name = if comm.is_empty() { String::new() } else { format!(" ({comm})") };
        let file = if self.forks { "it forks meanwhile" } else { "it maps the file" };
        write!(
            f,
            "process {pid}{name} holds the lock of its address space, and {file}: the kernel would wait for it, and let \
             no process of the machine fork; end it, or the server of its files"
        )
    }
}

/// What is loaded once.
struct Checker {
    programs: Programs,
    fields: Fields,
}

impl Checker {
    fn load() -> io::Result<Self> {
        let types = Types::read()?;
        Ok(Self { programs: Programs::load(&types)?, fields: Fields::of(&types)? })
    }
}

static CHECKER: LazyLock<Option<Checker>> = LazyLock::new(|| {
    let loaded = Checker::load();
    loaded
        .inspect_err(|error| tracing::debug!(%error, "locks of address spaces cannot be checked"))
        .ok()
});

/// The address spaces that were locked at every check since then.
static SINCE: Mutex<BTreeMap<u64, Instant>> = Mutex::new(BTreeMap::new());

/// Whether locks can be checked on this kernel.
#[must_use]
pub fn can_check() -> bool {
    CHECKER.is_some()
}

/// Finds out whether the kernel can put a probe into `file`, or take it out, without waiting for a process: `Err` names
/// one that it would wait for. Takes some microseconds for each thread of the machine as a rule, and a third of a second
/// at most.
pub(super) fn check(file: &File) -> Result<(), Holder> {
    let Some(checker) = CHECKER.as_ref() else { return Ok(()) };
    checker.check(file).unwrap_or_else(|error| {
        tracing::debug!(%error, "locks of address spaces were not checked");
        Ok(())
    })
}

/// Processes whose locks have been held for long, by number and name. Waits for nothing.
pub(super) fn suspects() -> Vec<String> {
    let Some(Ok(held)) = CHECKER.as_ref().map(Checker::held) else { return Vec::new() };
    let is_long = |one: &Held| {
        let since = lock(&SINCE).get(&one.space).copied();
        since.is_some_and(|since| since.elapsed() >= MAX_HOLD)
    };
    let pids: BTreeSet<u32> = held.iter().filter(|one| is_long(one)).map(|one| one.pid).collect();
    pids.into_iter().take(MAX_SUSPECTS).map(|pid| format!("{pid} ({})", comm_of(pid))).collect()
}

impl Checker {
    fn check(&self, file: &File) -> io::Result<Result<(), Holder>> {
        let began = Instant::now();
        let mut held = self.held()?;
        self.wait(&mut held, |since| since < BRIEF_HOLD && began.elapsed() < BRIEF_HOLD)?;
        if held.is_empty() {
            return Ok(Ok(()));
        }
        let concerns = self.concerning(file);
        held.retain(|one| {
            concerns.as_ref().is_none_or(|all| all.contains(&one.space)) || forks(one)
        });
        let of_all: BTreeSet<u64> =
            held.iter().filter(|one| forks(one)).map(|one| one.space).collect();
        self.wait(&mut held, |since| since < MAX_HOLD)?;
        let Some(one) = held.first() else { return Ok(Ok(())) };
        let since = lock(&SINCE).get(&one.space).map_or(Duration::ZERO, Instant::elapsed);
        Ok(Err(Holder {
            pid: one.pid,
            comm: comm_of(one.pid),
            seconds: since.as_secs(),
            forks: of_all.contains(&one.space),
        }))
    }

    /// The address spaces that map a file; `None`: that is not known.
    fn concerning(&self, file: &File) -> Option<BTreeSet<u64>> {
        let found = mappers::of(file, &self.programs, self.fields);
        found
            .inspect_err(|error| tracing::debug!(%error, "which processes map a file is not known"))
            .ok()
    }

    /// The tasks whose address space is locked now.
    fn held(&self) -> io::Result<Vec<Held>> {
        let held = self.programs.held()?;
        let now = Instant::now();
        let mut since = lock(&SINCE);
        let spaces: BTreeSet<u64> = held.iter().map(|one| one.space).collect();
        since.retain(|space, _| spaces.contains(space));
        for space in spaces {
            since.entry(space).or_insert(now);
        }
        Ok(held)
    }

    /// Waits for those that were locked since a time that `is_brief`, and leaves out those that are free meanwhile.
    fn wait(&self, held: &mut Vec<Held>, is_brief: impl Fn(Duration) -> bool) -> io::Result<()> {
        let mut pause = FIRST_PAUSE;
        loop {
            let any_brief = {
                let since = lock(&SINCE);
                held.iter()
                    .any(|one| since.get(&one.space).is_none_or(|since| is_brief(since.elapsed())))
            };
            if !any_brief {
                return Ok(());
            }
            thread::sleep(pause);
            pause = (pause * 2).min(MAX_PAUSE);
            let before: BTreeMap<u64, Instant> = lock(&SINCE).clone();
            let now: BTreeSet<u64> = self.held()?.iter().map(|one| one.space).collect();
            held.retain(|one| now.contains(&one.space) && before.contains_key(&one.space));
        }
    }
}

/// Whether a task whose address space is locked waits for that lock in order to fork.
fn forks(one: &Held) -> bool {
    if one.state & UNINTERRUPTIBLE == 0 {
        return false;
    }
    let waits = fs::read_to_string(format!("/proc/{}/task/{}/wchan", one.pid, one.thread));
    waits
        .is_ok_and(|at| ["copy_process", "copy_mm", "dup_mm"].iter().any(|one| at.starts_with(one)))
}

fn comm_of(pid: u32) -> String {
    let comm = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    printable(String::from_utf8_lossy(&comm).trim())
}

#[cfg(test)]
mod tests;
