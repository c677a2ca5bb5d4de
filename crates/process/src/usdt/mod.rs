//! USDT probes: places in a program that its authors named, with arguments that they chose.
//!
//! Each place is described by a note in the section `.note.stapsdt`: the address of a nop, the probe's names, the
//! address of a counter that the program examines before it computes arguments for nothing (its *semaphore*), and
//! where the arguments are, in the assembler's words. This module decodes notes, `operand` the words.
//! It reads no file (`elf` hands it the section's notes) and knows no profile (`plan` asks). Notes are hostile:
//! what is too long, or makes no sense, is refused with a reason.

mod operand;

pub use operand::{Argument, Location, MAX_ARGUMENTS, arguments, words};

/// Most notes that are read of one object: Chromium and node have some hundreds.
pub(crate) const MAX_NOTES: usize = 16_384;
/// Longest note: the names of C++ variables among the arguments can be long.
const MAX_NOTE: usize = 16 << 10;

/// One place of a USDT probe, as its note has it; addresses are in the file's own address space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsdtNote {
    /// The provider; hostile.
    pub provider: String,
    /// The probe's name; hostile.
    pub name: String,
    /// The address of the nop.
    pub vaddr: u64,
    /// The address of the semaphore, if it has one.
    pub semaphore: Option<u64>,
    /// The arguments as the note words them, for [`arguments`]; hostile.
    pub arguments: String,
}

/// Decodes the contents of one note. `base` is the address of the section `.stapsdt.base`: programs that move a
/// finished object (`prelink`) adjust that, but not the notes, which remember where it was.
pub(crate) fn decode(contents: &[u8], base: Option<u64>) -> Result<UsdtNote, String> {
    if contents.len() > MAX_NOTE {
        return Err(format!("a note of {} bytes", contents.len()));
    }
    let mut words = contents
        .chunks_exact(8)
        .map(|word| word.iter().rev().fold(0_u64, |value, byte| value << 8 | u64::from(*byte)));
    let (Some(vaddr), Some(linked), Some(semaphore), Some(text)) =
        (words.next(), words.next(), words.next(), contents.get(24..))
    else {
        return Err(format!("a note of {} bytes", contents.len()));
    };
    let moved = base.filter(|_| linked != 0).map_or(0, |base| base.wrapping_sub(linked));
    let mut texts = text.split(|byte| *byte == 0);
    // What `split` yields last is not terminated.
    let (Some(provider), Some(name), Some(arguments), Some(_)) =
        (texts.next(), texts.next(), texts.next(), texts.next())
    else {
        return Err("a note whose texts do not end".to_owned());
    };
    if provider.is_empty() || name.is_empty() {
        return Err("a note without a name".to_owned());
    }
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    Ok(UsdtNote {
        provider: text(provider),
        name: text(name),
        vaddr: vaddr.wrapping_add(moved),
        semaphore: (semaphore != 0).then(|| semaphore.wrapping_add(moved)),
        arguments: text(arguments),
    })
}

#[cfg(test)]
mod tests;
