//! The family of a process: the processes that one program has forked, which belong together.
//!
//! Prefork servers (a master and its workers, a postmaster and its backends) are one program to their
//! operator. Called by `cli` for `attach --family`, and by `discover` to say that one command suffices.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    os::unix::fs::DirEntryExt as _,
    path::Path,
};

use super::{
    ProcessError, identity,
    process::parent_of,
    readers::{ask, each, open},
};

/// Most processes that are examined: the largest `pid_max` that Linux knows.
const MAX_PROCESSES: usize = 4 << 20;

/// Who is whose child, at about one moment: children come and go while it is read.
#[derive(Clone, Debug, Default)]
pub struct Kinship {
    parents: BTreeMap<u32, u32>,
}

impl Kinship {
    /// Reads the parents of all processes that `/proc` shows.
    pub fn read() -> std::io::Result<Self> {
        let all = each(processes()?.map(|pid| (pid, ())), |pid, ()| parent_of(pid));
        // One that the kernel does not answer for has no relatives.
        let parents = all.into_iter().filter_map(|(pid, parent)| Some((pid, parent?))).collect();
        Ok(Self { parents })
    }

    /// Child and parent in pairs, for tests.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn of(pairs: &[(u32, u32)]) -> Self {
        Self { parents: pairs.iter().copied().collect() }
    }

    /// The parent of a process; `None` where it is gone, hidden, or the first of its namespace.
    #[must_use]
    pub fn parent(&self, pid: u32) -> Option<u32> {
        self.parents.get(&pid).copied().filter(|&parent| parent != 0 && parent != pid)
    }

    /// The oldest ancestor of `pid`, itself included, up to which `same` holds without a gap.
    fn top(&self, pid: u32, same: impl Fn(u32) -> bool) -> u32 {
        let mut top = pid;
        let mut seen = HashSet::from([pid]);
        while let Some(parent) = self.parent(top).filter(|&parent| same(parent)) {
            // What was read at different moments can show a circle.
            if !seen.insert(parent) {
                break;
            }
            top = parent;
        }
        top
    }

    /// `top` and all that descend from it, parents before their children.
    fn below(&self, top: u32) -> Vec<u32> {
        let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for &pid in self.parents.keys() {
            if let Some(parent) = self.parent(pid) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut family = vec![top];
        let mut seen = HashSet::from([top]);
        let mut next = 0;
        while let Some(pid) = family.get(next) {
            let of = children.get(pid).map(Vec::as_slice).unwrap_or_default();
            family.extend(of.iter().filter(|&&pid| seen.insert(pid)));
            next += 1;
        }
        family
    }
}

/// All processes that `/proc` shows, kernel threads included.
pub fn processes() -> std::io::Result<impl Iterator<Item = u32>> {
    Ok(incarnations()?.map(|(pid, _)| pid))
}

/// The same, each with the inode of its directory: as long as it stays, so does the process. Another one may be another
/// process, or the same whose directory the kernel had forgotten.
pub fn incarnations() -> std::io::Result<impl Iterator<Item = (u32, u64)>> {
    incarnations_in(Path::new("/proc"))
}

/// The same, where procfs is mounted at `proc`.
pub(crate) fn incarnations_in(
    proc: &Path,
) -> std::io::Result<impl Iterator<Item = (u32, u64)> + use<>> {
    let entries = fs::read_dir(proc)?;
    Ok(entries.take(MAX_PROCESSES).filter_map(|entry| {
        let entry = entry.ok()?;
        Some((entry.file_name().to_str()?.parse().ok()?, entry.ino()))
    }))
}

/// The family of process `pid`: from its topmost ancestor that runs the same executable down to all that
/// descend from that one, whatever they run. Parents come before their children.
pub fn family(pid: u32) -> Result<Vec<u32>, ProcessError> {
    let process = open(pid)?;
    let kinship = Kinship::read().map_err(|source| ProcessError::Read {
        pid,
        step: "list the family",
        path: "/proc".into(),
        source,
    })?;
    let own = executable(pid);
    let top = kinship.top(pid, |other| own.is_some() && executable(other) == own);
    let family = kinship.below(top);
    if ask(pid, move || process.is_alive())? {
        Ok(family)
    } else {
        Err(ProcessError::Ended { pid })
    }
}

/// Device and inode of the file that a process executes.
fn executable(pid: u32) -> Option<(u64, u64)> {
    ask(pid, move || identity(Path::new(&format!("/proc/{pid}/exe"))).ok()).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The top is found through ancestors of the same program only, and everything below belongs to it.
    #[test]
    fn families() {
        // 1 init, 10 master, 11 and 12 workers, 13 a helper of 12, 20 another program.
        let all = Kinship::of(&[(1, 0), (10, 1), (11, 10), (12, 10), (13, 12), (20, 1)]);
        let same = |pid| (10..=12).contains(&pid);
        assert_eq!(all.top(12, same), 10);
        assert_eq!(all.top(10, same), 10);
        assert_eq!(all.below(10), [10, 11, 12, 13]);
        assert_eq!(all.below(11), [11]);
        assert_eq!(all.below(1), [1, 10, 20, 11, 12, 13]);
        assert_eq!(all.below(99), [99], "a process without relatives");
    }

    /// Parents that were read while numbers were reused may form a circle; it is gone through once.
    #[test]
    fn circles_end() {
        let all = Kinship::of(&[(2, 3), (3, 2), (4, 4)]);
        assert_eq!(all.top(2, |_| true), 3);
        assert_eq!(all.below(2), [2, 3]);
        assert_eq!(all.top(4, |_| true), 4);
    }

    /// A child belongs to the family of its parent as soon as it is there.
    #[test]
    fn own_children() {
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let found = Kinship::read().unwrap();
        assert_eq!(found.parent(child.id()), Some(std::process::id()));
        assert!(found.below(std::process::id()).contains(&child.id()));
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
