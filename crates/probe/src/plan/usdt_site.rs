//! What a USDT probe has at one of its sites, as the note of the object says.

use drainprof_process::{
    Elf, printable,
    usdt::{MAX_ARGUMENTS, UsdtNote, words},
};

/// A site of a USDT probe, in an object of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtSite {
    /// Offset in the file of the semaphore that the kernel raises while the probe is attached.
    pub semaphore: Option<u32>,
    /// The arguments, as its note words them; hostile.
    pub arguments: String,
}

impl UsdtSite {
    /// What is attached for a note; the error says why it cannot be.
    pub(super) fn new(elf: &Elf, note: &UsdtNote) -> Result<Self, String> {
        let semaphore = match note.semaphore {
            None => None,
            Some(vaddr) => Some(elf.semaphore_offset(vaddr).ok_or_else(|| {
                format!(
                    "its semaphore, at {vaddr:#x}, is not in data of the file; it would never fire"
                )
            })?),
        };
        Ok(Self { semaphore, arguments: note.arguments.clone() })
    }

    /// The arguments as lists show them: `arg0=-4@%eax`.
    pub(super) fn listed(&self) -> Vec<String> {
        let words = words(&self.arguments).into_iter().take(MAX_ARGUMENTS).enumerate();
        words.map(|(index, word)| format!("arg{index}={}", printable(word))).collect()
    }
}
