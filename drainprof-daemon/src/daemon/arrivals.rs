//! Who is on this machine: processes that have come, that execute another program, that have mapped more, or gone.
//!
//! A look costs one directory listing and one link per process; what takes longer (start time, mappings) is looked at
//! once per process, and then again every half minute, a few processes at a time. So a program that is executed by a
//! process that is known is found at the next look, and a library that is opened later within [`AGAIN`].

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    os::unix::fs::MetadataExt as _,
    path::PathBuf,
    time::Duration,
};

use crate::target::{Process, TargetError, mapped_objects, processes};

/// How long it takes until a process's mappings are looked at again.
pub(super) const AGAIN: Duration = Duration::from_secs(30);

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
    /// `None`: nobody's program, such as a kernel thread.
    exe: Option<PathBuf>,
    start_time: u64,
    objects: u64,
    looked: Duration,
}

/// The processes that are known.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    seen: BTreeMap<u32, Seen>,
}

impl Arrivals {
    /// Looks at all processes; `now` is a time since any fixed moment. Fails only where `/proc` cannot be listed.
    pub(super) fn look(&mut self, now: Duration) -> std::io::Result<Vec<Change>> {
        let pids: Vec<u32> = processes()?.collect();
        let mut changes = Vec::new();
        let mut rest = std::mem::take(&mut self.seen);
        for pid in pids {
            let known = rest.remove(&pid);
            if let Some(seen) = look_at(pid, known, now, &mut changes) {
                self.seen.insert(pid, seen);
            }
        }
        // Those that changed in between are told as gone first, then as new by the next look.
        changes.extend(rest.into_keys().map(Change::Gone));
        Ok(changes)
    }

    /// Whether none was seen yet.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

/// Looks at one process; `None` where it has gone.
fn look_at(
    pid: u32,
    known: Option<Seen>,
    now: Duration,
    changes: &mut Vec<Change>,
) -> Option<Seen> {
    let exe = std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    if let Some(seen) = known {
        let same = seen.exe == exe;
        if same && (exe.is_none() || now.saturating_sub(seen.looked) < AGAIN) {
            return Some(seen);
        }
        if same {
            return Some(again(pid, seen, now, changes));
        }
    }
    match Process::open(pid) {
        Ok(process) => {
            let objects = objects(&process);
            let start_time = process.start_time;
            changes.push(Change::Came(process, objects));
            // Spread over the time, so that those that were there at the start are not all due at once.
            let early = AGAIN.mul_f64(f64::from(pid % 16) / 16.0);
            Some(Seen { exe, start_time, objects, looked: now.saturating_sub(early) })
        }
        Err(TargetError::NoSuchProcess { .. } | TargetError::Ended { .. }) => None,
        // What cannot be a target now can become one only by executing a program.
        Err(_) => Some(Seen { exe, start_time: 0, objects: 0, looked: now }),
    }
}

/// Looks at a process again that still executes the same program.
fn again(pid: u32, seen: Seen, now: Duration, changes: &mut Vec<Change>) -> Seen {
    let Ok(process) = Process::open(pid) else { return Seen { looked: now, ..seen } };
    let seen_objects = seen.objects;
    let objects = objects(&process);
    let start_time = process.start_time;
    if start_time != seen.start_time {
        changes.push(Change::Came(process, objects));
    } else if objects != seen_objects {
        changes.push(Change::Mapped(process, objects));
    }
    Seen { start_time, objects, looked: now, ..seen }
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
        let other = Seen { exe: Some("/bin/other".into()), ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, other);
        assert!(came(&arrivals.look(Duration::from_secs(2)).unwrap(), pid));
        let older = Seen { start_time: 1, looked: Duration::ZERO, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, older);
        assert!(came(&arrivals.look(AGAIN * 2).unwrap(), pid));
        let fewer = Seen { objects: 1, looked: Duration::ZERO, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, fewer);
        let changes = arrivals.look(AGAIN * 4).unwrap();
        let mapped =
            |change: &Change| matches!(change, Change::Mapped(process, _) if process.pid == pid);
        assert!(changes.iter().any(mapped), "{changes:?}");
    }
}
