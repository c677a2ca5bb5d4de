//! Which mapped files may be touched at all, by the file systems that they lie on.
//!
//! The server of a FUSE file system is a program, perhaps that of the very user who wants to do harm. A thread that
//! asks it for anything, even a file's size, waits until it answers: not even SIGKILL ends that wait. So such files are
//! left alone. What they lie on is known by device numbers, for which no file system is asked. Called by `mapped`.

use std::{collections::HashMap, os::unix::fs::MetadataExt as _, path::PathBuf, sync::OnceLock};

use nix::sys::stat::{major, makedev};
use rustix::fs::{MemfdFlags, memfd_create};

use crate::{file::read_proc, guard};

/// Most bytes of a list of mounts that are read.
const MAX_BYTES: u64 = 16 << 20;
/// File systems whose server is a program of this machine, or of the one that it is a guest of.
const SERVED: &[&str] = &["fuse", "fuseblk", "virtiofs"];

/// File systems whose server may be gone, or that lie over others.
const REMOTE: &[&str] = &[
    "nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "afs", "lustre", "gpfs", "ocfs2", "gfs2",
    "overlay",
];

/// Why a file is left alone.
const IS_SERVED: &str =
    "it lies on a FUSE file system, whose server could block the reader for ever";
/// Why a file is left alone.
const IS_REMOTE: &str = "its file system may not answer, as several do not now";
/// Why a file is left alone.
const IS_UNKNOWN: &str = "its file system is not mounted any more where that can be seen";

/// The file systems that a process sees, and those that we and process 1 see.
pub(crate) struct Mounts {
    /// The lists of mounts that were not read yet.
    lists: Vec<PathBuf>,
    /// Why a device's files are left alone, and whether always.
    served: HashMap<u64, Option<(&'static str, bool)>>,
}

impl Mounts {
    /// Those of process `pid`; nothing is read before it is needed.
    pub(crate) fn of(pid: u32) -> Self {
        let lists = ["1", "self", &pid.to_string()];
        let lists = lists.map(|process| PathBuf::from(format!("/proc/{process}/mountinfo")));
        Self { lists: lists.into(), served: HashMap::new() }
    }

    /// Why files of `device` are left alone; `None`: they may be read.
    pub(crate) fn refusal(&mut self, device: u64) -> Option<&'static str> {
        // What lies on a block device has no server, except where root has given it one.
        if major(device) != 0 || Some(device) == memory() {
            return None;
        }
        while !self.served.contains_key(&device) {
            let Some(list) = self.lists.pop() else { return Some(IS_UNKNOWN) };
            let text = read_proc(&list, MAX_BYTES).unwrap_or_default();
            for line in text.split(|&byte| byte == b'\n') {
                if let Some((device, served)) = parse(line) {
                    self.served.entry(device).or_insert(served);
                }
            }
        }
        let (why, always) = self.served[&device]?;
        (always || guard::is_cautious()).then_some(why)
    }
}

/// The device of files that exist in memory alone, which is mounted nowhere.
fn memory() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    *DEVICE.get_or_init(|| {
        let file = std::fs::File::from(memfd_create("device", MemfdFlags::CLOEXEC).ok()?);
        Some(file.metadata().ok()?.dev())
    })
}

/// The device of a mount, why its files are left alone, and whether always. Fields that a user may have chosen cannot be mistaken:
/// the kernel escapes the spaces in them.
pub(crate) fn parse(line: &[u8]) -> Option<(u64, Option<(&'static str, bool)>)> {
    let mut words = line.split(|&byte| byte == b' ').map(|word| std::str::from_utf8(word).ok());
    let (major, minor) = words.nth(2)??.split_once(':')?;
    let device = makedev(major.parse().ok()?, minor.parse().ok()?);
    words.find(|word| *word == Some("-"))?;
    let kind = words.next()??;
    let kind = kind.split_once('.').map_or(kind, |(kind, _)| kind);
    let served = SERVED.contains(&kind).then_some((IS_SERVED, true));
    Some((device, served.or_else(|| REMOTE.contains(&kind).then_some((IS_REMOTE, false)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kind is found behind any number of optional fields, whatever the names of mounts are.
    #[test]
    fn lines() {
        const FUSE: Option<(&str, bool)> = Some((IS_SERVED, true));
        const REMOTE: Option<(&str, bool)> = Some((IS_REMOTE, false));
        for (line, expected) in [
            ("43 27 0:39 / /mnt rw - fuse hostile rw,user_id=0", Some((39, FUSE))),
            (
                "43 27 0:40 / /a\\040-\\040ext4 rw shared:1 master:2 - fuse.sshfs x rw",
                Some((40, FUSE)),
            ),
            ("43 27 0:41 / /fuse rw shared:1 - tmpfs fuse rw", Some((41, None))),
            ("43 27 8:1 / / rw - ext4 /dev/fuse rw", Some((makedev(8, 1), None))),
            ("43 27 0:41 / /fuse rw", None),
            ("43 27 x / /fuse rw - fuse", None),
            ("", None),
        ] {
            assert_eq!(parse(line.as_bytes()), expected, "{line}");
        }
        assert_eq!(parse(b"1 2 0:7 /\xff /\xfe rw - overlay \xff rw"), Some((7, REMOTE)));
    }

    /// Our own files may be read, as may those in memory; a device that is mounted nowhere is left alone.
    #[test]
    fn own_devices() {
        let mut mounts = Mounts::of(std::process::id());
        let own = std::fs::metadata("/proc/self/exe").unwrap().dev();
        assert_eq!(mounts.refusal(own), None);
        assert_eq!(mounts.refusal(memory().unwrap()), None);
        assert_eq!(mounts.refusal(makedev(0, 0xf_fff0)), Some(IS_UNKNOWN));
    }
}
