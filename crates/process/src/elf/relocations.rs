//! The slots of an object that the dynamic linker fills with the addresses of functions.
//!
//! Finds the relocations that name a function, or the resolver of an IFUNC; what stands in the slots of a
//! process is for [`crate::ifunc`] to read. Read anew for each question, since few profiles ask.

use object::{
    LittleEndian as Little, elf,
    read::{
        ReadRef as _,
        elf::{Rela as _, SectionHeader as _, Sym as _},
    },
};

use super::{
    Elf, ElfError, SymbolKind,
    read::{ENDIAN, Reader, with_file},
    symbols::SymbolTable,
};

/// Most relocation sections of one object: linkers make one or two.
const MAX_SECTIONS: usize = 64;
/// Most relocations of one object that are looked at.
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
        with_file(&self.open_path, &self.shown_path, |reader| {
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
        let mut seen = 0;
        let sections = self.sections.iter().filter(|section| {
            section.sh_type(ENDIAN) == elf::SHT_RELA
                && section.sh_flags(ENDIAN).contains(elf::SHF_ALLOC)
        });
        for section in sections.take(MAX_SECTIONS) {
            let relocations: &[elf::Rela64<Little>] =
                self.array(section, MAX_RELOCATIONS, "relocations")?;
            seen += relocations.len();
            if seen > MAX_RELOCATIONS {
                return Err(self.malformed(format!("{seen} relocations")));
            }
            // Static programs have relocations without symbols.
            let (symbols, strings) = match self.sections.get(section.sh_link(ENDIAN) as usize) {
                Some(table) if table.sh_type(ENDIAN) == elf::SHT_DYNSYM => {
                    self.symbols_in(table)?
                }
                _ => Default::default(),
            };
            let which = |symbol: u32| {
                let symbol = symbols.get(symbol as usize)?;
                let rest = strings.get(symbol.st_name(ENDIAN) as usize..)?;
                names.iter().position(|name| {
                    rest.strip_prefix(name.as_slice()).is_some_and(|rest| rest.first() == Some(&0))
                })
            };
            for relocation in relocations {
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
            }
        }
        Ok(slots)
    }
}
