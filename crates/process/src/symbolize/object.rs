//! What the files of one object say of its addresses: functions, files and lines, inlined functions.
//!
//! Reads memory alone: the files are mapped, and nothing is opened. `object` finds the sections and unfolds them,
//! `addr2line` reads the DWARF in them. Both believe a good deal of a file; what they make of a hostile one costs the
//! helper at most. Called by `worker`.

use std::{
    borrow::Cow,
    cell::{Cell, OnceCell},
    cmp::Reverse,
    fs::File,
};

use addr2line::{Context, FunctionName, Location};
use gimli::{AbbreviationsCacheStrategy, DwarfSections, EndianSlice, SectionId, UnitOffset};
use memmap2::{Mmap, MmapOptions};
use object::{
    CompressedFileRange, CompressionFormat, LittleEndian as Little, StringTable,
    elf::{self, FileHeader64, Sym64},
    read::elf::{FileHeader as _, SectionHeader as _, SectionTable, Sym as _},
};

use super::{
    sandbox::MAX_MEMORY,
    scope,
    wire::{self, MAX_INLINED, Name, Part},
};
use crate::{CloneKind, careful::careful, elf::readable};

/// Most bytes that the compressed sections of one file may unfold to.
const MAX_UNFOLDED: u64 = MAX_MEMORY / 4 * 3;
/// Longest name that is examined, bytes.
const MAX_NAME: usize = 32 << 10;

const ENDIAN: Little = Little;
type Slice<'s> = EndianSlice<'s, gimli::LittleEndian>;
type Bytes<'m> = DwarfSections<Cow<'m, [u8]>>;
type Table<'m> = SectionTable<'m, FileHeader64<Little>>;

const DAMAGED: &str = "its debug information is damaged";
const TOO_LARGE: &str = "its debug information claims to unfold to more than is read";

/// The files of one object, mapped.
pub(super) struct Maps(Vec<(Part, Mmap)>);

impl Maps {
    /// Maps what can be mapped.
    pub(super) fn new(files: &[(Part, File)]) -> Self {
        Self(files.iter().filter_map(|(part, file)| Some((*part, map(file)?))).collect())
    }

    /// Their sections, by file; those of the debug file first, which knows more.
    pub(super) fn sections(&self) -> Vec<Sections<'_>> {
        let mut all: Vec<Sections<'_>> = Vec::new();
        for (part, map) in &self.0 {
            match (part, all.last_mut()) {
                (Part::Shared, Some(last)) => last.shared = Some(debug_sections(map)),
                (Part::Shared, None) => {}
                (Part::Object | Part::Debug, _) => {
                    all.push(Sections { data: map, own: debug_sections(map), shared: None });
                }
            }
        }
        all.reverse();
        all
    }
}

fn map(file: &File) -> Option<Mmap> {
    let size = usize::try_from(rustix::fs::fstat(file).ok()?.st_size).ok().filter(|&n| n > 0)?;
    // SAFETY: whoever may write to the file can change these bytes. They are decoded as numbers and text, each use is
    // checked by itself, and where the file becomes shorter, this process dies, which it is for.
    unsafe { MmapOptions::new().len(size).map(file) }.ok()
}

/// How many of these addresses have a line in a file, and how many a name. For fuzzing.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn named(file: File, addresses: &[u64]) -> (usize, usize) {
    let maps = Maps::new(&[(Part::Object, file)]);
    let sections = maps.sections();
    let object = Object::new(&sections);
    let names = addresses.iter().filter_map(|address| object.name(*address));
    names.fold((0, 0), |(lines, names), name| (lines + usize::from(name.line.is_some()), names + 1))
}

/// The sections of one file, unfolded.
pub(super) struct Sections<'m> {
    data: &'m [u8],
    own: Loaded<'m>,
    /// Those of the file that it shares with others (`dwz`).
    shared: Option<Loaded<'m>>,
}

/// Sections, or why they are not read.
type Loaded<'m> = Result<Bytes<'m>, &'static str>;

fn table(data: &[u8]) -> Option<Table<'_>> {
    let header = FileHeader64::<Little>::parse(data).ok()?;
    header.sections(ENDIAN, data).ok()
}

fn debug_sections(data: &[u8]) -> Loaded<'_> {
    careful(|| Some(load(&table(data)?, data))).unwrap_or(Err(DAMAGED))
}

fn load<'m>(table: &Table<'m>, data: &'m [u8]) -> Loaded<'m> {
    use SectionId as Id;
    let left = Cell::new(MAX_UNFOLDED);
    DwarfSections::load(|id| match id {
        Id::DebugLoc | Id::DebugLocLists | Id::DebugMacinfo | Id::DebugMacro | Id::DebugNames => {
            Ok(Cow::default())
        }
        _ => unfold(table, data, id.name().as_bytes(), &left),
    })
}

/// A section's bytes; empty where there is none.
fn unfold<'m>(
    table: &Table<'m>,
    data: &'m [u8],
    name: &[u8],
    left: &Cell<u64>,
) -> Result<Cow<'m, [u8]>, &'static str> {
    let Some((_, section)) = table.section_by_name(ENDIAN, name) else {
        return Ok(Cow::default());
    };
    let Some((header, offset, compressed_size)) =
        section.compression(ENDIAN, data).map_err(|_| DAMAGED)?
    else {
        return section.data(ENDIAN, data).map(Cow::Borrowed).map_err(|_| DAMAGED);
    };
    let uncompressed_size = header.ch_size.get(ENDIAN);
    left.set(left.get().checked_sub(uncompressed_size).ok_or(TOO_LARGE)?);
    let format = match header.ch_type.get(ENDIAN) {
        elf::ELFCOMPRESS_ZLIB => CompressionFormat::Zlib,
        elf::ELFCOMPRESS_ZSTD => CompressionFormat::Zstandard,
        _ => return Err("its debug information is compressed in an unknown way"),
    };
    let range = CompressedFileRange { format, offset, compressed_size, uncompressed_size };
    range.data(data).and_then(object::CompressedData::decompress).map_err(|_| DAMAGED)
}

/// An object that is asked about.
pub(super) struct Object<'s> {
    files: Vec<Source<'s>>,
    /// Why some of it is not read.
    trouble: Option<&'static str>,
}

impl<'s> Object<'s> {
    pub(super) fn new(files: &'s [Sections<'_>]) -> Self {
        let trouble = files.iter().find_map(|file| {
            let shared = file.shared.as_ref().and_then(|shared| shared.as_ref().err());
            file.own.as_ref().err().or(shared).copied()
        });
        Self { files: files.iter().map(Source::new).collect(), trouble }
    }

    /// Why some of its debug information is not read.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.map(str::to_owned)
    }

    /// The name of one address, of the first file that knows a line, else of the first that knows one.
    pub(super) fn name(&self, address: u64) -> Option<Name> {
        let mut found: Option<Name> = None;
        for file in &self.files {
            let Some(name) = file.name(address) else { continue };
            let has_line = name.line.is_some();
            if has_line || found.is_none() {
                found = Some(name);
            }
            if has_line {
                break;
            }
        }
        let name = self.with_offset(found?, address);
        let scoped = scope::may_be_missing(&name);
        Some(if scoped { self.with_scope(name, address) } else { name })
    }

    /// The name with the offset from the symbol table where DWARF gives none: a function with several ranges has no
    /// one start there.
    fn with_offset(&self, name: Name, address: u64) -> Name {
        if name.offset.is_some() {
            return name;
        }
        let symbol = self.files.iter().find_map(|file| file.symbol(address));
        let entered = symbol.filter(|symbol| !is_cold(&symbol.function));
        Name { offset: entered.and_then(|symbol| symbol.offset), ..name }
    }

    /// The name with the scope that the symbol table knows: DWARF has no linkage name of C++ functions that other
    /// files cannot call, and their short name is not enough.
    fn with_scope(&self, name: Name, address: u64) -> Name {
        let symbols = self.files.iter().filter_map(|file| file.symbol(address));
        let scoped = symbols
            .map(|symbol| symbol.function)
            .find_map(|symbol| scope::of(&symbol, &name.function).map(str::to_owned));
        Name { function: scoped.unwrap_or(name.function), ..name }
    }
}

/// Whether a symbol, demangled, is a part that is jumped into and never called.
fn is_cold(symbol: &str) -> bool {
    symbol.contains("[clone .cold") || crate::Elf::clone_kind(symbol) == Some(CloneKind::Cold)
}

/// One file.
struct Source<'s> {
    dwarf: Option<Context<Slice<'s>>>,
    tables: [Symbols<'s>; 2],
}

impl<'s> Source<'s> {
    fn new(sections: &'s Sections<'_>) -> Self {
        let read = || {
            let shared = sections.shared.as_ref().and_then(|shared| shared.as_ref().ok());
            let own = sections.own.as_ref().ok()?;
            let mut dwarf =
                own.borrow_with_sup(shared, |bytes| EndianSlice::new(bytes, gimli::LittleEndian));
            dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
            Context::from_dwarf(dwarf).ok()
        };
        let symbols = |kind| {
            careful(|| Symbols::read(sections.data, kind)).unwrap_or_else(|| Symbols::none(kind))
        };
        Self { dwarf: careful(read), tables: [elf::SHT_SYMTAB, elf::SHT_DYNSYM].map(symbols) }
    }

    /// What the file says of an address: its DWARF, else its symbol tables.
    fn name(&self, address: u64) -> Option<Name> {
        careful(|| self.by_dwarf(address).ok().flatten()).or_else(|| self.symbol(address))
    }

    /// What the symbol tables say.
    fn symbol(&self, address: u64) -> Option<Name> {
        self.tables.iter().find_map(|table| careful(|| table.name(address)))
    }

    fn by_dwarf(&self, address: u64) -> gimli::Result<Option<Name>> {
        let Some(dwarf) = &self.dwarf else { return Ok(None) };
        // The innermost first. The last is the function; the others were inlined there.
        let mut frames = Vec::new();
        let mut found = dwarf.find_frames(address).skip_all_loads()?;
        while let Some(frame) = found.next()? {
            frames.push(frame);
        }
        let Some(outermost) = frames.pop() else { return Ok(None) };
        let (file, line) = location(outermost.location.as_ref());
        let name = match outermost.function.as_ref().and_then(function) {
            Some(function) => {
                let start = outermost.dw_die_offset.and_then(|die| start(dwarf, address, die));
                let offset = start.and_then(|start| address.checked_sub(start));
                Some(Name { function, offset, file: None, line: None, inlined: Vec::new() })
            }
            // A line of assembly, whose function only the symbol table knows.
            None => self.symbol(address),
        };
        let inlined = frames.iter().rev().take(MAX_INLINED).map(|frame| {
            let (file, line) = location(frame.location.as_ref());
            (frame.function.as_ref().and_then(function).unwrap_or_default(), file, line)
        });
        let inlined = inlined.collect();
        Ok(name.map(|name| Name { file, line, inlined, ..name }))
    }
}

/// Where the function that holds an address begins; `None` where it has several ranges.
fn start(dwarf: &Context<Slice<'_>>, address: u64, die: UnitOffset) -> Option<u64> {
    let unit = dwarf.find_dwarf_and_unit(address).skip_all_loads()?;
    let entry = unit.entry(die).ok()?;
    if !entry.has_attr(gimli::DW_AT_high_pc) {
        return None;
    }
    unit.attr_address(entry.attr_value(gimli::DW_AT_low_pc)?).ok()?
}

fn function(name: &FunctionName<Slice<'_>>) -> Option<String> {
    shown(name.name.slice())
}

/// A name as people write it.
fn shown(name: &[u8]) -> Option<String> {
    let name = String::from_utf8_lossy(&name[..name.len().min(MAX_NAME)]);
    (!name.is_empty()).then(|| wire::cut(&readable(&name)))
}

fn location(location: Option<&Location<'_>>) -> (Option<String>, Option<u32>) {
    let Some(location) = location else { return (None, None) };
    (location.file.map(wire::cut), location.line)
}

/// A symbol table, by address.
struct Symbols<'s> {
    kind: elf::SectionType,
    entries: &'s [Sym64<Little>],
    names: StringTable<'s>,
    /// Made when it is asked for first: most addresses have DWARF.
    index: OnceCell<Vec<Symbol>>,
}

struct Symbol {
    address: u64,
    size: u64,
    /// Its place in the table.
    at: usize,
}

impl<'s> Symbols<'s> {
    fn none(kind: elf::SectionType) -> Self {
        Self { kind, entries: &[], names: StringTable::default(), index: OnceCell::new() }
    }

    fn read(data: &'s [u8], kind: elf::SectionType) -> Option<Self> {
        let found = table(data)?.symbols(ENDIAN, data, kind).ok()?;
        Some(Self { entries: found.symbols(), names: found.strings(), ..Self::none(kind) })
    }

    fn index(&self) -> &[Symbol] {
        self.index.get_or_init(|| {
            let named = |symbol: &Sym64<Little>| {
                let kinds = [elf::STT_NOTYPE, elf::STT_FUNC, elf::STT_OBJECT, elf::STT_GNU_IFUNC];
                symbol.st_shndx(ENDIAN) != elf::SHN_UNDEF && kinds.contains(&symbol.st_type())
            };
            let mut index: Vec<Symbol> = self
                .entries
                .iter()
                .enumerate()
                .filter(|(_, symbol)| named(symbol))
                .map(|(at, symbol)| Symbol {
                    address: symbol.st_value(ENDIAN),
                    size: symbol.st_size(ENDIAN),
                    at,
                })
                .collect();
            // Of aliases the global one: local ones come first in a table.
            index.sort_unstable_by_key(|one| (one.address, Reverse(one.size), Reverse(one.at)));
            index
        })
    }

    fn name(&self, address: u64) -> Option<Name> {
        let index = self.index();
        let end = index.partition_point(|one| one.address <= address);
        let last = index[..end].last()?.address;
        let first = index.partition_point(|one| one.address < last);
        // A function of assembly often has no size: it goes on to the next symbol. The dynamic table has few symbols,
        // so there that would be a guess.
        let goes_on = self.kind == elf::SHT_SYMTAB;
        let found = index[first..end].iter().find(|one| {
            let at = address - one.address;
            if one.size == 0 { at == 0 || goes_on } else { at < one.size }
        })?;
        let name = self.names.get(self.entries.get(found.at)?.st_name(ENDIAN)).ok()?;
        Some(Name {
            function: shown(name)?,
            offset: Some(address - found.address),
            file: None,
            line: None,
            inlined: Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DebugSearch, testing::cc};

    /// A function whose cold part lies elsewhere has offsets from its entry, and none in the cold part.
    #[test]
    fn split_function() {
        const SOURCE: &str = r#"
            __attribute__((cold, noinline)) void fail(int x) { __asm__ volatile("" :: "r"(x)); }
            __attribute__((noinline)) int leak(int x) {
                if (x == 7) { fail(x); fail(x + 1); __builtin_trap(); }
                __asm__ volatile("nop; nop; nop; nop" ::: "memory");
                return x + 1;
            }
            void _start(void) { leak(1); }
        "#;
        let directory = tempfile::tempdir().unwrap();
        let flags = ["-O2", "-g", "-freorder-blocks-and-partition", "-nostdlib"];
        let path = cc(directory.path(), "split", SOURCE, &flags);
        let elf = crate::Elf::open(&path, "split", DebugSearch::default()).unwrap();
        let at = |name: &str| elf.resolve(name)[0].vaddr;
        let (entry, cold) = (at("leak"), at("leak.cold"));
        let maps = Maps::new(&[(Part::Object, File::open(&path).unwrap())]);
        let sections = maps.sections();
        let object = Object::new(&sections);
        let name = |address| object.name(address).map(|name| (name.function, name.offset));
        assert_eq!(name(entry + 3), Some(("leak".to_owned(), Some(3))));
        assert_eq!(name(cold + 2), Some(("leak".to_owned(), None)));
        assert_eq!(name(at("fail")), Some(("fail".to_owned(), Some(0))));
    }
}
