//! `/proc/PID/maps`: the files that a process executes code from, and its executable memory without a file.
//!
//! Only what the kernel says about mappings; how such a file is opened is `mapped`, what is in it `elf`.
//! The text is partly written by the process (file names), so it is parsed as bytes and bounded. The
//! `procfs` crate is not used for it: it wants UTF-8 and trims names.

use std::{
    collections::HashMap,
    ffi::OsString,
    fs::File,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, BufRead, BufReader, Read as _},
    os::unix::ffi::OsStringExt as _,
};

use super::{ProcessError, guard::ask_process};

/// Most mappings that are read of one process.
const MAX_LINES: usize = 1_000_000;
/// Lines of `smaps` for one mapping, at most.
const LINES_PER_MAPPING: usize = 40;
/// Longest line: a path of `PATH_MAX` with every character escaped, and the numbers before it.
const MAX_LINE_BYTES: u64 = 32 * 1024;
/// Bytes that are read at once, at most: the kernel gives a page at a time.
const BUFFER: usize = 8 * 1024;
/// Most pieces of memory without a file that are kept.
const MAX_NAMELESS: usize = 10_000;

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file of the first address, in bytes.
    pub file_offset: u64,
    /// Whether it may be written.
    pub writable: bool,
    /// Whether it may be executed.
    pub executable: bool,
}

impl Mapping {
    /// Whether code at `address` lies in it.
    pub(crate) fn has_code(&self, address: u64) -> bool {
        self.executable && (self.start..self.end).contains(&address)
    }
}

/// One line.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    mapping: Mapping,
    /// Device as the kernel's `st_dev` encodes it.
    device: u64,
    inode: u64,
    /// Whether writes are shared with others.
    shared: bool,
    /// The name, escaped, with ` (deleted)` still at its end; empty for anonymous memory.
    name: &'a [u8],
}

impl Line<'_> {
    fn is_file(&self) -> bool {
        self.inode != 0 && self.name.starts_with(b"/")
    }

    /// What it is, where it is executable memory without a file.
    fn nameless(&self) -> Option<NamelessKind> {
        if !self.mapping.executable || self.name.starts_with(b"/") {
            return None;
        }
        match self.name {
            b"[vsyscall]" => None,
            b"[vdso]" => Some(NamelessKind::Vdso),
            b"[uprobes]" => Some(NamelessKind::Uprobes),
            _ => Some(NamelessKind::Generated),
        }
    }
}

/// A file and its mappings, as far as the lines alone say.
#[derive(Debug)]
pub(crate) struct MappedFile {
    /// The name, unescaped, with ` (deleted)` still at its end.
    pub(crate) name: OsString,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) mappings: Vec<Mapping>,
}

/// What executable memory without a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamelessKind {
    /// Code that the process has made itself.
    Generated,
    /// The vDSO.
    Vdso,
    /// The kernel's page for probes: it executes instructions there that uprobes stand on. A call whose return
    /// is probed returns to its first address.
    Uprobes,
}

/// The executable memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    /// Files with an executable mapping, by their first address.
    pub(crate) files: Vec<MappedFile>,
    /// Executable memory without a file.
    pub(crate) nameless: Vec<(Mapping, NamelessKind)>,
}

/// Reads the mappings of process `pid`.
pub(crate) fn read_maps(pid: u32) -> Result<Maps, ProcessError> {
    with_maps(pid, group)
}

/// A number for the set of files that process `pid` executes code from: another one as soon as one more is mapped, or
/// one is not any more. The files themselves are not opened, so it costs little more than the read; numbers of
/// different processes say nothing about each other.
pub fn executed_files(pid: u32) -> Result<u64, ProcessError> {
    with_maps(pid, executed)
}

/// The ranges of addresses that process `pid` has mapped (first address, first address after it), in ascending order.
///
/// # Errors
/// The mappings of the process cannot be read.
pub fn mapped_ranges(pid: u32) -> Result<Vec<(u64, u64)>, ProcessError> {
    with_maps(pid, |reader| {
        let mut ranges = Vec::new();
        each_line(reader, |line| ranges.push((line.mapping.start, line.mapping.end)))?;
        Ok(ranges)
    })
}

/// A mapping with its memory, from `/proc/PID/smaps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MappedMemory {
    /// Where it is, and what may be done there.
    pub mapping: Mapping,
    /// Its file's inode; 0: none.
    pub inode: u64,
    /// Whether writes are shared with other processes.
    pub shared: bool,
    /// The kernel's name for it, escaped: a path, `[heap]`, `[stack]`; empty for anonymous memory.
    pub name: String,
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Swapped bytes.
    pub swap_bytes: u64,
    /// Resident bytes of anonymous memory in transparent huge pages.
    pub huge_bytes: u64,
    /// Bytes in huge pages of hugetlbfs, which are not among the resident ones.
    pub hugetlb_bytes: u64,
}

/// The mappings of process `pid` with their memory, in ascending order. The kernel walks its page tables for it.
///
/// # Errors
/// The mappings cannot be read.
pub fn mapped_memory(pid: u32) -> Result<Vec<MappedMemory>, ProcessError> {
    let path = format!("/proc/{pid}/smaps");
    ask_process(pid, || memory_of(BufReader::new(File::open(&path)?)))
        .map_err(|error| ProcessError::from_io(pid, "read the mappings", path.into(), error))
}

pub(crate) fn memory_of(reader: impl BufRead) -> io::Result<Vec<MappedMemory>> {
    let mut all: Vec<MappedMemory> = Vec::new();
    each_raw_line(reader, MAX_LINES * LINES_PER_MAPPING, |raw| {
        if let Some(line) = parse_line(raw) {
            all.push(MappedMemory {
                mapping: line.mapping,
                inode: line.inode,
                shared: line.shared,
                name: String::from_utf8_lossy(line.name).into_owned(),
                rss_bytes: 0,
                swap_bytes: 0,
                huge_bytes: 0,
                hugetlb_bytes: 0,
            });
        } else if let (Some(last), Some((name, bytes))) = (all.last_mut(), memory_field(raw)) {
            match name {
                "Rss" => last.rss_bytes = bytes,
                "Swap" => last.swap_bytes = bytes,
                "AnonHugePages" => last.huge_bytes = bytes,
                "Private_Hugetlb" | "Shared_Hugetlb" => {
                    last.hugetlb_bytes = last.hugetlb_bytes.saturating_add(bytes);
                }
                _ => {}
            }
        }
    })?;
    Ok(all)
}

/// `Rss:  12 kB`.
fn memory_field(line: &[u8]) -> Option<(&str, u64)> {
    let (name, value) = std::str::from_utf8(line).ok()?.split_once(':')?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some((name, kib.saturating_mul(1024)))
}

fn with_maps<T>(
    pid: u32,
    read: impl FnOnce(BufReader<File>) -> io::Result<T>,
) -> Result<T, ProcessError> {
    let path = format!("/proc/{pid}/maps");
    ask_process(pid, || read(BufReader::with_capacity(BUFFER, File::open(&path)?)))
        .map_err(|error| ProcessError::from_io(pid, "read the mappings", path.into(), error))
}

pub(crate) fn executed(reader: impl BufRead) -> io::Result<u64> {
    let mut files = Vec::new();
    each_line(reader, |line| {
        if line.mapping.executable && line.is_file() {
            files.push((line.device, line.inode));
        }
    })?;
    files.sort_unstable();
    files.dedup();
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    Ok(hasher.finish())
}

pub(crate) fn group(reader: impl BufRead) -> io::Result<Maps> {
    let mut maps = Maps::default();
    let mut index: HashMap<(u64, u64), usize> = HashMap::new();
    each_line(reader, |line| {
        if line.is_file() {
            let at = *index.entry((line.device, line.inode)).or_insert_with(|| {
                maps.files.push(MappedFile {
                    name: OsString::from_vec(unescape(line.name)),
                    device: line.device,
                    inode: line.inode,
                    mappings: Vec::new(),
                });
                maps.files.len() - 1
            });
            maps.files[at].mappings.push(line.mapping);
        } else if let Some(kind) = line.nameless()
            && maps.nameless.len() < MAX_NAMELESS
        {
            maps.nameless.push((line.mapping, kind));
        }
    })?;
    maps.files.retain(|file| file.mappings.iter().any(|mapping| mapping.executable));
    Ok(maps)
}

/// Reads all lines. One that cannot be understood is left out; the others still count.
fn each_line(reader: impl BufRead, mut take: impl FnMut(Line<'_>)) -> io::Result<()> {
    each_raw_line(reader, MAX_LINES, |line| {
        if let Some(parsed) = parse_line(line) {
            take(parsed);
        }
    })
}

fn each_raw_line(
    mut reader: impl BufRead,
    most: usize,
    mut take: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut line = Vec::new();
    for _ in 0..most {
        line.clear();
        if reader.by_ref().take(MAX_LINE_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        take(line.strip_suffix(b"\n").unwrap_or(&line));
    }
    Err(io::Error::other(format!("it has more than {MAX_LINES} mappings")))
}

fn parse_line(line: &[u8]) -> Option<Line<'_>> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let (start, end) = hex_pair(words.next()?, b'-')?;
    let &[_, write, execute, share, ..] = words.next()? else { return None };
    let file_offset = hex(words.next()?)?;
    let (major, minor) = hex_pair(words.next()?, b':')?;
    let inode = std::str::from_utf8(words.next()?).ok()?.parse().ok()?;
    let name = words.next().unwrap_or_default().trim_ascii_start();
    let (writable, executable) = (write == b'w', execute == b'x');
    (start < end).then_some(Line {
        mapping: Mapping { start, end, file_offset, writable, executable },
        device: nix::sys::stat::makedev(major, minor),
        inode,
        shared: share == b's',
        name,
    })
}

fn hex_pair(text: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = text.iter().position(|&byte| byte == separator)?;
    Some((hex(&text[..at])?, hex(&text[at + 1..])?))
}

fn hex(text: &[u8]) -> Option<u64> {
    // `from_str_radix` would take a sign.
    if !text.first()?.is_ascii_hexdigit() {
        return None;
    }
    u64::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok()
}

/// The kernel writes a line break as `\012` and nothing else. A file that really has these four
/// characters in its name cannot be distinguished here; `mapped` then finds it through `map_files`.
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
