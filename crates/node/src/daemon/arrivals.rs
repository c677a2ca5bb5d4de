//! Finds processes that start, execute another program, map more, or end.
//!
//! A scan costs one directory listing, which shows new, ended and reused process ids. Everything else costs one system
//! call or more for each process, so it is done rarely, and for a few processes at a time:
//!
//! - Which program a process executes: at every scan while it is young, because that is when programs are executed, and
//!   then each [`LINK_INTERVAL`].
//! - Which files it executes code from: each [`MAPPINGS_INTERVAL`]. A process with the same total size of mappings is taken for
//!   unchanged, at most [`MAX_TRUSTED_SCANS`] times in a row; where the files are the same, nothing else is read.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    fmt::Write as _,
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    mem::MaybeUninit,
    sync::OnceLock,
    time::Duration,
};

use drainprof_process::{
    Process, ProcessError, executed_files, guarded, identity, incarnations, mapped_objects,
    mapped_pages, readers::each, started_at,
};
use rustix::fs::readlinkat_raw;

/// Time between two readings of a process's mappings.
pub(super) const MAPPINGS_INTERVAL: Duration = Duration::from_secs(30);
/// Time between two readings of the program that an older process executes.
const LINK_INTERVAL: Duration = Duration::from_secs(10);
/// Newcomers that one scan reads; the next one reads others.
const MAX_NEWCOMERS_A_SCAN: usize = 512;
/// How long a process is young after its first scan.
const YOUNG_FOR: Duration = Duration::from_secs(60);
/// How many times in a row the size of the mappings is trusted.
const MAX_TRUSTED_SCANS: u32 = 9;
/// `PATH_MAX`, and what the kernel adds to the name of a file that is gone.
const MAX_LINK_BYTES: usize = 4096 + 16;

/// What has changed about a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is new since the last scan, or executes another program now; with its fingerprint: processes with the same
    /// one are alike to all profiles.
    Came(Process, u64),
    /// It maps other objects than before.
    Mapped(Process, u64),
    /// It has ended.
    Gone(u32),
}

/// What is known of a process.
#[derive(Clone, Debug)]
struct Seen {
    /// The target of its link to its executable; `None`: it has none, such as a kernel thread.
    exe: Option<Box<[u8]>>,
    /// A thread of the kernel, which executes a program within a moment of its birth or never.
    of_kernel: bool,
    start_time: u64,
    /// The inode of its directory in `/proc`.
    inode: u64,
    /// Its fingerprint.
    objects: u64,
    /// A fingerprint of the files that it executes code from.
    files: Option<u64>,
    /// How many pages it has mapped.
    pages: Option<(u64, u64)>,
    /// How many times in a row that was trusted.
    trusted: u32,
    /// When it was scanned first.
    met: Duration,
    /// When its link was read last.
    linked: Duration,
    /// When its mappings were read last.
    mapped_at: Duration,
    /// The last scan that listed it.
    listed: u64,
}

/// The processes that are known.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    seen: BTreeMap<u32, Seen>,
    scans: u64,
}

impl Seen {
    /// Whether anything of it is due to be read; `inode` is that of its directory now.
    fn reads(&self, inode: u64, now: Duration) -> bool {
        let since = |then: Duration| now.saturating_sub(then);
        let is_young = since(self.met) < YOUNG_FOR && !self.of_kernel;
        let is_linked = since(self.linked) >= LINK_INTERVAL && !self.of_kernel;
        self.is_due(inode, now) || is_young || is_linked
    }

    /// Whether its mappings are due to be read.
    fn is_due(&self, inode: u64, now: Duration) -> bool {
        self.inode != inode || now.saturating_sub(self.mapped_at) >= MAPPINGS_INTERVAL
    }
}

impl Arrivals {
    /// Scans all processes; `now` is a time since any fixed moment. Fails only where `/proc` cannot be listed. Those that the
    /// kernel does not answer for stay what they were, and are asked again at the next scan.
    pub(super) fn scan(&mut self, now: Duration) -> std::io::Result<Vec<Change>> {
        let listed = incarnations()?;
        self.scans += 1;
        let mut due = Vec::new();
        // The first scan is of all that are there.
        let mut room = if self.seen.is_empty() { usize::MAX } else { MAX_NEWCOMERS_A_SCAN };
        for (pid, inode) in listed {
            match self.seen.get_mut(&pid) {
                None if room > 0 => {
                    room -= 1;
                    due.push((pid, inode, None));
                }
                None => {}
                Some(seen) => {
                    seen.listed = self.scans;
                    if seen.reads(inode, now) {
                        due.push((pid, inode, Some(seen.clone())));
                    }
                }
            }
        }
        let mut changes = Vec::new();
        self.check(due, now, &mut changes);
        self.forget_unlisted(&mut changes);
        Ok(changes)
    }

    /// Checks processes that are listed, with the inodes of their directories and what is known of them.
    fn check(
        &mut self,
        due: Vec<(u32, u64, Option<Seen>)>,
        now: Duration,
        changes: &mut Vec<Change>,
    ) {
        let pids: Vec<(u32, usize)> = due.iter().enumerate().map(|(at, due)| (due.0, at)).collect();
        let found = each(pids, move |pid, at| {
            let (_, inode, known) = due.get(at)?;
            let exe = LINKS.with_borrow_mut(|links| links.exe(pid).map(|exe| exe.map(Box::from)));
            let exe = exe.ok()?;
            Some(check_one((pid, *inode), known.clone(), exe, now))
        });
        for (pid, (seen, change)) in found.into_iter().filter_map(|(pid, one)| Some((pid, one?))) {
            changes.extend(change);
            if let Some(seen) = seen {
                self.seen.insert(pid, Seen { listed: self.scans, ..seen });
            } else if let Some(known) = self.seen.get_mut(&pid) {
                // A process that has ended meanwhile counts as not listed.
                known.listed = 0;
            }
        }
    }

    /// Forgets processes that the last scan did not list.
    fn forget_unlisted(&mut self, changes: &mut Vec<Change>) {
        self.seen.retain(|pid, seen| {
            let is_there = seen.listed == self.scans;
            if !is_there {
                changes.push(Change::Gone(*pid));
            }
            is_there
        });
    }

    /// Forgets a process that is to be found again by the next scan.
    pub(super) fn forget(&mut self, pid: u32) {
        self.seen.remove(&pid);
    }

    /// Whether nothing was scanned yet.
    #[must_use]
    pub(super) fn is_empty(&self) -> bool {
        self.seen.is_empty()
    }
}

thread_local! {
    static LINKS: RefCell<Links> = RefCell::default();
}

/// `/proc`, opened once for all threads that read.
static PROC: OnceLock<File> = OnceLock::new();

fn proc() -> std::io::Result<&'static File> {
    if let Some(proc) = PROC.get() {
        return Ok(proc);
    }
    let opened = File::open("/proc")?;
    Ok(PROC.get_or_init(|| opened))
}

/// Reads links to executables, without an absolute path or memory of its own for each process.
#[derive(Debug, Default)]
struct Links {
    path: String,
    link: Vec<MaybeUninit<u8>>,
}

impl Links {
    /// The target of the link to a process's executable; `None` where it has none, or has ended. Fails only where
    /// `/proc` cannot be opened.
    fn exe(&mut self, pid: u32) -> std::io::Result<Option<&[u8]>> {
        let proc = proc()?;
        self.path.clear();
        // Into a string, which takes all.
        let _ = write!(self.path, "{pid}/exe");
        self.link.resize(MAX_LINK_BYTES, MaybeUninit::uninit());
        let read = readlinkat_raw(proc, self.path.as_str(), &mut self.link[..]);
        Ok(read.ok().map(|(link, _)| &*link))
    }
}

/// What is known of a process now, `None` if it has ended; and what has changed. `exe` is where its link leads.
fn check_one(
    (pid, inode): (u32, u64),
    known: Option<Seen>,
    exe: Option<Box<[u8]>>,
    now: Duration,
) -> (Option<Seen>, Option<Change>) {
    let Some(known) = known.filter(|known| known.exe == exe) else {
        let (seen, change) = meet(pid, exe, now);
        return (seen.map(|seen| Seen { inode, ..seen }), change);
    };
    let is_same = known.inode == inode;
    let is_due = known.is_due(inode, now);
    let mut seen = Seen { linked: now, ..known };
    if !is_due {
        return (Some(seen), None);
    }
    (seen.mapped_at, seen.inode) = (now, inode);
    let change = seen.exe.is_some().then(|| again(pid, &mut seen, is_same)).flatten();
    (Some(seen), change)
}

/// Reads one process for the first time, or again.
fn meet(pid: u32, exe: Option<Box<[u8]>>, now: Duration) -> (Option<Seen>, Option<Change>) {
    let unknown = Seen {
        exe,
        of_kernel: false,
        start_time: 0,
        inode: 0,
        objects: 0,
        files: None,
        pages: None,
        trusted: 0,
        met: now,
        linked: now,
        mapped_at: now,
        listed: 0,
    };
    match Process::open(pid) {
        Ok(process) => {
            // The least precise first: a later scan then finds what is mapped meanwhile.
            let pages = mapped_pages(pid);
            let files = executed_files(pid).ok();
            let objects = fingerprint(&process);
            let start_time = process.start_time;
            // Spread over the time, so that those that were there at the start are not all due at once.
            let part = f64::from(pid % 16) / 16.0;
            let mapped_at = now.saturating_sub(MAPPINGS_INTERVAL.mul_f64(part));
            let linked = now.saturating_sub(LINK_INTERVAL.mul_f64(part));
            let seen = Seen { start_time, objects, files, pages, linked, mapped_at, ..unknown };
            (Some(seen), Some(Change::Came(process, objects)))
        }
        Err(ProcessError::NoSuchProcess { .. } | ProcessError::Ended { .. }) => (None, None),
        // What cannot be a target now can become one only by executing a program.
        Err(error) => {
            let of_kernel = matches!(error, ProcessError::KernelThread { .. });
            (Some(Seen { of_kernel, ..unknown }), None)
        }
    }
}

/// Reads a process again that still executes the same program; `is_same`: it is certainly the same process.
fn again(pid: u32, seen: &mut Seen, is_same: bool) -> Option<Change> {
    let pages = mapped_pages(pid);
    if is_same && pages.is_some() && pages == seen.pages && seen.trusted < MAX_TRUSTED_SCANS {
        seen.trusted += 1;
        return None;
    }
    (seen.pages, seen.trusted) = (pages, 0);
    let files = executed_files(pid).ok();
    if files.is_some() && files == seen.files && started_at(pid) == Some(seen.start_time) {
        return None;
    }
    let process = Process::open(pid).ok()?;
    let objects = fingerprint(&process);
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

/// A fingerprint of a process's executable, root directory and mapped objects; 0 where they cannot be read.
pub(super) fn fingerprint(process: &Process) -> u64 {
    let (pid, root) = (process.pid, process.root());
    let read = guarded(move || (mapped_objects(pid), identity(&root).ok()));
    let Ok((Ok(objects), root)) = read else { return 0 };
    let mut inodes: Vec<(u64, u64)> = objects.into_iter().map(|object| object.inode).collect();
    inodes.sort_unstable();
    inodes.dedup();
    let mut hasher = DefaultHasher::new();
    (&process.exe, root, inodes).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use drainprof_process::testing::Waiting;

    use super::*;

    fn came(changes: &[Change], pid: u32) -> bool {
        changes
            .iter()
            .any(|change| matches!(change, Change::Came(process, _) if process.pid == pid))
    }

    /// A process is reported once when it comes and once when it goes; in between it is quiet.
    #[test]
    fn one_process() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.is_empty());
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        assert!(came(&arrivals.scan(Duration::from_secs(1)).unwrap(), pid));
        let quiet = arrivals.scan(Duration::from_secs(2)).unwrap();
        assert!(!came(&quiet, pid) && !quiet.contains(&Change::Gone(pid)), "{quiet:?}");
        // Looked at again, it has not changed.
        let later = arrivals.scan(MAPPINGS_INTERVAL * 3).unwrap();
        assert!(!came(&later, pid), "{later:?}");
        assert!(!arrivals.is_empty());
        drop(cat);
        let gone = arrivals.scan(MAPPINGS_INTERVAL * 3 + Duration::from_secs(1)).unwrap();
        assert!(gone.contains(&Change::Gone(pid)), "{gone:?}");
    }

    /// A number that was given to another process, or another program in the same process, is a newcomer.
    #[test]
    fn another_program() {
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        arrivals.scan(Duration::from_secs(1)).unwrap();
        let other = Seen { exe: Some(Box::from(*b"/bin/other")), ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, other);
        assert!(came(&arrivals.scan(Duration::from_secs(2)).unwrap(), pid));
        let older = Seen { start_time: 1, inode: 1, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, older);
        assert!(came(&arrivals.scan(Duration::from_secs(3)).unwrap(), pid));
        let fewer = Seen { objects: 1, files: Some(1), pages: None, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, fewer);
        let changes = arrivals.scan(MAPPINGS_INTERVAL * 4).unwrap();
        let mapped =
            |change: &Change| matches!(change, Change::Mapped(process, _) if process.pid == pid);
        assert!(changes.iter().any(mapped), "{changes:?}");
        // While the files are the same, nothing else of it is read.
        let alike = Seen { objects: 1, pages: None, ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, alike);
        let changes = arrivals.scan(MAPPINGS_INTERVAL * 6).unwrap();
        assert!(!changes.iter().any(mapped) && !came(&changes, pid), "{changes:?}");
    }

    /// A library that takes the place of another of the same size is found, if late.
    #[test]
    fn sizes_are_not_trusted_for_ever() {
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        arrivals.scan(Duration::ZERO).unwrap();
        let other = Seen { objects: 1, files: Some(1), ..arrivals.seen[&pid].clone() };
        arrivals.seen.insert(pid, other);
        let mapped =
            |change: &Change| matches!(change, Change::Mapped(process, _) if process.pid == pid);
        let found = (1..=MAX_TRUSTED_SCANS + 1).find(|scan| {
            let changes = arrivals.scan(MAPPINGS_INTERVAL * *scan).unwrap();
            changes.iter().any(mapped)
        });
        assert_eq!(found, Some(MAX_TRUSTED_SCANS + 1));
    }

    /// The program of a process that is not young any more is read less often, unless it may be another process.
    #[test]
    fn old_processes() {
        let cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        let now = YOUNG_FOR * 10;
        arrivals.scan(now).unwrap();
        let known = arrivals.seen[&pid].clone();
        let other = |met, linked, inode| Seen {
            exe: Some(Box::from(*b"/bin/other")),
            met,
            linked,
            mapped_at: now,
            inode,
            ..known.clone()
        };
        let later = now + Duration::from_secs(2);
        for (seen, finds) in [
            (other(now, now, known.inode), true),
            (other(Duration::ZERO, now, known.inode), false),
            (other(Duration::ZERO, now, known.inode + 1), true),
            (other(Duration::ZERO, later.saturating_sub(LINK_INTERVAL), known.inode), true),
        ] {
            arrivals.seen.insert(pid, seen.clone());
            assert_eq!(came(&arrivals.scan(later).unwrap(), pid), finds, "{seen:?}");
        }
    }

    /// A process that ends between the listing and the check is reported as gone like all others.
    #[test]
    fn gone_meanwhile() {
        let mut cat = Waiting::start(std::path::Path::new("/bin/cat"));
        let pid = cat.pid();
        let mut arrivals = Arrivals::default();
        arrivals.scan(Duration::from_secs(1)).unwrap();
        let inode = arrivals.seen[&pid].inode;
        cat.0.kill().unwrap();
        cat.0.wait().unwrap();
        let mut changes = Vec::new();
        arrivals.scans += 1;
        let known = arrivals.seen.get(&pid).cloned();
        arrivals.check(vec![(pid, inode, known)], Duration::from_secs(2), &mut changes);
        arrivals.forget_unlisted(&mut changes);
        assert!(changes.contains(&Change::Gone(pid)), "{changes:?}");
        assert!(arrivals.is_empty());
    }
}
