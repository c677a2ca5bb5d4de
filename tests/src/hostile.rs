//! ELF files that are made to hurt their reader, and how much memory a reader takes for one.
//!
//! The files are small on the disk, or sparse. The reader is the test binary itself, executed again: its peak of
//! memory is its own.

use std::{
    env,
    fs::{self, File},
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::resource::{Resource, setrlimit};

/// The environment variable with the file that a reader reads.
const READ: &str = "DRAINPROF_TEST_READ";
/// What a reader may map at most, so that a test that fails does not take the machine's memory.
const MAPPED: u64 = 6 << 30;
/// A file's bound of its length, where it is sparse.
const GIB: u64 = 1 << 30;

/// A section of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
}

/// Section types.
const PROGBITS: u32 = 1;
const SYMTAB: u32 = 2;
const STRTAB: u32 = 3;
const NOTE: u32 = 7;
const DYNSYM: u32 = 11;
/// The flag of a compressed section.
const COMPRESSED: u64 = 0x800;

/// Writes an ELF file of `length` bytes: a shared object with `sections`, whose headers are at `headers`, and these
/// pieces of contents. The section with the number `names` has their names.
fn write(
    path: &Path,
    sections: &[Section],
    (headers, names): (u64, u16),
    pieces: &[(u64, &[u8])],
    length: u64,
) -> Result<()> {
    let file = File::create(path)?;
    file.set_len(length)?;
    let mut head = Vec::new();
    head.extend(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let machine: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    head.extend([3_u16.to_le_bytes(), machine.to_le_bytes()].concat());
    head.extend(1_u32.to_le_bytes());
    // No entry, one program header behind this one, and the section headers.
    for word in [0, 64, headers] {
        head.extend(u64::to_le_bytes(word));
    }
    head.extend(0_u32.to_le_bytes());
    // More sections than fit into 16 bits are counted in the first one.
    let count = u16::try_from(sections.len()).ok().filter(|count| *count < 0xff00);
    for half in [64, 56, 1, 64, count.unwrap_or(0), names] {
        head.extend(half.to_le_bytes());
    }
    // PT_LOAD, readable and executable: the first page.
    head.extend([1_u32.to_le_bytes(), 5_u32.to_le_bytes()].concat());
    for word in [0, 0, 0, 4096, 4096, 4096] {
        head.extend(u64::to_le_bytes(word));
    }
    file.write_all_at(&head, 0)?;
    let mut table = Vec::with_capacity(sections.len() * 64);
    for (number, section) in sections.iter().enumerate() {
        let Section { name, kind, flags, offset, size, link } = *section;
        let size = if number == 0 && count.is_none() { sections.len() as u64 } else { size };
        table.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        for word in [flags, 0, offset, size] {
            table.extend(word.to_le_bytes());
        }
        table.extend([link.to_le_bytes(), 0_u32.to_le_bytes()].concat());
        for word in [1, 24_u64] {
            table.extend(word.to_le_bytes());
        }
    }
    file.write_all_at(&table, headers)?;
    for (offset, bytes) in pieces {
        file.write_all_at(bytes, *offset)?;
    }
    Ok(())
}

/// Sections called by their names, in a file of their own contents, one behind the other.
fn with_sections(path: &Path, contents: &[(&str, u64, &[u8])]) -> Result<()> {
    let mut names = vec![0];
    let mut sections = vec![Section::default()];
    let mut pieces: Vec<(u64, &[u8])> = Vec::new();
    let mut at = 4096;
    for (name, flags, bytes) in contents {
        sections.push(Section {
            name: names.len() as u32,
            kind: PROGBITS,
            flags: *flags,
            offset: at,
            size: bytes.len() as u64,
            link: 0,
        });
        names.extend(name.bytes().chain([0]));
        pieces.push((at, bytes));
        at += bytes.len() as u64;
    }
    let size = names.len() as u64;
    sections.push(Section { kind: STRTAB, offset: at, size, ..Section::default() });
    pieces.push((at, &names));
    let headers = (at + size).next_multiple_of(8);
    let length = headers + sections.len() as u64 * 64;
    let number = sections.len() as u16 - 1;
    write(path, &sections, (headers, number), &pieces, length)
}

/// `count` note sections of some MiB less a few bytes each, over the same zeros.
fn notes(path: &Path, count: u64, most: u64) -> Result<()> {
    let mut sections = vec![Section::default()];
    sections.extend((0..count).map(|number| Section {
        kind: NOTE,
        // Each another range: what is read once is not read again.
        offset: 4096 + 4 * (number / 1024),
        size: most - 4 * (number % 1024),
        ..Section::default()
    }));
    let headers = 4096 + most + 4 * (count / 1024) + 4096;
    write(path, &sections, (headers, 0), &[], headers + (count + 1) * 64)
}

/// A symbol of a function.
fn symbol(name: u32, value: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..4].copy_from_slice(&name.to_le_bytes());
    (bytes[4], bytes[6]) = (0x12, 1);
    bytes[8..16].copy_from_slice(&value.to_le_bytes());
    bytes[16] = 1;
    bytes
}

/// Symbols in two tables whose string tables have a GiB of holes each, and a third one for the sections' names.
fn strings(path: &Path, names: bool) -> Result<()> {
    let symbols: Vec<u8> = (0..64)
        .flat_map(|number| symbol(number * (16 << 20) + 1, 16 * u64::from(number)))
        .collect();
    let table = |kind, offset, link| Section {
        kind,
        offset,
        size: symbols.len() as u64,
        link,
        ..Section::default()
    };
    let texts = |offset| Section { kind: STRTAB, offset, size: GIB, ..Section::default() };
    let sections = [
        Section::default(),
        table(SYMTAB, 512, 3),
        table(DYNSYM, 512, 4),
        texts(8192),
        texts(8200),
        texts(8208),
    ];
    let number = if names { 5 } else { 0 };
    write(path, &sections, (4096, number), &[(512, &symbols)], GIB + 16384)
}

/// `count` symbols in a table that is `.symtab` and `.dynsym`, all of whose names are the ends of one.
fn overlapping(path: &Path, count: u32) -> Result<()> {
    let mut names = vec![b'a'; 30_000];
    names.push(0);
    let symbols: Vec<u8> =
        (0..count).flat_map(|number| symbol(29_900 + number % 100, u64::from(number))).collect();
    let strings = 8192;
    let offset = (strings + names.len() as u64).next_multiple_of(8);
    let size = symbols.len() as u64;
    let table = |kind| Section { kind, offset, size, link: 3, ..Section::default() };
    let sections = [
        Section::default(),
        table(SYMTAB),
        table(DYNSYM),
        Section { kind: STRTAB, offset: strings, size: names.len() as u64, ..Section::default() },
    ];
    let pieces: [(u64, &[u8]); 2] = [(strings, &names), (offset, &symbols)];
    write(path, &sections, (4096, 0), &pieces, offset + size)
}

/// A table that claims as many symbols as are believed, in a file of holes.
fn claimed(path: &Path, count: u64) -> Result<()> {
    let size = count * 24;
    let table = |kind| Section { kind, offset: 8192, size, link: 3, ..Section::default() };
    let sections = [
        Section::default(),
        table(SYMTAB),
        table(DYNSYM),
        Section { kind: STRTAB, offset: 8192, size: GIB, ..Section::default() },
    ];
    write(path, &sections, (4096, 0), &[], GIB + 16384)
}

/// `size` zeros as a compressed section, which says that it has `claimed` bytes.
fn zeros(size: u64, claimed: u64) -> Vec<u8> {
    // ELFCOMPRESS_ZLIB, size, alignment; then zlib's head and one block of fixed codes.
    let mut bytes = 1_u64.to_le_bytes().to_vec();
    bytes.extend([claimed.to_le_bytes(), 1_u64.to_le_bytes()].concat());
    bytes.extend([0x78, 0x9c]);
    let (mut word, mut bits) = (0_u64, 0);
    let mut put = |code: u64, length: u32| {
        word |= code << bits;
        bits += length;
        while bits >= 8 {
            bytes.push(word as u8);
            (word, bits) = (word >> 8, bits - 8);
        }
    };
    // The last block; a zero; then so many times 258 bytes from one byte before, and what is left.
    put(0b011, 3);
    put(0b0000_1100, 8);
    let left = size - 1;
    for _ in 0..left / 258 {
        put(0b1010_0011, 8);
        put(0, 5);
    }
    for _ in 0..left % 258 {
        put(0b0000_1100, 8);
    }
    put(0, 7);
    put(0, 7);
    // Its checksum.
    bytes.extend(((((size % 65_521) as u32) << 16) | 1).to_be_bytes());
    bytes
}

fn compressed(path: &Path, size: u64, claimed: u64) -> Result<()> {
    with_sections(path, &[(".debug_info", COMPRESSED, &zeros(size, claimed))])
}

fn leb128(mut value: u64, into: &mut Vec<u8>) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

/// A table of `count` abbreviations: the first is a unit, the second a `struct x`, all others are not used.
fn abbreviations(count: u64, unit: &[(u8, u8)]) -> Vec<u8> {
    let mut bytes = vec![1, 0x11, 1];
    bytes.extend(unit.iter().flat_map(|(name, form)| [*name, *form]));
    bytes.extend([0, 0, 2, 0x13, 0, 0x03, 0x08, 0, 0]);
    for code in 3..count {
        leb128(code, &mut bytes);
        bytes.extend([0x34, 0, 0, 0]);
    }
    bytes.push(0);
    bytes
}

/// `count` units of DWARF 5, each with these attributes and a `struct x`.
fn units(count: usize, attributes: &[u8]) -> Vec<u8> {
    // Version, type, size of addresses, abbreviations; unit; struct; end of the unit.
    let mut unit = vec![5, 0, 1, 8, 0, 0, 0, 0, 1];
    unit.extend(attributes);
    unit.extend(b"\x02x\0\0");
    let mut all = Vec::new();
    for _ in 0..count {
        all.extend((unit.len() as u32).to_le_bytes());
        all.extend(&unit);
    }
    all
}

/// One unit with a table of abbreviations without end.
fn abbreviated(path: &Path) -> Result<()> {
    let table = abbreviations(4_000_000, &[]);
    with_sections(path, &[(".debug_abbrev", 0, &table), (".debug_info", 0, &units(1, &[]))])
}

/// Units that all match, each of which has a long table of abbreviations.
fn repeated(path: &Path) -> Result<()> {
    let table = abbreviations(30_000, &[]);
    with_sections(path, &[(".debug_abbrev", 0, &table), (".debug_info", 0, &units(3000, &[]))])
}

/// A unit whose table of lines names millions of files.
fn lines(path: &Path) -> Result<()> {
    // DW_AT_stmt_list, as an offset.
    let table = abbreviations(3, &[(0x10, 0x17)]);
    let files = 24 << 20;
    // Version 5, sizes, length of the header (later), parameters; no opcodes; no directories; names as strings.
    let mut rest = vec![1, 1, 1, 0xfb, 14, 1];
    rest.extend([1, 0x01, 0x08, 1, 0, 1, 0x01, 0x08]);
    leb128(files, &mut rest);
    rest.resize(rest.len() + files as usize, 0);
    let mut program = vec![5, 0, 8, 0];
    program.extend((rest.len() as u32).to_le_bytes());
    program.extend(rest);
    let mut section = (program.len() as u32).to_le_bytes().to_vec();
    section.extend(program);
    let info = units(1, &[0, 0, 0, 0]);
    let all: [(&str, u64, &[u8]); 3] =
        [(".debug_abbrev", 0, &table), (".debug_info", 0, &info), (".debug_line", 0, &section)];
    with_sections(path, &all)
}

/// A hostile file: its name, what makes it, and what the reader says of it.
type Kind = (&'static str, fn(&Path) -> Result<()>, &'static str);

/// Every hostile file.
pub const FILES: &[Kind] = &[
    ("100,000 sections of notes", |path| notes(path, 99_000, 1 << 20), "notes"),
    ("notes in 80 KiB", |path| notes(path, 1_200, 1 << 20), "notes"),
    ("three string tables of 1 GiB", |path| strings(path, true), "section names"),
    ("two string tables of 1 GiB", |path| strings(path, false), ""),
    ("a million overlapping symbols", |path| overlapping(path, 1_000_000), "debug information"),
    ("four million claimed symbols", |path| claimed(path, 4_000_000), ""),
    ("forty million claimed symbols", |path| claimed(path, 40_000_000), "symbol table"),
    ("1 GiB compressed", |path| compressed(path, GIB, GIB), "section .debug_info of 1024 MiB"),
    ("1 GiB that says 100 MiB", |path| compressed(path, GIB, 100 << 20), "damaged"),
    ("127 MiB compressed", |path| compressed(path, 127 << 20, 127 << 20), "damaged"),
    ("abbreviations without end", abbreviated, "abbreviations"),
    ("abbreviations of 3,000 units", repeated, "abbreviations"),
    ("millions of source files", lines, ""),
];

/// Makes the hostile file called `name`.
pub fn make(directory: &Path, name: &str) -> Result<PathBuf> {
    let kind = FILES.iter().find(|(known, ..)| *known == name);
    let (name, make, _) = kind.with_context(|| format!("no hostile file is called {name:?}"))?;
    let path = directory.join(name.replace([' ', ','], "_"));
    make(&path)?;
    Ok(path)
}

/// What a reader said of a file, and the most memory that it had, in bytes.
#[derive(Debug)]
pub struct Reading {
    /// Its errors.
    pub said: String,
    /// Most bytes that were resident.
    pub peak: u64,
}

/// Has `path` read by this binary, executed again: by its test `reader`, which calls [`read_if_asked`].
pub fn read(path: &Path, reader: &str) -> Result<Reading> {
    let output = Command::new(env::current_exe()?)
        .args(["--exact", reader, "--nocapture", "--test-threads=1"])
        .env(READ, path)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "the reader of {} died: {output:?}", path.display());
    let line = text.lines().find_map(|line| line.strip_prefix("PEAK "));
    let (peak, said) = line.and_then(|line| line.split_once(' ')).context("the reader's line")?;
    Ok(Reading { said: said.to_owned(), peak: peak.parse::<u64>()? << 10 })
}

/// The file that this process is to read, if it is a reader: then `reader` reads it.
pub fn read_if_asked(reader: impl FnOnce(&Path) -> Vec<String>) -> Result<()> {
    let Some(path) = env::var_os(READ) else { return Ok(()) };
    setrlimit(Resource::RLIMIT_AS, MAPPED, MAPPED)?;
    let said = reader(Path::new(&path)).join("; ");
    println!("\nPEAK {} {}", peak(std::process::id())? >> 10, said.replace('\n', " "));
    Ok(())
}

/// The most bytes of a process that were resident.
pub fn peak(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim_end_matches("kB").trim().parse::<u64>()? << 10)
}
