//! Opening and reading files that somebody else may have prepared.

use std::{
    fs::{File, OpenOptions},
    io::{self, IoSliceMut, Read as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};

/// `path`, as a process with the root directory `root` sees it, from here.
#[must_use]
pub fn through_root(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Reads memory of process `pid` from `address` on, as much of `bytes` as can be read; says how many bytes.
pub(crate) fn read_memory(pid: u32, address: u64, bytes: &mut [u8]) -> Result<usize, Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::EFAULT)?;
    let remote = [RemoteIoVec { base, len: bytes.len() }];
    process_vm_readv(Pid::from_raw(pid.cast_signed()), &mut [IoSliceMut::new(bytes)], &remote)
}

/// Opens a regular file for reading. Never blocks on a pipe and never reads a device.
pub fn open_regular(path: &Path, max_bytes: u64) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY)
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    if metadata.len() > max_bytes {
        return Err(too_large(max_bytes));
    }
    Ok(file)
}

/// Opens a file at the first of several paths where it stands with this device and inode.
pub fn open_same<'a>(
    inode: (u64, u64),
    paths: impl IntoIterator<Item = &'a Path>,
    max_bytes: u64,
) -> io::Result<File> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for path in paths {
        match open_regular(path, max_bytes) {
            Ok(file) => {
                let metadata = file.metadata()?;
                if (metadata.dev(), metadata.ino()) == inode {
                    return Ok(file);
                }
                last = io::Error::other("another file stands there now");
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads a `/proc` file (whose size is not known beforehand), up to `max_bytes`.
pub fn read_proc(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    // Nearly all of them fit; an empty vector would be filled by a few dozen bytes at first, each with a call of its own.
    let mut bytes = Vec::with_capacity(4096);
    File::open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(max_bytes));
    }
    Ok(bytes)
}

fn too_large(max_bytes: u64) -> io::Error {
    let what = format!("it is larger than {} MiB", max_bytes >> 20);
    io::Error::new(io::ErrorKind::FileTooLarge, what)
}
