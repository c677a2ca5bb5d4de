//! Opening and reading files that an attacker may have prepared.
//!
//! Every file that a process, its mappings or its ELF files name is opened here. A path inside a process's root
//! directory (`/proc/PID/root/…`) never leaves it, whatever its links say, and no path leads through one of the links
//! of `/proc` that lead anywhere. A file is found first, without opening it; it is opened only if it is a regular one,
//! and it is the very one that was found. Needs `openat2`, which all supported kernels have.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSliceMut, Read as _},
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, makedev, openat,
    openat2, statx,
};

use crate::guard;

/// How often a path is walked that is changed meanwhile.
const MAX_WALKS: u32 = 64;

/// `path`, as a process with the root directory `root` sees it, from here.
#[must_use]
pub fn through_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads memory of process `pid` from `address` on, as much of `bytes` as can be read; returns how many bytes.
///
/// # Errors
/// What `process_vm_readv` says where not even the first byte can be read: `EFAULT` where nothing is mapped, `EPERM`,
/// `ESRCH`.
pub fn read_memory(pid: u32, address: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let remote = [RemoteIoVec { base, len: bytes.len() }];
    let into = &mut [IoSliceMut::new(bytes)];
    guard::ask_process(pid, || process_vm_readv(Pid::from_raw(pid.cast_signed()), into, &remote))
}

/// Reads as many bytes from each of these addresses, which divide `bytes` evenly; how many bytes there are before the first
/// that cannot be read. The kernel takes 1024 addresses at once.
pub fn read_memory_at(pid: u32, addresses: &[u64], bytes: &mut [u8]) -> Result<usize, Errno> {
    let len = bytes.len() / addresses.len().max(1);
    let part = |address: &u64| {
        let base = usize::try_from(*address).map_err(|_| Errno::EFAULT)?;
        Ok(RemoteIoVec { base, len })
    };
    let remote: Vec<RemoteIoVec> = addresses.iter().map(part).collect::<Result<_, Errno>>()?;
    let into = &mut [IoSliceMut::new(bytes)];
    guard::ask_process(pid, || process_vm_readv(Pid::from_raw(pid.cast_signed()), into, &remote))
}

/// Where the walk along a path begins.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// The path is a link of `/proc` to a file that the kernel has open: nothing is walked.
    Link,
    /// In this directory, which is taken for the root.
    In(PathBuf),
}

/// Takes a path apart: where its walk begins, and along what.
fn split(path: &Path) -> (Start, PathBuf) {
    let mut parts = path.components();
    let mut next = || match parts.next() {
        Some(Component::Normal(part)) => part.to_str().unwrap_or_default(),
        Some(Component::RootDir) => "/",
        _ => "",
    };
    let head = [next(), next(), next(), next()];
    let rest = parts.as_path();
    let whole = (Start::In("/".into()), path.to_owned());
    let ["/", "proc", process, kind] = head else { return whole };
    if process != "self" && !process.bytes().all(|byte| byte.is_ascii_digit()) {
        return whole;
    }
    let directory = Path::new("/proc").join(process).join(kind);
    let link = (Start::Link, path.to_owned());
    let mut names = rest.components();
    let first = names.next();
    match (kind, first) {
        ("exe" | "root", None) => link,
        ("root", Some(_)) => (Start::In(directory), rest.to_owned()),
        ("map_files" | "fd", Some(_)) if names.as_path().as_os_str().is_empty() => link,
        ("fd", Some(first)) => (Start::In(directory.join(first)), names.as_path().to_owned()),
        _ => whole,
    }
}

/// How a path is walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// File systems are asked for names that are not known.
    Any,
    /// Only along names that the kernel knows.
    Known,
}

/// Finds what is at `path`, without opening it; with `flags`.
fn locate(path: &Path, flags: OFlags, walk: Walk) -> io::Result<OwnedFd> {
    let path = std::path::absolute(path)?;
    let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
    let (root, path) = match split(&path) {
        (Start::Link, path) => {
            return Ok(guard::ask_path(&path, || openat(CWD, &path, flags, Mode::empty()))?);
        }
        (Start::In(root), path) => (root, path),
    };
    let is_foreign = root != Path::new("/");
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = guard::ask_path(&root, || openat(CWD, &root, directory, Mode::empty()))?;
    let mut resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    // Where reads hang, no file system is asked for names that another process may have chosen.
    let is_known = walk == Walk::Known || (is_foreign && guard::is_cautious());
    if is_known {
        resolve |= ResolveFlags::CACHED;
    }
    let mut walks = 1;
    loop {
        return match guard::ask(|| openat2(&root, &path, flags, Mode::empty(), resolve)) {
            // A directory was moved on the way.
            Err(rustix::io::Errno::AGAIN) if walks < MAX_WALKS && !is_known => {
                walks += 1;
                continue;
            }
            Err(rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => Err(io::Error::other(
                "openat2 is refused: allow it in the seccomp filter that drainprof runs under",
            )),
            found => Ok(found?),
        };
    }
}

/// What the kernel knows of a file already: no server is asked, which might not answer.
fn stat(found: &OwnedFd) -> io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::NLINK;
    Ok(statx(found, "", flags, wanted)?)
}

fn identity_of(found: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = stat(found)?;
    Ok((makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

/// The device and inode of what is at `path`; what it is, is not opened.
pub fn identity(path: &Path) -> io::Result<(u64, u64)> {
    identity_of(&locate(path, OFlags::empty(), Walk::Any)?)
}

/// The same, if the kernel knows the way: no server is asked for a name. The names of files in use are known.
pub(crate) fn known_identity(path: &Path) -> io::Result<(u64, u64)> {
    identity_of(&locate(path, OFlags::empty(), Walk::Known)?)
}

/// Whether the file at `path`, a link of `/proc`, has no name any more.
pub(crate) fn is_unlinked(path: &Path) -> io::Result<bool> {
    Ok(stat(&locate(path, OFlags::empty(), Walk::Any)?)?.stx_nlink == 0)
}

/// Opens what was found for reading, if it is a regular file.
fn read_located(found: &OwnedFd, max_bytes: u64) -> io::Result<File> {
    let mode = stat(found)?.stx_mode;
    if !FileType::from_raw_mode(mode.into()).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY);
    let file = guard::ask(|| options.open(format!("/proc/self/fd/{}", found.as_raw_fd())))?;
    if guard::ask(|| file.metadata())?.len() > max_bytes {
        return Err(too_large(max_bytes));
    }
    Ok(file)
}

/// Opens a regular file for reading. Nothing else is ever opened: no pipe, which would block, and no device.
pub fn open_regular(path: &Path, max_bytes: u64) -> io::Result<File> {
    read_located(&locate(path, OFlags::empty(), Walk::Any)?, max_bytes)
}

/// The same, if `path` itself is no symbolic link.
pub(crate) fn open_unlinked(path: &Path, max_bytes: u64) -> io::Result<File> {
    read_located(&locate(path, OFlags::NOFOLLOW, Walk::Any)?, max_bytes)
}

/// The directory at `path`, held by a descriptor: `/proc/self/fd/N` leads to it.
pub fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    locate(path, OFlags::DIRECTORY, Walk::Any)
}

/// Opens a file at the first of several paths where it stands with this device and inode. No other one is opened.
pub fn open_same<'a>(
    inode: (u64, u64),
    paths: impl IntoIterator<Item = &'a Path>,
    max_bytes: u64,
) -> io::Result<File> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in paths {
        let opened = locate(path, OFlags::empty(), Walk::Any).and_then(|found| {
            if identity_of(&found)? == inode {
                return read_located(&found, max_bytes);
            }
            Err(io::Error::other("another file stands there now"))
        });
        match opened {
            Ok(file) => return Ok(file),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads a `/proc` file (whose size is not known beforehand), up to `max_bytes`.
pub fn read_proc(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Nearly all of them fit; an empty vector would be filled by a few dozen bytes at first, each with a call of its own.
    let mut bytes = Vec::with_capacity(4096);
    guard::ask_path(path, || File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes))?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(max_bytes));
    }
    Ok(bytes)
}

fn too_large(max_bytes: u64) -> io::Error {
    let what = format!("it is larger than {} MiB", max_bytes >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// Which directory a path is walked from, and which links of `/proc` are not walked through at all.
    #[test]
    fn starts() {
        let split = |path: &str| split(Path::new(path));
        for link in [
            "/proc/7/exe",
            "/proc/self/exe",
            "/proc/7/map_files/1-2",
            "/proc/self/fd/3",
            "/proc/7/root",
        ] {
            assert_eq!(split(link), (Start::Link, link.into()), "{link}");
        }
        for (path, root, rest) in [
            ("/proc/7/root/usr/lib/x.so", "/proc/7/root", "usr/lib/x.so"),
            ("/proc/7/root/../../etc/shadow", "/proc/7/root", "../../etc/shadow"),
            ("/proc/self/fd/3/bin/x", "/proc/self/fd/3", "bin/x"),
            ("/usr/lib/x.so", "/", "/usr/lib/x.so"),
            ("/proc/7/cwd/x", "/", "/proc/7/cwd/x"),
            ("/proc/7/task/7/root/x", "/", "/proc/7/task/7/root/x"),
            ("/proc/../proc/7/root/x", "/", "/proc/../proc/7/root/x"),
            ("/proc/7/map_files/1-2/x", "/", "/proc/7/map_files/1-2/x"),
            ("/proc", "/", "/proc"),
        ] {
            assert_eq!(split(path), (Start::In(root.into()), rest.into()), "{path}");
        }
    }

    /// Links stay inside of the root, nothing but regular files is opened, and a file is read only if it is the one that
    /// is wanted.
    #[test]
    fn in_a_root() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(directory.path().join("outside"), "outside").unwrap();
        fs::write(root.join("inside"), "inside").unwrap();
        for (link, to) in [
            ("a/absolute", "/inside"),
            ("a/b/above", "../../../../../inside"),
            ("a/out", "../../outside"),
            ("a/own", "/proc/self/exe"),
            ("a/loop", "loop"),
        ] {
            symlink(to, root.join(link)).unwrap();
        }
        symlink(directory.path().join("outside"), root.join("a/far")).unwrap();
        nix::unistd::mkfifo(&root.join("a/pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let held = open_directory(&root).unwrap();
        let path = |name: &str| PathBuf::from(format!("/proc/self/fd/{}/{name}", held.as_raw_fd()));
        for name in ["inside", "a/absolute", "a/b/above", "../inside"] {
            let text = io::read_to_string(open_regular(&path(name), 100).unwrap()).unwrap();
            assert_eq!(text, "inside", "{name}");
        }
        for name in ["a/out", "a/far", "a/own", "a/loop", "a/pipe", "a", "a/none"] {
            assert!(open_regular(&path(name), 100).is_err(), "{name}");
        }
        // In the whole system, a link of /proc is not walked through either.
        assert!(open_regular(&root.join("a/own"), u64::MAX).is_err());
        assert!(open_regular(Path::new("/dev/null"), 100).is_err());
        assert!(open_regular(&path("inside"), 5).is_err(), "it is larger");
        assert!(open_unlinked(&path("a/absolute"), 100).is_err());
        assert!(open_unlinked(&path("inside"), 100).is_ok());

        let inside = identity(&root.join("inside")).unwrap();
        assert_eq!(known_identity(&path("inside")).unwrap(), inside);
        let (one, other) = (path("a/out"), path("a/absolute"));
        assert!(open_same(inside, [&*one], 100).is_err());
        assert!(open_same(inside, [&*one, &*other], 100).is_ok());
        assert!(open_same((inside.0, inside.1 + 1), [&*other], 100).is_err());
    }
}
