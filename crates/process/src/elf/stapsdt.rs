//! The USDT probes of an object: the notes in its section `.note.stapsdt`.
//!
//! Finds the section and hands its notes to [`mod@crate::usdt`], which decodes them. Called by `read` for every
//! object; `plan` asks [`Elf::usdt`].

use object::read::elf::SectionHeader as _;

use super::{
    object::Elf,
    read::{ENDIAN, Reader},
};
use crate::usdt::{MAX_NOTES, UsdtNote, decode};

/// Largest section of notes.
const MAX_BYTES: u64 = 4 << 20;
/// A note's owner and type.
const OWNER: (&[u8], u32) = (b"stapsdt", 3);

impl Elf {
    /// Its USDT probes called so, in the file's order: one probe may have several places. The error says why its notes
    /// cannot be read.
    pub fn usdt(&self, provider: &str, name: &str) -> Result<Vec<&UsdtNote>, String> {
        let all = self.usdt_notes()?;
        Ok(all.iter().filter(|note| note.provider == provider && note.name == name).collect())
    }

    #[cfg(test)]
    fn usdt_all(&self) -> &[UsdtNote] {
        self.usdt_notes().unwrap_or_default()
    }

    /// The offset in the file of a semaphore; `None` where it lies in no writable data of the file, at an odd place, or
    /// too far into the file for the kernel to be reported.
    #[must_use]
    pub fn semaphore_offset(&self, vaddr: u64) -> Option<u32> {
        let offset = self.file_offset(vaddr)?;
        (!self.is_code(vaddr) && offset.is_multiple_of(2)).then_some(())?;
        u32::try_from(offset).ok().filter(|offset| *offset != 0)
    }
}

impl Reader<'_> {
    /// All USDT probes.
    pub(super) fn usdt(&self) -> Result<Vec<UsdtNote>, String> {
        let Some(section) = self.section(b".note.stapsdt") else { return Ok(Vec::new()) };
        let size = section.sh_size(ENDIAN);
        if size > MAX_BYTES {
            return Err(format!("its section of USDT probes has {size} bytes"));
        }
        let wrong = |what: &dyn std::fmt::Display| format!("its section of USDT probes: {what}");
        // `objcopy --only-keep-debug` leaves the section's header without its contents.
        let notes = section.notes(ENDIAN, self.contents).map_err(|error| wrong(&error))?;
        let Some(mut notes) = notes else { return Ok(Vec::new()) };
        let base = self.section(b".stapsdt.base").map(|section| section.sh_addr(ENDIAN));
        let mut all = Vec::new();
        while let Some(note) = notes.next().map_err(|error| wrong(&error))? {
            if (note.name(), note.n_type(ENDIAN).0) != OWNER {
                continue;
            }
            if all.len() >= MAX_NOTES {
                return Err(wrong(&format_args!("more than {MAX_NOTES} notes")));
            }
            all.push(decode(note.desc(), base).map_err(|what| wrong(&what))?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests;
