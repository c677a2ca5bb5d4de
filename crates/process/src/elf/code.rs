//! Code of an ELF object: where functions are, and their bytes.
//!
//! Read from the file when asked, never kept: most functions are never examined. `plan` asks, to choose
//! where in a function its probe goes.

use std::{fs::File, os::unix::fs::FileExt as _};

use super::{
    contents::PIECE,
    error::{ElfError, unread},
    object::Elf,
    symbols::{SymbolKind, SymbolTable},
};

impl Elf {
    /// Where code begins by the symbol tables, with its size (0 where they do not say), by address; of
    /// several symbols at one address the largest.
    #[must_use]
    pub fn code_symbols(&self) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = self
            .tables()
            .flat_map(SymbolTable::all)
            .filter(|symbol| symbol.kind != SymbolKind::Object && self.is_code(symbol.vaddr))
            .map(|symbol| (symbol.vaddr, symbol.size))
            .collect();
        all.sort_unstable_by(|one, other| one.0.cmp(&other.0).then(other.1.cmp(&one.1)));
        all.dedup_by_key(|symbol| symbol.0);
        all
    }

    /// Opens the file to read its code.
    pub fn code(&self) -> Result<ElfCode<'_>, ElfError> {
        Ok(ElfCode { elf: self, file: self.open_code()? })
    }
    /// The file, if it is as long as its segments say: what is allocated for them was in the file then.
    fn open_code(&self) -> Result<File, ElfError> {
        let file = self.open_again()?;
        let length = crate::guard::ask(|| file.metadata())
            .map_err(|error| unread(self.shown_path(), &error))?
            .len();
        let fits = self
            .segments()
            .iter()
            .filter(|segment| segment.executable)
            .all(|segment| segment.file_offset.saturating_add(segment.file_size) <= length);
        if fits {
            Ok(file)
        } else {
            Err(ElfError::Malformed {
                path: self.shown_path().to_owned(),
                what: "its code reaches beyond the end of the file".into(),
            })
        }
    }
}

/// An object's file, open to read its code.
#[derive(Debug)]
pub struct ElfCode<'a> {
    elf: &'a Elf,
    file: File,
}

impl ElfCode<'_> {
    /// At most `size` bytes of code from `vaddr` on: fewer where its segment ends.
    pub fn read(&self, vaddr: u64, size: usize) -> Result<Vec<u8>, ElfError> {
        let mut code = self.elf.segments().iter().filter(|segment| segment.executable);
        let Some((at, left)) = code.find_map(|segment| segment.in_file(vaddr)) else {
            return Ok(Vec::new());
        };
        let size = usize::try_from(left).map_or(size, |left| left.min(size));
        let mut bytes = vec![0; size];
        for (piece, at) in bytes.chunks_mut(PIECE).zip((at..).step_by(PIECE)) {
            crate::guard::ask_file(|| self.file.read_exact_at(piece, at))
                .map_err(|error| unread(self.elf.shown_path(), &error))?;
        }
        Ok(bytes)
    }

    /// All of it, each segment with its address; an error where there are more than `max` bytes.
    pub fn read_all(&self, max: u64) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
        let segments = || self.elf.segments().iter().filter(|segment| segment.executable);
        let total =
            segments().fold(0_u64, |total, segment| total.saturating_add(segment.file_size));
        if total > max {
            return Err(ElfError::Malformed {
                path: self.elf.shown_path().to_owned(),
                what: format!("it has {} MiB of code, more than is searched", total >> 20),
            });
        }
        segments()
            .map(|segment| {
                let size = usize::try_from(segment.file_size).unwrap_or(usize::MAX);
                Ok((segment.vaddr, self.read(segment.vaddr, size)?))
            })
            .collect()
    }
}
