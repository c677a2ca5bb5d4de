//! `/tmp/perf-PID.map`: what a JIT compiler says about the code that it has made.
//!
//! The file lies in a directory where everybody may write, so it is believed only if the process's user or
//! root owns it, and it is bounded. Opened by `names` while the process lives, read by `resolve`.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader, Read as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    rc::Rc,
};

use super::{root::Root, wire};
use crate::file::open_unlinked;

/// Most of a map that is read.
const MAX_BYTES: u64 = 64 << 20;
/// Longest line.
const MAX_LINE: u64 = 64 << 10;

/// Opens the map of a process that calls itself `pid_inside` and runs as user `uid`.
pub fn open(root: &Root, pid_inside: u32, uid: u32) -> io::Result<File> {
    open_at(&root.join(Path::new(&format!("/tmp/perf-{pid_inside}.map"))), uid)
}

fn open_at(path: &Path, uid: u32) -> io::Result<File> {
    let file = open_unlinked(path, u64::MAX)?;
    let metadata = crate::guard::ask(|| file.metadata())?;
    if metadata.uid() != uid && metadata.uid() != 0 {
        return Err(io::Error::other("it belongs to another user than the process"));
    }
    Ok(file)
}

/// The names of `addresses`, with the bytes from the function's first; `None` where the map has none. Code
/// that was made later in the place of other code wins.
pub(crate) fn names(map: impl io::Read, addresses: &[u64]) -> Vec<Option<(String, u64)>> {
    // Of many addresses, a line may cover all: they share its name.
    let mut found: Vec<Option<(Rc<str>, u64)>> = vec![None; addresses.len()];
    let mut sorted: Vec<(u64, usize)> =
        addresses.iter().enumerate().map(|(index, &address)| (address, index)).collect();
    sorted.sort_unstable();
    let mut reader = BufReader::new(map.take(MAX_BYTES));
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => break,
            Ok(_) => {}
        }
        // The last line may be half written.
        if line.pop() != Some(b'\n') {
            continue;
        }
        let Some((start, size, name)) = parse(&line) else { continue };
        let first = sorted.partition_point(|&(address, _)| address < start);
        let after = first + sorted[first..].partition_point(|&(address, _)| address - start < size);
        if first == after {
            continue;
        }
        let name: Rc<str> = wire::cut(&String::from_utf8_lossy(name)).into();
        for &(address, index) in &sorted[first..after] {
            found[index] = Some((Rc::clone(&name), address - start));
        }
    }
    let owned = |(name, offset): (Rc<str>, u64)| (name.to_string(), offset);
    found.into_iter().map(|one| one.map(owned)).collect()
}

fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let mut parts = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let text = std::str::from_utf8(parts.next()?).ok()?;
        u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
    };
    let (start, size) = (number()?, number()?);
    let name = parts.next()?;
    (!name.is_empty()).then_some((start, size, name))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    /// Names are found by range, the later entry wins, and what is no entry is passed over.
    #[test]
    fn lookup() {
        let map = b"1000 20 first\nzz 1 x\n\n1000\n0x2000 10 a b(c)\n1010 8 later\n3000 10 half";
        let found = names(&map[..], &[0x1001, 0x1012, 0x200f, 0x2010, 0x3001, 0]);
        let name = |name: &str, at| Some((name.to_owned(), at));
        assert_eq!(
            found,
            [name("first", 1), name("later", 2), name("a b(c)", 15), None, None, None]
        );
    }

    /// Endless lines, ranges that wrap and bytes that are no text end in bounded time and memory.
    #[test]
    fn hostile_maps() {
        let mut map = vec![b'f'; 1 << 20];
        map.extend(b"\nffffffffffffffff ffffffffffffffff \xff\xfe\n0 ffffffffffffffff all\n");
        let found = names(&map[..], &[5, u64::MAX]);
        assert_eq!(found[0], Some(("all".to_owned(), 5)));
        assert_eq!(found[1].as_ref().map(|(name, _)| name.as_str()), Some("\u{fffd}\u{fffd}"));
        assert_eq!(names(io::repeat(b'f'), &[1]), [None]);
    }

    /// A map of another user, a link, and a pipe are refused; the user's own and root's are taken.
    #[test]
    fn owners() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("perf-1.map");
        fs::write(&path, "1000 20 f\n").unwrap();
        let owner = fs::metadata(&path).unwrap().uid();
        assert!(open_at(&path, owner).is_ok());
        assert_eq!(open_at(&path, owner + 1).is_ok(), owner == 0);
        if owner == 0 && std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
            assert!(open_at(&path, 12_345).is_ok());
            assert!(open_at(&path, 54_321).is_err());
        }
        let link = dir.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(open_at(&link, owner).is_err());
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open_at(&pipe, owner).is_err());
    }
}
