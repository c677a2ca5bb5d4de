//! The files that a process executes code from: `/proc/PID/maps`, grouped by file.
//!
//! Only what the kernel says about mappings; how such a file is opened is `locate`, what is in it `elf`.
//! The text is partly written by the process (file names), so it is parsed as bytes and bounded. The
//! `procfs` crate is not used for it: it wants UTF-8 and trims names.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{BufRead, BufReader, Read as _},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::PathBuf,
};

use super::{ProcessError, locate, printable};

/// Most mappings that are read of one process.
const MAX_LINES: usize = 1_000_000;
/// Longest line: a path of `PATH_MAX` with every character escaped, and the numbers before it.
const MAX_LINE_BYTES: u64 = 32 * 1024;
/// Bytes that are read at once, at most: the kernel gives a page at a time.
const BUFFER: usize = 8 * 1024;

/// One mapping of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of the first address.
    pub file_offset: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// Whether it may be executed.
    pub executable: bool,
}

/// A file with at least one executable mapping, and all mappings of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedObject {
    /// The path as the process sees it; hostile, for opening.
    pub path: PathBuf,
    /// The same, safe to show.
    pub shown_path: String,
    /// The file was unlinked since it was mapped.
    pub deleted: bool,
    /// Another file now stands at its path: it was updated while the process runs on with the old one.
    pub replaced: bool,
    /// A path through which this very file can be opened now.
    pub open_path: PathBuf,
    /// Device and inode, as `stat` gives them for `open_path` (as `/proc/PID/maps` does where it cannot be opened).
    pub inode: (u64, u64),
    /// Its mappings, by address.
    pub mappings: Vec<Mapping>,
}

/// A line of `/proc/PID/maps` that is about a file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct FileLine {
    pub(crate) mapping: Mapping,
    /// Device as the kernel's `st_dev` encodes it.
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The name, unescaped, with ` (deleted)` still at its end.
    pub(crate) name: OsString,
}

/// What is known of a file from the lines alone.
#[derive(Debug)]
pub(crate) struct FileLines {
    pub(crate) name: OsString,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mappings: Vec<Mapping>,
}

/// The files that process `pid` has mapped executable, in address order.
pub fn mapped_objects(pid: u32) -> Result<Vec<MappedObject>, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    let step = "read the mappings";
    let file =
        File::open(&path).map_err(|error| ProcessError::from_io(pid, step, path.clone(), error))?;
    let files = group(BufReader::with_capacity(BUFFER, file)).map_err(|error| match error {
        GroupError::Io(error) => ProcessError::from_io(pid, step, path.clone(), error),
        GroupError::TooMany => too_many(pid, path.clone()),
    })?;
    Ok(files
        .into_iter()
        .map(|file| {
            let located = locate::locate(pid, &file);
            MappedObject {
                shown_path: printable(located.path.as_os_str().as_bytes()),
                path: located.path,
                deleted: located.deleted,
                replaced: located.replaced,
                open_path: located.open_path,
                inode: located.inode,
                mappings: file.mappings,
            }
        })
        .collect())
}

/// A number for the set of files that process `pid` executes code from: another one as soon as one more is mapped, or
/// one is not any more. Which files they are is not looked for, so it costs little more than the read; numbers of
/// different processes say nothing about each other.
pub fn executed_files(pid: u32) -> Result<u64, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    let from_io = |error| ProcessError::from_io(pid, "read the mappings", path.clone(), error);
    let file = File::open(&path).map_err(from_io)?;
    executed(BufReader::with_capacity(BUFFER, file)).map_err(|error| match error {
        GroupError::Io(error) => from_io(error),
        GroupError::TooMany => too_many(pid, path.clone()),
    })
}

/// A number for the files of which the lines say that code of theirs is executed.
fn executed(reader: impl BufRead) -> Result<u64, GroupError> {
    let mut files = Vec::new();
    each_line(reader, |line| files.extend(executed_file(line)))?;
    files.sort_unstable();
    files.dedup();
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    Ok(hasher.finish())
}

/// Device and inode, as the line has them, where it is about code from a file.
fn executed_file(line: &[u8]) -> Option<(u64, u64, u64)> {
    let (_, rest) = split_word(line)?;
    let (flags, rest) = split_word(rest)?;
    if flags.get(2) != Some(&b'x') {
        return None;
    }
    let (_, rest) = split_word(rest)?;
    let (device, rest) = split_word(rest)?;
    let (inode, rest) = split_word(rest)?;
    let name = rest.iter().find(|&&byte| byte != b' ')?;
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok()?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    (inode != 0 && *name == b'/').then_some((
        hex(&device[..colon])?,
        hex(&device[colon + 1..])?,
        inode,
    ))
}

fn too_many(pid: u32, path: PathBuf) -> ProcessError {
    ProcessError::Malformed { pid, path, what: format!("it has more than {MAX_LINES} mappings") }
}

#[derive(Debug)]
enum GroupError {
    Io(std::io::Error),
    TooMany,
}

/// Reads all lines and keeps the files with an executable mapping.
fn group(reader: impl BufRead) -> Result<Vec<FileLines>, GroupError> {
    let mut files: Vec<FileLines> = Vec::new();
    let mut index: HashMap<(u64, u64), usize> = HashMap::new();
    each_line(reader, |line| {
        // A line that cannot be understood is about no file that we could open; the others still count.
        let Some(parsed) = parse_line(line) else { return };
        let at = *index.entry((parsed.device, parsed.inode)).or_insert_with(|| {
            files.push(FileLines {
                name: parsed.name.clone(),
                device: parsed.device,
                inode: parsed.inode,
                mappings: Vec::new(),
            });
            files.len() - 1
        });
        files[at].mappings.push(parsed.mapping);
    })?;
    files.retain(|file| file.mappings.iter().any(|mapping| mapping.executable));
    Ok(files)
}

/// Reads all lines, each without its line break, and of one that is too long its parts.
fn each_line(mut reader: impl BufRead, mut take: impl FnMut(&[u8])) -> Result<(), GroupError> {
    let mut line = Vec::new();
    for _ in 0..MAX_LINES {
        line.clear();
        let read = reader
            .by_ref()
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)
            .map_err(GroupError::Io)?;
        if read == 0 {
            return Ok(());
        }
        take(line.strip_suffix(b"\n").unwrap_or(&line));
    }
    Err(GroupError::TooMany)
}

/// Parses one line; `None` for what is not backed by a file (`[heap]`, `[vdso]`, anonymous memory).
pub(crate) fn parse_line(line: &[u8]) -> Option<FileLine> {
    let (range, rest) = split_word(line)?;
    let (flags, rest) = split_word(rest)?;
    let (offset, rest) = split_word(rest)?;
    let (device, rest) = split_word(rest)?;
    let (inode, rest) = split_word(rest)?;
    let first = rest.iter().position(|&byte| byte != b' ')?;
    let name = &rest[first..];
    let inode: u64 = std::str::from_utf8(inode).ok()?.parse().ok()?;
    if inode == 0 || name.first() != Some(&b'/') {
        return None;
    }
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (start, end) = (hex(&range[..dash])?, hex(&range[dash + 1..])?);
    if start >= end || flags.len() < 4 {
        return None;
    }
    Some(FileLine {
        mapping: Mapping {
            start,
            end,
            file_offset: hex(offset)?,
            writable: flags[1] == b'w',
            executable: flags[2] == b'x',
        },
        device: nix::sys::stat::makedev(hex(&device[..colon])?, hex(&device[colon + 1..])?),
        inode,
        name: OsString::from_vec(unescape(name)),
    })
}

fn split_word(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| byte == b' ')?;
    Some((&text[..end], &text[end + 1..]))
}

fn hex(text: &[u8]) -> Option<u64> {
    // `from_str_radix` would take a sign.
    if !text.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// The kernel writes a line break as `\012` and nothing else. A file that really has these four
/// characters in its name cannot be told apart here; `locate` then finds it through `map_files`.
fn unescape(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(&byte) = rest.first() {
        if let Some(after) = rest.strip_prefix(b"\\012") {
            out.push(b'\n');
            rest = after;
        } else {
            out.push(byte);
            rest = &rest[1..];
        }
    }
    out
}

#[cfg(test)]
mod tests;
