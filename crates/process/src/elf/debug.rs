//! Finds the separate debug file of an object.
//!
//! By build id under the debug directories, then by `.gnu_debuglink` with its checksum; in the
//! process's own file system first, then in ours, where an administrator installs debug packages for
//! containers. A file that does not prove itself (build id, checksum) is not taken. Called by `Elf`
//! when the object's own tables have no answer, and by `types`.

use std::{
    fs::{self, File},
    io::{self, Read as _},
    os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use nix::unistd::geteuid;

use super::{
    held::Held,
    read::{MAX_FILE, Reader, with_open},
    symbols::SymbolTable,
};
use crate::{
    file::{identity, open_regular, through_root},
    guard::{ask, ask_file},
    printable,
};

/// Where distributions install debug files.
const SYSTEM_DIR: &str = "/usr/lib/debug";
/// Largest debug file whose checksum is computed: the whole file has to be read.
const MAX_CHECKED: u64 = 2 << 30;

/// Where to search for the debug file of an object.
#[derive(Clone, Debug, Default)]
pub struct DebugSearch {
    /// The root of the process (`/proc/PID/root`), if it is to be searched too.
    pub process_root: Option<PathBuf>,
    /// The object's path as the process sees it: a debug link names a file relative to it.
    pub object_path: Option<PathBuf>,
    /// More directories laid out like `/usr/lib/debug`, asked first.
    pub debug_dirs: Vec<PathBuf>,
}

impl DebugSearch {
    /// The debug directories, as they can be opened from here.
    fn directories(&self) -> Vec<PathBuf> {
        let mut all = self.debug_dirs.clone();
        if let Some(root) = &self.process_root {
            all.push(through_root(root, Path::new(SYSTEM_DIR)));
        }
        all.push(PathBuf::from(SYSTEM_DIR));
        all
    }

    pub(super) fn by_build_id(&self, build_id: &str) -> Vec<PathBuf> {
        let (Some(first), Some(rest)) = (build_id.get(..2), build_id.get(2..)) else {
            return Vec::new();
        };
        let name = format!(".build-id/{first}/{rest}.debug");
        self.directories().into_iter().map(|dir| dir.join(&name)).collect()
    }

    fn by_link(&self, name: &[u8]) -> Vec<PathBuf> {
        // The name comes out of the file: a plain name, or it could lead anywhere.
        if name.is_empty() || name.contains(&b'/') || name == b".." {
            return Vec::new();
        }
        let name = Path::new(std::ffi::OsStr::from_bytes(name));
        let Some(dir) = self.object_path.as_deref().and_then(Path::parent) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        // In our own root only where it is the process's: what lies beside the object is the process's to name.
        let root = self.process_root.as_deref().unwrap_or(Path::new("/"));
        // Of a process that has changed its root, we see paths with that root in front.
        let seen = fs::read_link(root).ok().filter(|seen| seen != Path::new("/"));
        let changed = seen.and_then(|seen| dir.strip_prefix(seen).ok());
        for dir in std::iter::once(dir).chain(changed) {
            let beside = through_root(root, dir);
            all.push(beside.join(name));
            all.push(beside.join(".debug").join(name));
        }
        // Packages from before the /usr merge say /lib where the process sees /usr/lib.
        let unmerged = dir.strip_prefix("/usr").ok().map(|rest| Path::new("/").join(rest));
        for debug in self.directories() {
            for dir in std::iter::once(dir).chain(unmerged.as_deref()) {
                all.push(through_root(&debug, dir).join(name));
            }
        }
        all
    }
}

/// A separate debug file that belongs to the object.
#[derive(Debug)]
pub(super) struct DebugFile {
    pub(super) path: PathBuf,
    pub(super) symbols: Option<SymbolTable>,
}

/// What a search found.
#[derive(Debug, Default)]
pub(super) struct Lookup {
    pub(super) file: Option<DebugFile>,
    /// Where it searched, escaped, with the reason where a file was there and not taken.
    pub(super) tried: Vec<String>,
}

/// Searches for the debug file of the object with this build id and debug link.
pub(super) fn find(
    search: &DebugSearch,
    build_id: Option<&str>,
    link: Option<&(Vec<u8>, u32)>,
    owner: u32,
    held: &Arc<Held>,
) -> Lookup {
    let mut tried = Vec::new();
    let by_id = build_id.map(|id| search.by_build_id(id)).unwrap_or_default();
    let by_link = link.map(|(name, _)| search.by_link(name)).unwrap_or_default();
    let candidates = by_id
        .into_iter()
        .map(|path| (path, None))
        .chain(by_link.into_iter().map(|path| (path, link.map(|(_, crc)| *crc))));
    for (path, crc) in candidates {
        let shown = printable(path.as_os_str().as_bytes());
        crate::guard::reads(None, &shown);
        match take((search, owner), &path, build_id, crc, held) {
            Ok(symbols) => {
                return Lookup { file: Some(DebugFile { path, symbols }), tried: Vec::new() };
            }
            Err(None) => tried.push(shown),
            Err(Some(why)) => tried.push(format!("{shown} ({why})")),
        }
    }
    tried.dedup();
    Lookup { file: None, tried }
}

/// Reads a candidate; `Err(None)` where there is no such file, else why it is not taken.
fn take(
    (search, owner): (&DebugSearch, u32),
    path: &Path,
    build_id: Option<&str>,
    crc: Option<u32>,
    held: &Arc<Held>,
) -> Result<Option<SymbolTable>, Option<String>> {
    if let Some(expected) = crc {
        match open(search, owner, path).and_then(checksum) {
            Ok(found) if found == expected => {}
            Ok(_) => return Err(Some("another checksum".into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(None),
            Err(error) => return Err(Some(error.to_string())),
        }
    } else if identity(path).is_err() {
        return Err(None);
    }
    let shown = printable(path.as_os_str().as_bytes());
    let file = open(search, owner, path).map_err(|error| Some(error.to_string()))?;
    let read = with_open(file, &shown, |reader| {
        Ok((reader.build_id()?, reader.symbols(object::elf::SHT_SYMTAB, held)?))
    });
    let (found, symbols) = read.map_err(|error| Some(error.to_string()))?;
    match (build_id, found) {
        (Some(wanted), Some(found)) if wanted != found => Err(Some(format!("build id {found}"))),
        (Some(_), None) if crc.is_none() => Err(Some("no build id".into())),
        _ => Ok(symbols),
    }
}

/// Opens a debug file, if it may say what is in an object of `owner`: where its symbols are, probes go. It must belong to
/// root (the container's, too), to drainprof's user, to the object's owner, or to the owner of the directory that was
/// named, to which no other may write.
pub(super) fn open(search: &DebugSearch, owner: u32, path: &Path) -> io::Result<File> {
    let file = open_regular(path, MAX_FILE)?;
    let about = ask(|| file.metadata())?;
    if about.mode() & 0o002 != 0 {
        return Err(io::Error::other("every user can write to it"));
    }
    let user = about.uid();
    let is_named = || {
        let mut named = search.debug_dirs.iter().filter(|directory| path.starts_with(directory));
        named.any(|directory| {
            let about = ask(|| fs::metadata(directory));
            about.is_ok_and(|about| about.uid() == user && about.mode() & 0o002 == 0)
        })
    };
    let is_of_root = || {
        let root = search.process_root.as_deref();
        root.is_some_and(|root| ask(|| fs::metadata(root)).is_ok_and(|root| root.uid() == user))
    };
    if [0, geteuid().as_raw(), owner].contains(&user) || is_of_root() || is_named() {
        Ok(file)
    } else {
        Err(io::Error::other(format!("it belongs to user {user}, and the object to another one")))
    }
}

/// The checksum that a debug link carries (the common CRC-32), of the whole file.
fn checksum(mut file: File) -> io::Result<u32> {
    if ask(|| file.metadata())?.len() > MAX_CHECKED {
        return Err(io::Error::other(format!("it has more than {MAX_CHECKED} bytes")));
    }
    let mut crc = flate2::Crc::new();
    let mut buffer = vec![0_u8; 1 << 16];
    loop {
        let read = ask_file(|| file.read(&mut buffer))?;
        if read == 0 {
            return Ok(crc.sum());
        }
        crc.update(&buffer[..read]);
    }
}

/// The file that `link` of the debug file at `from` names (`dwz`), proved by its build id.
pub(super) fn find_alternative(
    (search, owner): (&DebugSearch, u32),
    from: &Path,
    name: &[u8],
    build_id: &str,
) -> Option<PathBuf> {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let mut candidates = search.by_build_id(build_id);
    if name.is_absolute() {
        candidates.extend(search.process_root.as_deref().map(|root| through_root(root, name)));
        // The name comes out of the process's file: in our own root it leads to debug files only.
        let is_plain = !name.components().any(|part| part == Component::ParentDir);
        let is_ours = search.directories().iter().any(|directory| name.starts_with(directory));
        if search.process_root.is_none() || (is_plain && is_ours) {
            candidates.push(name.to_owned());
        }
    } else {
        candidates.extend(from.parent().map(|dir| dir.join(name)));
    }
    candidates.into_iter().find(|path| {
        let shown = printable(path.as_os_str().as_bytes());
        let is_it = |reader: &Reader<'_>| Ok(reader.build_id()?.as_deref() == Some(build_id));
        open(search, owner, path)
            .is_ok_and(|file| with_open(file, &shown, is_it).unwrap_or_default())
    })
}
