//! The slots of an object that the dynamic linker fills with the addresses of functions.
//!
//! Finds the relocations that name a function, or the resolver of an IFUNC; what stands in the slots of a
//! process is for [`crate::ifunc`] to read. Read again for each question, since few profiles ask.

use std::collections::HashMap;

use object::{
    LittleEndian as Little, elf,
    read::{
        ReadRef as _,
        elf::{Rela as _, SectionHeader as _, Sym as _},
    },
};

use super::{
    contents::Names as _,
    error::ElfError,
    object::Elf,
    read::{ENDIAN, Reader, Sym, with_open},
    symbols::{MAX_SYMBOLS, SymbolKind, SymbolTable},
};

/// Most relocation sections of one object: linkers make one or two.
const MAX_SECTIONS: usize = 64;
/// Most relocations of one object that are examined.
const MAX_RELOCATIONS: usize = 4_000_000;
/// Most slots that are found in one object.
const MAX_SLOTS: usize = 1024;

/// The relocations that say "the address of this function", and "what this resolver returns".
#[cfg(target_arch = "aarch64")]
const KINDS: ([elf::RelocationType; 2], elf::RelocationType) =
    ([elf::R_AARCH64_JUMP_SLOT, elf::R_AARCH64_GLOB_DAT], elf::R_AARCH64_IRELATIVE);
/// The relocations that say "the address of this function", and "what this resolver returns".
#[cfg(not(target_arch = "aarch64"))]
const KINDS: ([elf::RelocationType; 2], elf::RelocationType) =
    ([elf::R_X86_64_JUMP_SLOT, elf::R_X86_64_GLOB_DAT], elf::R_X86_64_IRELATIVE);

/// A word of an object's data that the dynamic linker sets to the address of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where it is, in the file's own address space; hostile: nothing says that it is mapped.
    pub vaddr: u64,
    /// What the file has there: what stands in the process until the slot is resolved.
    pub(crate) initial: Option<u64>,
    /// It was asked for by the resolver's address, not by a name that another object may define too.
    pub(crate) by_resolver: bool,
    /// The place of the function's name among those that were asked for.
    pub(crate) name: Option<usize>,
}

impl Elf {
    /// Whether the object has any IFUNC.
    pub fn has_ifuncs(&self) -> bool {
        self.tables().flat_map(SymbolTable::all).any(|symbol| symbol.kind == SymbolKind::Ifunc)
    }

    /// The names of the IFUNC whose resolver is at `vaddr`; hostile.
    pub(crate) fn ifunc_names(&self, vaddr: u64) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = self
            .tables()
            .flat_map(SymbolTable::all)
            .filter(|symbol| symbol.kind == SymbolKind::Ifunc && symbol.vaddr == vaddr)
            .map(|symbol| symbol.name.to_vec())
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The slots for the functions called one of `names`, and for what the `resolver` of this object returns.
    pub fn slots(&self, names: &[Vec<u8>], resolver: Option<u64>) -> Result<Vec<Slot>, ElfError> {
        with_open(self.open_again()?, self.shown_path(), |reader| {
            let mut slots = reader.slots(names, resolver)?;
            for slot in &mut slots {
                let at = self.file_offset(slot.vaddr);
                let bytes = at.and_then(|at| reader.contents.read_bytes_at(at, 8).ok());
                slot.initial =
                    bytes.and_then(|bytes| Some(u64::from_le_bytes(*bytes.first_chunk()?)));
            }
            Ok(slots)
        })
    }
}

impl Reader<'_> {
    fn slots(&self, names: &[Vec<u8>], resolver: Option<u64>) -> Result<Vec<Slot>, ElfError> {
        let (by_name, relative) = KINDS;
        let mut slots = Vec::new();
        let mut left = MAX_RELOCATIONS;
        let mut known = HashMap::new();
        let sections = self.sections.iter().filter(|section| {
            section.sh_type(ENDIAN) == elf::SHT_RELA
                && section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC)
        });
        for section in sections.take(MAX_SECTIONS) {
            let link = section.sh_link(ENDIAN);
            if !known.contains_key(&link) {
                let read: usize = known.values().map(Vec::len).sum();
                known.insert(link, self.symbols_called(link, names, MAX_SYMBOLS - read)?);
            }
            let symbols: &[(u32, u32)] = &known[&link];
            let which = |symbol: u32| {
                let at = symbols.binary_search_by_key(&symbol, |(index, _)| *index).ok()?;
                Some(symbols[at].1 as usize)
            };
            let visit = |_, relocation: &elf::Rela64<Little>| {
                left = left.checked_sub(1).ok_or("too many of them")?;
                let kind = relocation.r_type(ENDIAN, false);
                let by_resolver = kind == relative;
                let is_named = by_name.contains(&kind);
                let name = is_named.then(|| which(relocation.r_sym(ENDIAN, false))).flatten();
                let is_result =
                    by_resolver && resolver == Some(relocation.r_addend(ENDIAN).cast_unsigned());
                if (name.is_some() || is_result) && slots.len() < MAX_SLOTS {
                    slots.push(Slot {
                        vaddr: relocation.r_offset(ENDIAN),
                        initial: None,
                        by_resolver,
                        name,
                    });
                }
                Ok(())
            };
            self.entries(section, MAX_RELOCATIONS, "relocations", visit)?;
        }
        Ok(slots)
    }

    /// The symbols in the section with the number `link` that are called one of `names`: number, place of the name.
    fn symbols_called(
        &self,
        link: u32,
        names: &[Vec<u8>],
        max: usize,
    ) -> Result<Vec<(u32, u32)>, ElfError> {
        // Static programs have relocations without symbols.
        let Some(table) = self
            .sections
            .get(link as usize)
            .filter(|table| table.sh_type(ENDIAN) == elf::SHT_DYNSYM)
        else {
            return Ok(Vec::new());
        };
        let mut places: HashMap<&[u8], u32> = HashMap::new();
        for (place, name) in names.iter().enumerate() {
            places.entry(name).or_insert(place as u32);
        }
        let mut strings = self.names_of(table)?;
        let mut symbols = Vec::new();
        self.entries(table, max, "symbol table", |index, symbol: &Sym| {
            symbols.push((symbol.st_name(ENDIAN), index as u32));
            Ok(())
        })?;
        // By rising offsets, as they are read.
        symbols.sort_unstable();
        let mut trouble = None;
        symbols.retain_mut(|symbol| match strings.at(symbol.0) {
            Ok(name) => {
                let place = name.and_then(|name| places.get(name));
                *symbol = (symbol.1, place.copied().unwrap_or_default());
                place.is_some()
            }
            Err(what) => {
                trouble.get_or_insert(what);
                false
            }
        });
        symbols.sort_unstable();
        trouble.map_or(Ok(symbols), |what| Err(self.malformed(what)))
    }
}
