//! Reads what is needed of an ELF file: headers, symbol tables, build id, soname, links to debug files.
//!
//! Only the parts that are asked for are read, each checked against a bound first. The `object` crate
//! decodes; which sizes are believed is decided here. Called by `Elf`, `debug` and `types`.

use std::{fs::File, io::Read as _, path::Path, sync::Arc};

use object::{
    CompressedData, CompressionFormat, LittleEndian as Little, Pod,
    elf::{self, FileHeader64},
    read::{
        ReadRef,
        elf::{Dyn as _, FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
    },
};

use super::{
    contents::{Contents, MAX_KEPT, Strings},
    error::{ElfError, unread},
    held::{Held, Share},
    segment::Segment,
    symbols::{Entry, MAX_SYMBOLS, SymbolKind, SymbolTable, Unnamed},
};
use crate::{UsdtNote, file::open_regular};

/// Largest file that is opened: debug files of browsers have several GiB, of which little is read.
pub(crate) const MAX_FILE: u64 = 16 << 30;
/// Most section headers (`-ffunction-sections` leaves many in object files, few in programs).
const MAX_SECTIONS: usize = 100_000;
/// Most program headers.
const MAX_SEGMENTS: usize = 10_000;
/// Most bytes of section names.
const MAX_SECTION_NAMES: u64 = 4 << 20;
/// Largest note section, dynamic section and debug link.
const MAX_SMALL: u64 = 1 << 20;
/// Most note sections and segments that are searched for a build id, and most bytes of them: programs have some five,
/// of some hundred bytes each, and one of USDT probes.
const MAX_NOTES: (usize, u64) = (1000, 8 << 20);
/// Longest name of a debug file.
const MAX_LINK: usize = 4096;
/// Memory that decompression may take beyond its result.
const SPARE: u64 = 64 << 20;
/// Longest build id: they have 8 to 32 bytes.
const MAX_BUILD_ID: usize = 64;
/// Longest soname.
const MAX_SONAME: usize = 4096;

type Header = FileHeader64<Little>;
pub(super) type Sym = elf::Sym64<Little>;
pub(super) type SectionHeader = elf::SectionHeader64<Little>;

pub(super) const ENDIAN: Little = Little;

/// Why a file is not kept.
const NO_ROOM: &str = "it takes more memory than the files of one process may";

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
    /// Made by Go's compiler.
    pub(super) go: bool,
    /// USDT probes; the error says what is wrong with the first note that is not believed.
    pub(super) usdt: Result<Vec<UsdtNote>, String>,
    /// What segments and USDT probes take; symbol tables have shares of their own.
    _share: Share,
}

/// What is wrong with a file whose first bytes are `head`, if it cannot be traced; `None` if it can.
pub(super) fn foreign(head: &[u8; 20]) -> Option<String> {
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
    /// The names of the sections; empty where there are none.
    names: &'a [u8],
    shown: &'a str,
}

/// Opens the file at `path`, which messages call `shown`, and asks it something.
pub(super) fn with_file<T>(
    path: &Path,
    shown: &str,
    ask: impl FnOnce(&Reader<'_>) -> Result<T, ElfError>,
) -> Result<T, ElfError> {
    let file = open_regular(path, MAX_FILE).map_err(|error| unread(shown, &error))?;
    with_open(file, shown, ask)
}

/// Asks a file that is open something.
pub(super) fn with_open<T>(
    file: File,
    shown: &str,
    ask: impl FnOnce(&Reader<'_>) -> Result<T, ElfError>,
) -> Result<T, ElfError> {
    let contents = Contents::new(file);
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
            return Err(malformed(format!("{count} sections, more than {MAX_SECTIONS}")));
        }
        let sections = header.section_headers(ENDIAN, contents).map_err(explain)?;
        let mut reader = Self { contents, header, sections, names: &[], shown };
        let index = header.shstrndx(ENDIAN, contents).ok();
        if let Some(names) = index.and_then(|index| sections.get(index as usize)) {
            reader.names = match reader.bytes(names, MAX_SECTION_NAMES, "section names") {
                Err(error @ ElfError::TooLarge { .. }) => return Err(error),
                names => names.unwrap_or_default(),
            };
        }
        Ok(reader)
    }

    pub(super) fn malformed(&self, what: impl std::fmt::Display) -> ElfError {
        if self.contents.is_exhausted() {
            return self.too_large("headers and notes", MAX_KEPT);
        }
        ElfError::Malformed { path: self.shown.into(), what: what.to_string() }
    }

    fn too_large(&self, what: impl std::fmt::Display, limit: u64) -> ElfError {
        ElfError::TooLarge { path: self.shown.into(), what: what.to_string(), limit }
    }

    pub(super) fn segment_headers(&self) -> Result<&'a [elf::ProgramHeader64<Little>], ElfError> {
        let count =
            self.header.phnum(ENDIAN, self.contents).map_err(|error| self.malformed(error))?;
        if count as usize > MAX_SEGMENTS {
            return Err(self.malformed(format!("{count} segments, more than {MAX_SEGMENTS}")));
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
            return Err(self.too_large(format_args!("{what} of {size} bytes"), max));
        }
        section
            .data(ENDIAN, self.contents)
            .map_err(|error| self.malformed(format!("{what}: {error}")))
    }

    /// The section called `name`.
    pub(super) fn section(&self, name: &[u8]) -> Option<&'a SectionHeader> {
        self.sections.iter().find(|section| {
            self.names
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

    /// A section's contents, decompressed; empty where there is none. `taken` bytes of `limit` are others' already: what
    /// is too large is refused before memory is taken for it.
    pub(super) fn contents_of(
        &self,
        name: &str,
        taken: u64,
        limit: u64,
    ) -> Result<Vec<u8>, ElfError> {
        let Some(section) = self.section(name.as_bytes()) else { return Ok(Vec::new()) };
        let explain =
            |error: &dyn std::fmt::Display| self.malformed(format_args!("section {name}: {error}"));
        let compression = section.compression(ENDIAN, self.contents);
        let (header, offset, stored) = match compression.map_err(|error| explain(&error))? {
            Some((header, offset, stored)) => (Some(header), offset, stored),
            None => match section.file_range(ENDIAN) {
                Some((offset, stored)) => (None, offset, stored),
                None => return Ok(Vec::new()),
            },
        };
        // The file claims this size; no more is decompressed.
        let size = header.map_or(stored, |header| header.ch_size.get(ENDIAN));
        let most = limit.saturating_sub(taken);
        if size.max(stored) > most {
            let what = format_args!("section {name} of {} MiB", size.max(stored) >> 20);
            return Err(self.too_large(what, limit));
        }
        let Some(header) = header else {
            return self.contents.bytes(offset, stored).map_err(|error| explain(&error));
        };
        match header.ch_type.get(ENDIAN) {
            elf::ELFCOMPRESS_ZLIB => {
                let stream = self.contents.stream(offset, stored);
                let mut bytes = Vec::with_capacity(size as usize);
                let mut decoder = flate2::read::ZlibDecoder::new(stream).take(size);
                decoder.read_to_end(&mut bytes).map_err(|error| explain(&error))?;
                if bytes.len() as u64 == size {
                    return Ok(bytes);
                }
                Err(explain(&"it has fewer bytes than it says"))
            }
            elf::ELFCOMPRESS_ZSTD => {
                // What is stored is read as a whole, and the decoder has a window of up to the result's size.
                if stored.saturating_add(size) > most.saturating_sub(size).saturating_add(SPARE) {
                    let what = format_args!("section {name} of {} MiB with its window", size >> 20);
                    return Err(self.too_large(what, limit));
                }
                let data = self.contents.bytes(offset, stored).map_err(|error| explain(&error))?;
                let format = CompressionFormat::Zstandard;
                let data = CompressedData { format, data: &data, uncompressed_size: size };
                let bytes = data.decompress().map_err(|error| explain(&error))?;
                Ok(bytes.into_owned())
            }
            _ => Err(explain(&"an unknown compression")),
        }
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
    pub(super) fn build_id(&self) -> Result<Option<String>, ElfError> {
        let (mut count, mut bytes) = (0, 0_u64);
        let mut search = |size: u64| {
            count += 1;
            bytes += size;
            if count > MAX_NOTES.0 {
                return Err(
                    self.malformed(format_args!("more than {} sections of notes", MAX_NOTES.0))
                );
            }
            if bytes > MAX_NOTES.1 {
                return Err(self.too_large(format_args!("notes of {bytes} bytes"), MAX_NOTES.1));
            }
            Ok(())
        };
        for section in self.sections {
            let size = section.sh_size(ENDIAN);
            if section.sh_type(ENDIAN) != elf::SHT_NOTE || size > MAX_SMALL {
                continue;
            }
            search(size)?;
            let notes = section.notes(ENDIAN, self.contents).ok().flatten();
            if let Some(id) = notes.and_then(find_build_id) {
                return Ok(Some(id));
            }
        }
        for segment in self.segment_headers().unwrap_or_default() {
            let size = segment.p_filesz(ENDIAN);
            if segment.p_type(ENDIAN) != elf::PT_NOTE || size > MAX_SMALL {
                continue;
            }
            search(size)?;
            let notes = segment.notes(ENDIAN, self.contents).ok().flatten();
            if let Some(id) = notes.and_then(find_build_id) {
                return Ok(Some(id));
            }
        }
        Ok(None)
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
        let (offset, size) = self.sections.get(link.0)?.file_range(ENDIAN)?;
        let at = entry.d_val(ENDIAN);
        let most = size.checked_sub(at)?.min(MAX_SONAME as u64);
        let mut window = vec![0; most as usize];
        let read = self.contents.read_at(offset.checked_add(at)?, &mut window).ok()?;
        let end = window[..read].iter().position(|&byte| byte == 0)?;
        Some(String::from_utf8_lossy(&window[..end]).into_owned()).filter(|name| !name.is_empty())
    }

    /// Visits the entries of a section in their order, with their numbers, if there are no more than `max`.
    pub(super) fn entries<T: Pod>(
        &self,
        section: &SectionHeader,
        max: usize,
        what: &str,
        visit: impl FnMut(usize, &T) -> Result<(), String>,
    ) -> Result<(), ElfError> {
        let Some((offset, size)) = section.file_range(ENDIAN) else { return Ok(()) };
        let most = (max * size_of::<T>()) as u64;
        if size > most {
            return Err(self.too_large(format_args!("{what} of {size} bytes"), most));
        }
        self.contents
            .entries(offset, size, visit)
            .map_err(|error| self.malformed(format_args!("{what}: {error}")))
    }

    /// The names of the symbols in a section.
    pub(super) fn names_of(&self, symbols: &SectionHeader) -> Result<Strings<'a>, ElfError> {
        let strings = self.sections.get(symbols.sh_link(ENDIAN) as usize);
        let range = strings.and_then(|strings| strings.file_range(ENDIAN));
        let (offset, size) = range.ok_or_else(|| self.malformed("symbol table without names"))?;
        Ok(Strings::new(self.contents, offset, size))
    }

    /// The symbol table of type `kind`, kept in a share of `held`.
    pub(super) fn symbols(
        &self,
        kind: elf::SectionType,
        held: &Arc<Held>,
    ) -> Result<Option<SymbolTable>, ElfError> {
        // `objcopy --only-keep-debug` leaves the header of `.dynsym` without its contents.
        let Some(section) = self.sections.iter().find(|section| section.sh_type(ENDIAN) == kind)
        else {
            return Ok(None);
        };
        let mut strings = self.names_of(section)?;
        let mut found = Unnamed::new(held);
        self.entries(section, MAX_SYMBOLS, "symbol table", |_, raw| match symbol(raw) {
            Some(entry) => found.push(entry),
            None => Ok(()),
        })?;
        found.name(&mut strings, held).map(Some).map_err(|what| self.malformed(what))
    }

    pub(super) fn debug_link(&self) -> Option<(Vec<u8>, u32)> {
        let data = self.bytes(self.section(b".gnu_debuglink")?, MAX_SMALL, "debug link").ok()?;
        let end = data.iter().take(MAX_LINK).position(|&byte| byte == 0)?;
        let at = (end + 1).next_multiple_of(4);
        let crc: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
        Some((data[..end].to_vec(), u32::from_le_bytes(crc)))
    }

    /// The file that holds what several debug files share (`dwz`): its name and build id.
    pub(super) fn alternative_link(&self) -> Option<(Vec<u8>, String)> {
        let data = self.bytes(self.section(b".gnu_debugaltlink")?, MAX_SMALL, "debug link").ok()?;
        let end = data.iter().take(MAX_LINK).position(|&byte| byte == 0)?;
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

pub(crate) fn hex(bytes: &[u8]) -> String {
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

/// Reads an object; what is kept of it takes a share of `held`.
pub(super) fn read_object(file: File, shown: &str, held: &Arc<Held>) -> Result<Parts, ElfError> {
    with_open(file, shown, |reader| {
        let (segments, usdt) = (reader.segments()?, reader.usdt());
        let texts = |note: &UsdtNote| note.provider.len() + note.name.len() + note.arguments.len();
        let notes = usdt.as_deref().unwrap_or_default();
        let size =
            size_of_val(&*segments) + size_of_val(notes) + notes.iter().map(texts).sum::<usize>();
        let share = held.take(size as u64);
        Ok(Parts {
            build_id: reader.build_id()?,
            soname: reader.soname(),
            symtab: reader.symbols(elf::SHT_SYMTAB, held)?,
            dynsym: reader.symbols(elf::SHT_DYNSYM, held)?,
            debug_link: reader.debug_link(),
            go: [b".gopclntab".as_slice(), b".go.buildinfo"]
                .into_iter()
                .any(|name| reader.section(name).is_some()),
            segments,
            usdt,
            _share: share.ok_or_else(|| reader.malformed(NO_ROOM))?,
        })
    })
}
