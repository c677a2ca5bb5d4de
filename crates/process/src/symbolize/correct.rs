//! Puts right what blazesym does not: each function here says what, and `docs/symbols.md` offers it upstream.
//!
//! Called by `object`, on answers and on files that are as hostile as there.

use std::{borrow::Cow, cmp::Reverse, fs::File};

use addr2line::Context;
use gimli::{DwarfSections, EndianSlice};
use memmap2::{Mmap, MmapOptions};
use object::{
    LittleEndian as Little, Object as _, ObjectSection as _,
    elf::{self, FileHeader64},
    read::elf::{ElfFile64, FileHeader as _, SectionHeader as _, Sym as _, SymbolTable},
};

use super::{
    sandbox::MAX_MEMORY,
    wire::{self, Name, Part},
};
use crate::{CloneKind, careful::careful, elf::readable};

/// Most bytes that the compressed sections of one file may unfold to.
const MAX_UNFOLDED: u64 = MAX_MEMORY / 4 * 3;
/// How many times its own size a compressed section may unfold to: zlib reaches no more.
const MAX_RATIO: u64 = 1100;

/// A name as people write it; empty where there is none. What a few bytes may unfold to is bounded as for probes, which
/// blazesym's own demangling is not.
pub(super) fn shown(name: &str) -> String {
    wire::cut(&readable(name))
}

fn map(file: &File) -> Option<Mmap> {
    let size = usize::try_from(rustix::fs::fstat(file).ok()?.st_size).ok().filter(|&n| n > 0)?;
    // SAFETY: a user who may write to the file can change these bytes. They are decoded as numbers and text, each use is
    // checked by itself, and where the file becomes shorter, this process dies, which it is for.
    unsafe { MmapOptions::new().len(size).map(file) }.ok()
}

/// Says so where the sections of a file claim to unfold to more than is read: blazesym asks for that memory at once,
/// and the process would end.
pub(super) fn too_large(file: &File) -> Option<&'static str> {
    let map = map(file)?;
    let claimed = careful(|| {
        let data = &*map;
        let header = FileHeader64::<Little>::parse(data).ok()?;
        let sections = header.sections(Little, data).ok()?;
        let compressed =
            sections.iter().filter_map(|section| section.compression(Little, data).ok()?);
        let sizes = compressed.map(|(header, _, size)| {
            let claimed = header.ch_size.get(Little);
            if claimed / MAX_RATIO > size { u64::MAX } else { claimed }
        });
        Some(sizes.fold(0, u64::saturating_add))
    });
    (claimed? > MAX_UNFOLDED)
        .then_some("its debug information claims to unfold to more than is read")
}

/// Fills in names that `dwz` moved to the file that several objects share: blazesym does not follow references there.
pub(super) fn shared_names(files: &[(Part, File)], addresses: &[u64], names: &mut [Option<Name>]) {
    if !names.iter().flatten().any(lacks_name) {
        return;
    }
    for pair in files.windows(2) {
        let [(_, own), (Part::Shared, shared)] = pair else { continue };
        let Some((own, shared)) = map(own).zip(map(shared)) else { continue };
        careful(|| {
            let (own, shared) = (sections(&own)?, sections(&shared)?);
            let dwarf = own.borrow_with_sup(Some(&shared), |bytes| {
                EndianSlice::new(bytes, gimli::LittleEndian)
            });
            let context = Context::from_dwarf(dwarf).ok()?;
            for (&address, name) in addresses.iter().zip(names.iter_mut()) {
                if let Some(name) = name.as_mut().filter(|name| lacks_name(name)) {
                    fill(name, &context, address);
                }
            }
            Some(())
        });
    }
}

fn lacks_name(name: &Name) -> bool {
    name.function.is_empty() || name.inlined.iter().any(|(function, ..)| function.is_empty())
}

fn sections(data: &[u8]) -> Option<DwarfSections<Cow<'_, [u8]>>> {
    let file = ElfFile64::<Little>::parse(data).ok()?;
    let section = |id: gimli::SectionId| match file.section_by_name(id.name()) {
        Some(section) => section.uncompressed_data(),
        None => Ok(Cow::default()),
    };
    DwarfSections::load(section).ok()
}

fn fill(
    name: &mut Name,
    context: &Context<EndianSlice<'_, gimli::LittleEndian>>,
    address: u64,
) -> Option<()> {
    let mut frames = context.find_frames(address).skip_all_loads().ok()?;
    let mut found = Vec::new();
    while let Some(frame) = frames.next().ok()? {
        let function = frame.function.map(|function| function.name.to_string_lossy().into_owned());
        found.push(function.unwrap_or_default());
    }
    // The innermost comes first.
    let inlined = name.inlined.iter_mut().map(|(function, ..)| function);
    let functions = std::iter::once(&mut name.function).chain(inlined);
    for (function, found) in functions.zip(found.iter().rev()) {
        if function.is_empty() {
            *function = shown(found);
        }
    }
    Some(())
}

/// A symbol table of a file, by address. blazesym asks it only where DWARF has no answer.
pub(super) struct Table {
    map: Mmap,
    kind: elf::SectionType,
    /// Addresses, sizes, names and places in the table.
    symbols: Vec<(u64, Reverse<u64>, Reverse<usize>, u32)>,
}

/// The symbol tables of an object's files, the debug file's first.
pub(super) fn tables(files: &[(Part, File)]) -> Vec<Table> {
    let with_symbols =
        files.iter().rev().filter(|(part, _)| matches!(part, Part::Object | Part::Debug));
    let kinds = [elf::SHT_SYMTAB, elf::SHT_DYNSYM];
    let both = with_symbols.flat_map(|(_, file)| kinds.map(|kind| Table::read(file, kind)));
    both.flatten().collect()
}

impl Table {
    fn read(file: &File, kind: elf::SectionType) -> Option<Self> {
        let map = map(file)?;
        let symbols = careful(|| {
            let kinds = [elf::STT_NOTYPE, elf::STT_FUNC, elf::STT_OBJECT, elf::STT_GNU_IFUNC];
            let table = table(&map, kind)?;
            let named = table.iter().enumerate().filter(|(_, symbol)| {
                !symbol.is_undefined(Little) && kinds.contains(&symbol.st_type())
            });
            // Of aliases the global one: local ones come first in a table.
            let mut symbols: Vec<_> = named
                .map(|(at, symbol)| {
                    let (address, size) = (symbol.st_value(Little), symbol.st_size(Little));
                    (address, Reverse(size), Reverse(at), symbol.st_name(Little))
                })
                .collect();
            symbols.sort_unstable();
            Some(symbols)
        });
        Some(Self { map, kind, symbols: symbols? })
    }

    /// The symbol that holds an address.
    pub(super) fn name(&self, address: u64) -> Option<Name> {
        let end = self.symbols.partition_point(|one| one.0 <= address);
        let last = self.symbols[..end].last()?.0;
        let first = self.symbols.partition_point(|one| one.0 < last);
        // A function of assembly often has no size: it reaches to the next symbol. The dynamic table has few symbols,
        // so there that would be a guess.
        let reaches = self.kind == elf::SHT_SYMTAB;
        let (start, .., name) = self.symbols[first..end].iter().find(|(start, size, ..)| {
            let at = address - start;
            if size.0 == 0 { at == 0 || reaches } else { at < size.0 }
        })?;
        let name = careful(|| table(&self.map, self.kind)?.strings().get(*name).ok())
            .filter(|name| !name.is_empty())?;
        Some(Name {
            function: shown(&String::from_utf8_lossy(name)),
            offset: Some(address - start),
            file: None,
            line: None,
            inlined: Vec::new(),
        })
    }
}

fn table(data: &[u8], kind: elf::SectionType) -> Option<SymbolTable<'_, FileHeader64<Little>>> {
    let header = FileHeader64::<Little>::parse(data).ok()?;
    header.sections(Little, data).ok()?.symbols(Little, data, kind).ok()
}

/// Whether the symbol table may know more of a name.
pub(super) fn needs_symbol(name: &Name) -> bool {
    // A name without a line is the symbol table's.
    name.function.is_empty()
        || name.offset.is_none()
        || (name.line.is_some() && may_lack_scope(name))
}

/// The name with what the symbol table knows of it: the function where DWARF has no name of it; its scope where DWARF
/// has only the short one; and the offset where DWARF has several ranges, for which blazesym gives no address. The
/// offset is from the entry, so there is none in a part that is jumped into and never called (`.cold`).
pub(super) fn with_symbol(mut name: Name, symbol: Option<&Name>) -> Option<Name> {
    if let Some(symbol) = symbol {
        if name.function.is_empty() {
            name.function.clone_from(&symbol.function);
        } else if let Some(scoped) = scoped(&symbol.function, &name.function)
            && may_lack_scope(&name)
        {
            scoped.clone_into(&mut name.function);
        }
        name.offset = name.offset.or(symbol.offset.filter(|_| !is_cold(&symbol.function)));
    }
    (!name.function.is_empty()).then_some(name)
}

/// Whether a symbol, demangled, is a part that is jumped into and never called.
fn is_cold(symbol: &str) -> bool {
    symbol.contains("[clone .cold") || crate::Elf::clone_kind(symbol) == Some(CloneKind::Cold)
}

/// Whether a name from DWARF may lack its scope: compilers give C++ functions with internal linkage (in an unnamed
/// namespace, `static`, lambdas) no linkage name, so that DWARF says `trying` where the symbol table says
/// `shop::trying()`. C has no scopes, and Rust always has linkage names where there are any.
fn may_lack_scope(name: &Name) -> bool {
    let file = name.file.as_deref().unwrap_or_default();
    let plain = [".c", ".rs"].iter().any(|extension| file.ends_with(extension));
    !plain && !name.function.contains("::")
}

/// The symbol's name, if it is `short` with its scope; without the remark of a part that was split off, as names from
/// DWARF are. `None` if it is another function's.
fn scoped<'a>(symbol: &'a str, short: &str) -> Option<&'a str> {
    let symbol = symbol.split_once(" [clone ").map_or(symbol, |(name, _)| name);
    // Template arguments are written in other ways by compilers and demanglers.
    let base = match short.split_once('<') {
        Some((base, _)) if !base.is_empty() && !base.ends_with("operator") => base,
        _ => short,
    };
    let rest = &symbol[last_scope(symbol)?..];
    let rest = rest.strip_prefix(base)?;
    let ends = rest.is_empty() || rest.starts_with(['(', '<', ' ', '[']);
    (!base.is_empty() && ends).then_some(symbol)
}

/// Where the function's own name begins: behind the last `::` outside of brackets.
fn last_scope(symbol: &str) -> Option<usize> {
    let (mut depth, mut last) = (0_u32, None);
    // Bytes, since text is not to be cut within its characters.
    let bytes = symbol.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            // `operator<`, `operator->` and the like: what follows is no bracket, and the name's end.
            b'<' | b'>' | b'-' if depth == 0 && bytes[..at].ends_with(b"::operator") => break,
            b'(' | b'<' | b'{' | b'[' => depth += 1,
            b')' | b'>' | b'}' | b']' => depth = depth.saturating_sub(1),
            b':' if depth == 0 && bytes[..at].ends_with(b":") => last = Some(at + 1),
            _ => {}
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A short name gets the scope of the symbol that it belongs to, with arguments, in lambdas, operators and templates.
    #[test]
    fn belongs() {
        for (symbol, short) in [
            ("shop::trying()", "trying"),
            ("(anonymous namespace)::less(int, shop::Item const&)", "less"),
            ("shop::with_lambda()::{lambda()#1}::operator()() const", "operator()"),
            ("shop::{lambda(std::map<int, x::y>)#2}::_FUN(int)", "_FUN"),
            ("std::vector<int> shop::make<unsigned long>(int)", "make<long unsigned int>"),
            ("shop::operator<<(std::ostream&, shop::Item)", "operator<<"),
            ("shop::operator< <int>(shop::Item, shop::Item)", "operator< <int>"),
            ("shop::Item::operator->() const", "operator->"),
            ("shop::Cart<shop::Item>::~Cart()", "~Cart"),
            ("größe::über(int)", "über"),
        ] {
            assert_eq!(scoped(symbol, short), Some(symbol));
        }
        assert_eq!(scoped("shop::trying() [clone .cold]", "trying"), Some("shop::trying()"));
    }

    /// A scope, an argument, part of a name, or another function is not the function; a name without scope gains nothing.
    #[test]
    fn does_not_belong() {
        for (symbol, short) in [
            ("shop::with_lambda()::{lambda()#1}::operator()() const", "with_lambda"),
            ("shop::apply(shop::trying)", "trying"),
            ("shop::trying_hard()", "trying"),
            ("shop::not_trying()", "trying"),
            ("trying", "trying"),
            ("trying.part.0", "trying"),
            ("shop::", "trying"),
            ("shop::", ""),
            ("é::é→é", "é"),
            (">>::)]:::", ":"),
        ] {
            assert_eq!(scoped(symbol, short), None, "{symbol}");
        }
    }

    /// C and Rust are as they were; what has a scope has it.
    #[test]
    fn others_are_left_alone() {
        let name = |function: &str, file: Option<&str>| Name {
            function: function.to_owned(),
            offset: Some(0),
            file: file.map(str::to_owned),
            line: None,
            inlined: Vec::new(),
        };
        assert!(may_lack_scope(&name("trying", Some("a/shop.cc"))));
        assert!(may_lack_scope(&name("trying", None)));
        assert!(!may_lack_scope(&name("shop::trying()", Some("shop.cc"))));
        assert!(!may_lack_scope(&name("trying", Some("shop.c"))));
        assert!(!may_lack_scope(&name("main", Some("main.rs"))));
    }
}
