//! Reads what is needed of an ELF file: headers, symbol tables, build id, soname, links to debug files.
//!
//! Only the parts that are asked for are read, each checked against a bound first. The `object` crate
//! decodes; which sizes are believed is decided here. Called by `Elf`, `debug` and `types`.

use std::{fs::File, path::Path};

use object::{
    CompressedFileRange, CompressionFormat, LittleEndian as Little, Pod,
    elf::{self, FileHeader64},
    read::{
        ReadCache, ReadRef,
        elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
    },
};

use super::{
    ElfError, Segment, SymbolKind,
    symbols::{Entry, MAX_SYMBOLS, SymbolTable},
};
use crate::{UsdtNote, file::open_regular};

/// Largest file that is opened: debug files of browsers have several GiB, of which little is read.
pub(super) const MAX_FILE: u64 = 16 << 30;
/// Most section headers (`-ffunction-sections` leaves many in object files, few in programs).
const MAX_SECTIONS: usize = 100_000;
/// Most program headers.
const MAX_SEGMENTS: usize = 10_000;
/// Largest string table.
pub(super) const MAX_STRINGS: u64 = 1 << 30;
/// Largest note section, dynamic section and debug link.
const MAX_SMALL: u64 = 1 << 20;
/// Longest build id: they have 8 to 32 bytes.
const MAX_BUILD_ID: usize = 64;
/// Longest soname.
const MAX_SONAME: usize = 4096;

/// The file's contents, read in pieces on demand.
pub(super) type Contents = ReadCache<File>;
type Header = FileHeader64<Little>;
type Sym = elf::Sym64<Little>;
pub(super) type SectionHeader = elf::SectionHeader64<Little>;

pub(super) const ENDIAN: Little = Little;

/// The machine whose programs this build traces.
#[cfg(target_arch = "aarch64")]
const MACHINE: elf::Machine = elf::EM_AARCH64;
/// The machine whose programs this build traces.
#[cfg(not(target_arch = "aarch64"))]
const MACHINE: elf::Machine = elf::EM_X86_64;

/// What is read of an object: plain data, the same for every process that maps the file.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) build_id: Option<String>,
    pub(super) soname: Option<String>,
    pub(super) segments: Vec<Segment>,
    pub(super) symtab: Option<SymbolTable>,
    pub(super) dynsym: Option<SymbolTable>,
    pub(super) debug_link: Option<(Vec<u8>, u32)>,
    /// USDT probes; the error says what is wrong with the first note that is not believed.
    pub(super) usdt: Result<Vec<UsdtNote>, String>,
}

/// What is wrong with a file whose first bytes are `head`, if it cannot be traced; `None` if it can.
pub(crate) fn foreign(head: &[u8; 20]) -> Option<String> {
    if head[..4] != elf::ELFMAG {
        return Some("no ELF file".into());
    }
    if head[4] != elf::ELFCLASS64.0 {
        return Some("a 32-bit program".into());
    }
    if head[5] != elf::ELFDATA2LSB.0 {
        return Some("a big-endian program".into());
    }
    let machine = u16::from_le_bytes([head[18], head[19]]);
    (machine != MACHINE.0)
        .then(|| format!("a program for another processor (ELF machine {machine})"))
}

/// An open ELF file with its section headers.
pub(super) struct Reader<'a> {
    pub(super) contents: &'a Contents,
    header: &'a Header,
    pub(super) sections: &'a [SectionHeader],
    shown: &'a str,
}

/// Opens the file at `path`, which messages call `shown`, and asks it something.
pub(super) fn with_file<T>(
    path: &Path,
    shown: &str,
    ask: impl FnOnce(&Reader<'_>) -> Result<T, ElfError>,
) -> Result<T, ElfError> {
    let file = open_regular(path, MAX_FILE)
        .map_err(|error| ElfError::Read { path: shown.into(), cause: error.to_string() })?;
    let contents = ReadCache::new(file);
    ask(&Reader::new(&contents, shown)?)
}

impl<'a> Reader<'a> {
    /// Checks the headers.
    pub(super) fn new(contents: &'a Contents, shown: &'a str) -> Result<Self, ElfError> {
        let not_elf = || ElfError::NotElf { path: shown.into() };
        let head: [u8; 20] = contents
            .read_bytes_at(0, 20)
            .ok()
            .and_then(|head| head.try_into().ok())
            .ok_or_else(not_elf)?;
        if head[..4] != elf::ELFMAG {
            return Err(not_elf());
        }
        if let Some(what) = foreign(&head) {
            return Err(ElfError::Foreign { path: shown.into(), what });
        }
        let malformed = |what: String| ElfError::Malformed { path: shown.to_owned(), what };
        let explain = |error: object::read::Error| malformed(error.to_string());
        let header = Header::parse(contents).map_err(explain)?;
        let count = header.shnum(ENDIAN, contents).map_err(explain)?;
        if count as usize > MAX_SECTIONS {
            return Err(malformed(format!("{count} sections")));
        }
        let sections = header.section_headers(ENDIAN, contents).map_err(explain)?;
        Ok(Self { contents, header, sections, shown })
    }

    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> ElfError {
        ElfError::Malformed { path: self.shown.into(), what: what.to_string() }
    }

    pub(super) fn segment_headers(&self) -> Result<&'a [elf::ProgramHeader64<Little>], ElfError> {
        let count =
            self.header.phnum(ENDIAN, self.contents).map_err(|error| self.malformed(error))?;
        if count as usize > MAX_SEGMENTS {
            return Err(self.malformed(format!("{count} segments")));
        }
        self.header.program_headers(ENDIAN, self.contents).map_err(|error| self.malformed(error))
    }

    /// A section's bytes as they are in the file, if there are no more than `max`.
    pub(super) fn bytes(
        &self,
        section: &SectionHeader,
        max: u64,
        what: &str,
    ) -> Result<&'a [u8], ElfError> {
        let size = section.sh_size(ENDIAN);
        if size > max {
            return Err(self.malformed(format!("its {what} has {size} bytes")));
        }
        section
            .data(ENDIAN, self.contents)
            .map_err(|error| self.malformed(format!("{what}: {error}")))
    }

    /// The section called `name`.
    pub(super) fn section(&self, name: &[u8]) -> Option<&'a SectionHeader> {
        let index = self.header.shstrndx(ENDIAN, self.contents).ok()? as usize;
        let strings = self.bytes(self.sections.get(index)?, MAX_STRINGS, "section names").ok()?;
        self.sections.iter().find(|section| {
            strings
                .get(section.sh_name(ENDIAN) as usize..)
                .and_then(|rest| rest.strip_prefix(name))
                .is_some_and(|rest| rest.first() == Some(&0))
        })
    }

    /// Whether there is a section called `name` that has bytes in this file.
    pub(super) fn has(&self, name: &[u8]) -> bool {
        self.section(name).is_some_and(|section| {
            section.sh_type(ENDIAN) != elf::SHT_NOBITS && section.sh_size(ENDIAN) > 0
        })
    }

    /// A section's contents, decompressed, if they have no more than `max` bytes; empty where there is none.
    pub(super) fn contents_of(&self, name: &str, max: u64) -> Result<Vec<u8>, ElfError> {
        let Some(section) = self.section(name.as_bytes()) else { return Ok(Vec::new()) };
        let explain = |error| self.malformed(format_args!("section {name}: {error}"));
        let range = match section.compression(ENDIAN, self.contents).map_err(explain)? {
            None => CompressedFileRange::none(section.file_range(ENDIAN)),
            Some((header, offset, compressed_size)) => CompressedFileRange {
                format: match header.ch_type.get(ENDIAN) {
                    elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
                    elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
                    _ => CompressionFormat::Unknown,
                },
                offset,
                compressed_size,
                uncompressed_size: header.ch_size.get(ENDIAN),
            },
        };
        // The file claims this size. The decompressor fills exactly as much memory, so the bound holds.
        let size = range.uncompressed_size.max(range.compressed_size);
        if size > max {
            return Err(self.malformed(format_args!(
                "section {name} has {} MiB, more than is read",
                size >> 20
            )));
        }
        let data = range.data(self.contents).map_err(explain)?;
        data.decompress().map(std::borrow::Cow::into_owned).map_err(explain)
    }

    pub(super) fn segments(&self) -> Result<Vec<Segment>, ElfError> {
        Ok(self
            .segment_headers()?
            .iter()
            .filter(|header| header.p_type(ENDIAN) == elf::PT_LOAD)
            .map(|header| Segment {
                vaddr: header.p_vaddr(ENDIAN),
                memory_size: header.p_memsz(ENDIAN),
                file_offset: header.p_offset(ENDIAN),
                // More in the file than in memory is nonsense; the kernel refuses such files.
                file_size: header.p_filesz(ENDIAN).min(header.p_memsz(ENDIAN)),
                executable: header.p_flags(ENDIAN).contains(elf::PF_X),
            })
            .collect())
    }

    /// The build id: from sections, or from segments where there are none.
    pub(super) fn build_id(&self) -> Option<String> {
        let sections = self.sections.iter().filter(|section| section.sh_size(ENDIAN) <= MAX_SMALL);
        let mut sections =
            sections.filter_map(|section| section.notes(ENDIAN, self.contents).ok()?);
        sections.find_map(find_build_id).or_else(|| {
            let segments = self.segment_headers().ok()?.iter();
            let segments = segments.filter(|segment| segment.p_filesz(ENDIAN) <= MAX_SMALL);
            let mut segments =
                segments.filter_map(|segment| segment.notes(ENDIAN, self.contents).ok()?);
            segments.find_map(find_build_id)
        })
    }

    fn soname(&self) -> Option<String> {
        let section =
            self.sections.iter().find(|section| section.sh_type(ENDIAN) == elf::SHT_DYNAMIC)?;
        self.bytes(section, MAX_SMALL, "dynamic section").ok()?;
        let (entries, link) = section.dynamic(ENDIAN, self.contents).ok()??;
        let entry = entries
            .iter()
            .take_while(|entry| entry.d_tag(ENDIAN) != elf::DT_NULL)
            .find(|entry| entry.d_tag(ENDIAN) == elf::DT_SONAME)?;
        let strings = self.bytes(self.sections.get(link.0)?, MAX_STRINGS, "string table").ok()?;
        let rest = strings.get(usize::try_from(entry.d_val(ENDIAN)).ok()?..)?;
        let window = &rest[..rest.len().min(MAX_SONAME)];
        let end = window.iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&window[..end]).into_owned()).filter(|name| !name.is_empty())
    }

    /// The entries of a section, if there are no more than `max`.
    pub(super) fn array<T: Pod>(
        &self,
        section: &SectionHeader,
        max: usize,
        what: &str,
    ) -> Result<&'a [T], ElfError> {
        self.bytes(section, (max * size_of::<T>()) as u64, what)?;
        section
            .data_as_array(ENDIAN, self.contents)
            .map_err(|error| self.malformed(format_args!("{what}: {error}")))
    }

    /// The symbols in a section, and their names.
    pub(super) fn symbols_in(
        &self,
        section: &SectionHeader,
    ) -> Result<(&'a [Sym], &'a [u8]), ElfError> {
        let symbols = self.array(section, MAX_SYMBOLS, "symbol table")?;
        let strings = self
            .sections
            .get(section.sh_link(ENDIAN) as usize)
            .ok_or_else(|| self.malformed("symbol table without names"))?;
        Ok((symbols, self.bytes(strings, MAX_STRINGS, "string table")?))
    }

    /// The symbol table of type `kind`.
    pub(super) fn symbols(&self, kind: elf::SectionType) -> Result<Option<SymbolTable>, ElfError> {
        // `objcopy --only-keep-debug` leaves the header of `.dynsym` without its contents.
        let Some(section) = self.sections.iter().find(|section| section.sh_type(ENDIAN) == kind)
        else {
            return Ok(None);
        };
        let (symbols, strings) = self.symbols_in(section)?;
        SymbolTable::new(strings.to_vec(), symbols.iter().filter_map(symbol))
            .map(Some)
            .map_err(|what| self.malformed(what))
    }

    pub(super) fn debug_link(&self) -> Option<(Vec<u8>, u32)> {
        let data = self.bytes(self.section(b".gnu_debuglink")?, MAX_SMALL, "debug link").ok()?;
        let end = data.iter().position(|&byte| byte == 0)?;
        let at = (end + 1).next_multiple_of(4);
        let crc: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
        Some((data[..end].to_vec(), u32::from_le_bytes(crc)))
    }

    /// The file that holds what several debug files share (`dwz`): its name and build id.
    pub(super) fn alternative_link(&self) -> Option<(Vec<u8>, String)> {
        let data = self.bytes(self.section(b".gnu_debugaltlink")?, MAX_SMALL, "debug link").ok()?;
        let end = data.iter().position(|&byte| byte == 0)?;
        let id = data.get(end + 1..).filter(|id| !id.is_empty() && id.len() <= MAX_BUILD_ID)?;
        Some((data[..end].to_vec(), hex(id)))
    }
}

fn find_build_id(mut notes: object::read::elf::NoteIterator<'_, Header>) -> Option<String> {
    while let Ok(Some(note)) = notes.next() {
        let id = note.desc();
        if note.name() == elf::ELF_NOTE_GNU
            && note.n_type(ENDIAN) == elf::NT_GNU_BUILD_ID
            && !id.is_empty()
            && id.len() <= MAX_BUILD_ID
        {
            return Some(hex(id));
        }
    }
    None
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// A symbol that has an address: neither imported, nor a section, file, thread-local or constant.
fn symbol(symbol: &Sym) -> Option<Entry> {
    let section = symbol.st_shndx(ENDIAN);
    if section == elf::SHN_UNDEF || section == elf::SHN_ABS || section == elf::SHN_COMMON {
        return None;
    }
    let kind = match symbol.st_type() {
        elf::STT_FUNC => SymbolKind::Func,
        elf::STT_GNU_IFUNC => SymbolKind::Ifunc,
        elf::STT_OBJECT => SymbolKind::Object,
        elf::STT_NOTYPE => SymbolKind::Untyped,
        _ => return None,
    };
    Some(Entry {
        name_at: symbol.st_name(ENDIAN),
        name_length: 0,
        vaddr: symbol.st_value(ENDIAN),
        size: symbol.st_size(ENDIAN),
        kind,
        global: symbol.st_bind() != elf::STB_LOCAL,
    })
}

/// Reads an object.
pub(super) fn read_object(path: &Path, shown: &str) -> Result<Parts, ElfError> {
    with_file(path, shown, |reader| {
        Ok(Parts {
            build_id: reader.build_id(),
            soname: reader.soname(),
            segments: reader.segments()?,
            symtab: reader.symbols(elf::SHT_SYMTAB)?,
            dynsym: reader.symbols(elf::SHT_DYNSYM)?,
            debug_link: reader.debug_link(),
            usdt: reader.usdt(),
        })
    })
}
