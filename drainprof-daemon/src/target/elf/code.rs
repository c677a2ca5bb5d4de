//! Code of an ELF object: a function's extent and its bytes.
//!
//! Read from the file when asked, never kept: most functions are never looked at. `plan` asks, to choose
//! where in a function its probe goes.

use std::{fs::File, os::unix::fs::FileExt as _};

use super::{Elf, ElfError, SymbolKind, read::MAX_FILE, symbols::SymbolTable};
use crate::target::file::open_regular;

/// A function's extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes; 0 where the tables do not say.
    pub size: u64,
    /// Addresses within it at which other symbols of code stand, sorted.
    pub inner: Vec<u64>,
}

impl Elf {
    /// What the symbol tables say about the function at `vaddr`.
    #[must_use]
    pub fn extent(&self, vaddr: u64) -> Extent {
        let code = || {
            let all = self.tables().flat_map(SymbolTable::all);
            all.filter(|symbol| symbol.kind != SymbolKind::Object)
        };
        let size = code()
            .filter(|symbol| symbol.vaddr == vaddr)
            .map(|symbol| symbol.size)
            .max()
            .unwrap_or(0);
        let within = |at: u64| at.checked_sub(vaddr).is_some_and(|by| by > 0 && by < size);
        let mut inner: Vec<u64> =
            code().map(|symbol| symbol.vaddr).filter(|at| within(*at)).collect();
        inner.sort_unstable();
        inner.dedup();
        Extent { size, inner }
    }

    /// At most `size` bytes of code from `vaddr` on: fewer where its segment ends.
    pub fn code(&self, vaddr: u64, size: usize) -> Result<Vec<u8>, ElfError> {
        let Some((at, left)) = self.parts.segments.iter().find_map(|segment| {
            let into = vaddr.checked_sub(segment.vaddr).filter(|into| *into < segment.file_size)?;
            let at = segment.file_offset.checked_add(into)?;
            segment.executable.then_some((at, segment.file_size - into))
        }) else {
            return Ok(Vec::new());
        };
        let size = usize::try_from(left).map_or(size, |left| left.min(size));
        let file = self.open_again()?;
        let mut bytes = vec![0; size];
        file.read_exact_at(&mut bytes, at).map_err(|error| self.unread(&error))?;
        Ok(bytes)
    }

    /// All of its code, each segment with its address; an error where there are more than `max` bytes.
    pub fn all_code(&self, max: u64) -> Result<Vec<(u64, Vec<u8>)>, ElfError> {
        let segments = || self.parts.segments.iter().filter(|segment| segment.executable);
        let total =
            segments().fold(0_u64, |total, segment| total.saturating_add(segment.file_size));
        if total > max {
            return Err(ElfError::Malformed {
                path: self.shown_path.clone(),
                what: format!("it has {} MiB of code, more than is searched", total >> 20),
            });
        }
        segments()
            .map(|segment| {
                let size = usize::try_from(segment.file_size).unwrap_or(usize::MAX);
                Ok((segment.vaddr, self.code(segment.vaddr, size)?))
            })
            .collect()
    }

    /// The file, if it is as long as its segments say: what is allocated for them was in the file then.
    fn open_again(&self) -> Result<File, ElfError> {
        let file = open_regular(&self.open_path, MAX_FILE).map_err(|error| self.unread(&error))?;
        let length = file.metadata().map_err(|error| self.unread(&error))?.len();
        let fits = self
            .parts
            .segments
            .iter()
            .filter(|segment| segment.executable)
            .all(|segment| segment.file_offset.saturating_add(segment.file_size) <= length);
        if fits {
            Ok(file)
        } else {
            Err(ElfError::Malformed {
                path: self.shown_path.clone(),
                what: "its code reaches beyond the end of the file".into(),
            })
        }
    }

    fn unread(&self, error: &std::io::Error) -> ElfError {
        ElfError::Read { path: self.shown_path.clone(), cause: error.to_string() }
    }
}
