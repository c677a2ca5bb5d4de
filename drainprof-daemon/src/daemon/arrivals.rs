//! Who is on this machine: processes that have come, that execute another program, that have mapped more, or gone.
//!
//! A look costs one directory listing and one link per process; what takes longer is looked at once per process. Every
//! half minute, a few processes at a time, it is asked whether it is the same process still and executes code from the
//! same files, and only where it does not, all is looked at again. So a program that is executed by a process that is
//! known is found at the next look, and a library that is opened later within [`AGAIN`].

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt::Write as _,
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    mem::MaybeUninit,
    os::unix::fs::MetadataExt as _,
    time::Duration,
};

use rustix::fs::readlinkat_raw;

use crate::target::{Process, TargetError, executed_files, mapped_objects, processes, started_at};

/// How long it takes until a process's mappings are looked at again.
pub(super) const AGAIN: Duration = Duration::from_secs(30);
/// `PATH_MAX`, and what the kernel adds to the name of a file that is gone.
const LONGEST_LINK: usize = 4096 + 16;

/// What has changed about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It was not there at the last look, or executes another program now; with the fingerprint of what it is made
    /// of: processes with the same one are alike to all profiles.
    Came(Process, u64),
    /// It has mapped other objects than before.
    Mapped(Process, u64),
    /// It is no longer there.
    Gone(u32),
}

/// What was seen of a process.
#[derive(Clone, Debug)]
struct Seen {
    /// What its link to its executable says; `None`: nobody's program, such as a kernel thread.
    exe: Option<Box<[u8]>>,
    /// A thread of the kernel, which executes a program within a moment of its birth or never.
    of_kernel: bool,
    start_time: u64,
    /// What it is made of.
    objects: u64,
    /// The files that it executes code from, as they are told at the least cost.
    files: Option<u64>,
    looked: Duration,
    /// The look at which it was listed last.
    listed: u64,
}

/// The processes that are known.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    seen: BTreeMap<u32, Seen>,
    links: Links,
    looks: u64,
}

impl Arrivals {
    /// Looks at all processes; `now` is a time since any fixed moment. Fails only where `/proc` cannot be listed.
    pub(super) fn look(&mut self, now: Duration) -> std::io::Result<Vec<Change>> {
        let pids = processes()?;
        self.looks += 1;
        let mut changes = Vec::new();
        for pid in pids {
            self.look_at(pid, now, &mut changes)?;
        }
        self.forget_unlisted(&mut changes);
        Ok(changes)
    }

    /// Looks at one process that is listed.
    fn look_at(
        &mut self,
        pid: u32,
        now: Duration,
        changes: &mut Vec<Change>,
    ) -> std::io::Result<()> {
        let listed = self.looks;
        let seen = match self.seen.entry(pid) {
            Entry::Vacant(unknown) => {
                let exe = self.links.exe(pid)?.map(Box::from);
                let (seen, change) = meet(pid, exe, now);
                changes.extend(change);
                if let Some(seen) = seen {
                    unknown.insert(Seen { listed, ..seen });
                }
                return Ok(());
            }
            Entry::Occupied(known) => known.into_mut(),
        };
        let is_due = now.saturating_sub(seen.looked) >= AGAIN;
        if seen.of_kernel && !is_due {
            seen.listed = listed;
            return Ok(());
        }
        let exe = self.links.exe(pid)?;
        if seen.exe.as_deref() != exe {
            let (met, change) = meet(pid, exe.map(Box::from), now);
            changes.extend(change);
            // One that has gone since it was listed is not listed any more.
            if let Some(met) = met {
                *seen = Seen { listed, ..met };
            }
            return Ok(());
        }
        seen.listed = listed;
        match (is_due, exe.is_some()) {
            (true, true) => changes.extend(again(pid, seen, now)),
            (true, false) => seen.looked = now,
            (false, _) => {}
        }
        Ok(())
    }

    /// Forgets those that the last look did not find.
    fn forget_unlisted(&mut self, changes: &mut Vec<Change>) {
        self.seen.retain(|pid, seen| {
            let is_there = seen.listed == self.looks;
            if !is_there {
                changes.push(Change::Gone(*pid));
            }
            is_there
        });
    }

    /// Whether none was seen yet.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

/// Reads what is read most, without a path that begins at the root, or memory, of its own for each process.
#[derive(Debug, Default)]
struct Links {
    proc: Option<File>,
    path: String,
    link: Vec<MaybeUninit<u8>>,
}

impl Links {
    /// What the link to a process's executable says; `None` where it has none, or is gone. Fails only where `/proc`
    /// cannot be opened.
    fn exe(&mut self, pid: u32) -> std::io::Result<Option<&[u8]>> {
        let proc = match &mut self.proc {
            Some(proc) => proc,
            none => none.insert(File::open("/proc")?),
        };
        self.path.clear();
        // Into a string, which takes all.
        let _ = write!(self.path, "{pid}/exe");
        self.link.resize(LONGEST_LINK, MaybeUninit::uninit());
        let read = readlinkat_raw(proc, self.path.as_str(), &mut self.link[..]);
        Ok(read.ok().map(|(link, _)| &*link))
    }
}

/// Looks at one process for the first time, or as if it were; no more is known of it where it has gone.
fn meet(pid: u32, exe: Option<Box<[u8]>>, now: Duration) -> (Option<Seen>, Option<Change>) {
    let unknown = Seen {
        exe,
        of_kernel: false,
        start_time: 0,
        objects: 0,
        files: None,
        looked: now,
        listed: 0,
    };
    match Process::open(pid) {
        Ok(process) => {
            // First the files: what is mapped meanwhile is found to be new later.
            let files = executed_files(pid).ok();
            let objects = objects(&process);
            let start_time = process.start_time;
            // Spread over the time, so that those that were there at the start are not all due at once.
            let early = AGAIN.mul_f64(f64::from(pid % 16) / 16.0);
            let looked = now.saturating_sub(early);
            let seen = Seen { start_time, objects, files, looked, ..unknown };
            (Some(seen), Some(Change::Came(process, objects)))
        }
        Err(TargetError::NoSuchProcess { .. } | TargetError::Ended { .. }) => (None, None),
        // What cannot be a target now can become one only by executing a program.
        Err(error) => {
            let of_kernel = matches!(error, TargetError::KernelThread { .. });
            (Some(Seen { of_kernel, ..unknown }), None)
        }
    }
}

/// Looks at a process again that still executes the same program.
fn again(pid: u32, seen: &mut Seen, now: Duration) -> Option<Change> {
    seen.looked = now;
    let files = executed_files(pid).ok();
    if files.is_some() && files == seen.files && started_at(pid) == Some(seen.start_time) {
        return None;
    }
    let process = Process::open(pid).ok()?;
    let objects = objects(&process);
    let start_time = process.start_time;
    let is_same = start_time == seen.start_time;
    let has_mapped = objects != seen.objects;
    (seen.start_time, seen.objects, seen.files) = (start_time, objects, files);
    match (is_same, has_mapped) {
        (false, _) => Some(Change::Came(process, objects)),
        (true, true) => Some(Change::Mapped(process, objects)),
        (true, false) => None,
    }
}

/// A number for a process's executable, root directory, and the set of objects that it has mapped; 0 where that cannot
/// be told.
fn objects(process: &Process) -> u64 {
    let Ok(objects) = mapped_objects(process.pid) else { return 0 };
    let mut inodes: Vec<(u64, u64)> = objects.into_iter().map(|object| object.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    let root = std::fs::metadata(process.root()).map(|root| (root.dev(), root.ino())).ok();
    let mut hasher = DefaultHasher::new();
    (&process.exe, root, inodes).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::testing::Waiting;

    fn came(changes: &[Change], pid: u32) -> bool {
        changes
            .iter()
            .any(|change| matches!(change, Change::Came(process, _) if process.pid == pid))
    }

    /// A process is told once when it comes and once when it goes; in between it is quiet.
    #[test]
    fn one_process() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.is_empty());
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        assert!(came(&arrivals.look(Duration::from_secs(1)).unwrap(), pid));
        let quiet = arrivals.look(Duration::from_secs(2)).unwrap();
        assert!(!came(&quiet, pid) && !quiet.contains(&Change::Gone(pid)), "{quiet:?}");
        // Looked at again, it has not changed.
        let later = arrivals.look(AGAIN * 3).unwrap();
        assert!(!came(&later, pid), "{later:?}");
        assert!(!arrivals.is_empty());
        drop(cat);
        let gone = arrivals.look(AGAIN * 3 + Duration::from_secs(1)).unwrap();
        assert!(gone.contains(&Change::Gone(pid)), "{gone:?}");
    }

    /// A number that was given to another process, or another program in the same process, is a newcomer.
    #[test]
    fn another_program() {
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        arrivals.look(Duration::from_secs(1)).unwrap();
        let other = Seen { exe: Some(Box::from(*b"/bin/other")), ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, other);
        assert!(came(&arrivals.look(Duration::from_secs(2)).unwrap(), pid));
        let older = Seen { start_time: 1, looked: Duration::ZERO, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, older);
        assert!(came(&arrivals.look(AGAIN * 2).unwrap(), pid));
        let fewer = Seen {
            objects: 1,
            files: Some(1),
            looked: Duration::ZERO,
            ..arrivals.seen[&pid].clone()
        };
        arrivals.seen.insert(pid, fewer);
        let changes = arrivals.look(AGAIN * 4).unwrap();
        let mapped =
            |change: &Change| matches!(change, Change::Mapped(process, _) if process.pid == pid);
        assert!(changes.iter().any(mapped), "{changes:?}");
        // While the files are the same, nobody asks what else it is made of.
        let alike = Seen { objects: 1, looked: Duration::ZERO, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, alike);
        let changes = arrivals.look(AGAIN * 6).unwrap();
        assert!(!changes.iter().any(mapped) && !came(&changes, pid), "{changes:?}");
    }

    /// Whoever goes between the listing and the look at it is told as gone like all others.
    #[test]
    fn gone_meanwhile() {
        let mut cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        arrivals.look(Duration::from_secs(1)).unwrap();
        cat.0.kill().unwrap();
        cat.0.wait().unwrap();
        let mut changes = Vec::new();
        arrivals.looks += 1;
        arrivals.look_at(pid, Duration::from_secs(2), &mut changes).unwrap();
        arrivals.forget_unlisted(&mut changes);
        assert!(changes.contains(&Change::Gone(pid)), "{changes:?}");
        assert!(arrivals.is_empty());
    }
}
