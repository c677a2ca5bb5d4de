//! Which Debian package a file is from, and which one has its symbols.
//!
//! Reads dpkg's lists of files in the process's own file system. Where there are none, or they do not know
//! the file, nothing is said: a build id still leads to a debug file.

use std::{
    collections::HashMap,
    fs,
    io::{BufRead as _, BufReader},
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

use drainprof_process::{identity, open_directory, open_regular, through_root};

/// Where dpkg keeps its lists.
const LISTS: &str = "/var/lib/dpkg/info";
/// Most packages and most bytes of one list that are examined (the largest are a few MiB).
const MAX_LISTS: usize = 20_000;
const MAX_LIST_BYTES: u64 = 32 << 20;
/// Longest line that is examined.
const MAX_LINE: usize = 4096;

/// The packages that were looked up so far, by root directory and path.
#[derive(Debug, Default)]
pub(super) struct Packages {
    known: HashMap<((u64, u64), PathBuf), Option<String>>,
}

impl Packages {
    /// The package that `path` is from, as the process with the root `root` sees it.
    pub(super) fn owner(&mut self, root: &Path, path: &Path) -> Option<String> {
        let identity = identity(root).ok()?;
        self.known
            .entry((identity, path.to_owned()))
            .or_insert_with(|| owner(&through_root(root, Path::new(LISTS)), path))
            .clone()
    }
}

/// The package that has the symbols of `package`'s files, as Debian calls it.
pub(super) fn with_symbols(package: &str) -> String {
    // The C library's are in the archive proper; all others are in the one for debugging.
    match package {
        "libc6" => "libc6-dbg".to_owned(),
        other => format!("{other}-dbgsym (in Debian's archive debian-debug)"),
    }
}

fn owner(lists: &Path, path: &Path) -> Option<String> {
    // Before the /usr merge, packages said /lib for what the process sees under /usr/lib.
    let wanted = path.as_os_str().as_bytes();
    let unmerged = wanted.strip_prefix(b"/usr").unwrap_or(wanted);
    let lists = open_directory(lists).ok()?;
    let entries = fs::read_dir(format!("/proc/self/fd/{}", lists.as_raw_fd())).ok()?;
    for entry in entries.take(MAX_LISTS).flatten() {
        let list = entry.path();
        if list.extension().is_none_or(|ending| ending != "list") {
            continue;
        }
        if names(&list, &[wanted, unmerged]) {
            let package = list.file_stem()?.to_str()?;
            // `libc6:amd64.list`
            let name = package.split(':').next().unwrap_or(package);
            let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
            return name.chars().all(plain).then(|| name.to_owned());
        }
    }
    None
}

fn names(list: &Path, wanted: &[&[u8]]) -> bool {
    let Ok(file) = open_regular(list, MAX_LIST_BYTES) else { return false };
    let mut reader = BufReader::new(file);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(1..) => {}
            _ => return false,
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        if text.len() <= MAX_LINE && wanted.contains(&text) {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file is found in its package's list, also where the list is older than the /usr merge; others and
    /// damaged lists are not.
    #[test]
    fn owners() {
        let directory = tempfile::TempDir::new().unwrap();
        let put = |name: &str, text: &[u8]| fs::write(directory.path().join(name), text).unwrap();
        put("libthing1:amd64.list", b"/.\n/lib\n/lib/libthing.so.1\n");
        put("server.list", b"/usr\n/usr/sbin/server");
        put("server.md5sums", b"/usr/sbin/other\n");
        put("bad name.list", b"/usr/bin/strange\n");
        let of = |path: &str| owner(directory.path(), Path::new(path));
        assert_eq!(of("/usr/lib/libthing.so.1").as_deref(), Some("libthing1"));
        assert_eq!(of("/usr/sbin/server").as_deref(), Some("server"));
        assert_eq!(of("/usr/sbin/other"), None);
        assert_eq!(of("/usr/bin/strange"), None, "no package is called so");
        assert_eq!(owner(&directory.path().join("nowhere"), Path::new("/x")), None);
    }

    /// The C library's symbols have a package in the archive proper.
    #[test]
    fn symbols() {
        assert_eq!(with_symbols("libc6"), "libc6-dbg");
        assert!(with_symbols("nginx-light").starts_with("nginx-light-dbgsym "));
    }
}
