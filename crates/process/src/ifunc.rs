//! Which function an IFUNC stands for in a process.
//!
//! An IFUNC's symbol names a resolver, which ran once when the object was loaded; what it returned stands in
//! the slots that calls go through. They are read from the process's memory, and what is found is handed to
//! `plan` as plain data by `watch`. Nothing is called in the process, and nothing is guessed: a slot counts
//! only if it leads to the beginning of code that a resolver can have meant.
//!
//! Not seen: implementations that no slot leads to, because every caller binds lazily and none has called
//! yet, because the address was only asked for with `dlsym`, or because a static program has not run its
//! start-up code.

use nix::errno::Errno;

use super::{
    Elf, Image, LoadedObject, Process, SymbolHit, SymbolKind, elf::Slot, file::read_memory,
};

/// Most IFUNCs that are followed at once: every one costs a pass over all relocations of the process.
const MAX_FOLLOWED: usize = 64;
/// Most slots that are read of one IFUNC.
const MAX_READS: usize = 4096;

/// An IFUNC of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IfuncKey {
    /// Device and inode of its object.
    pub inode: (u64, u64),
    /// The address of its resolver, in the file's own address space.
    pub resolver: u64,
}

/// What was found out about an IFUNC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Followed {
    /// The IFUNC.
    pub key: IfuncKey,
    /// The functions that it stands for, nearly always one; or why none is known.
    pub outcome: Result<Vec<Implementation>, String>,
}

/// A function that an IFUNC stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Implementation {
    /// Device and inode of its object, nearly always the IFUNC's own.
    pub inode: (u64, u64),
    /// Its offset in the file.
    pub file_offset: u64,
    /// Its name, or `offset:0x…` where the object has none for it; hostile.
    pub symbol: String,
}

/// Reads a word of the process's memory; the error is for people.
type ReadWord<'r> = dyn FnMut(u64) -> Result<u64, String> + 'r;

/// Finds out which functions the IFUNCs `keys` of `process` stand for; `image` is what it has mapped.
#[must_use]
pub fn follow_ifuncs(process: &Process, image: &Image, keys: &[IfuncKey]) -> Vec<Followed> {
    if keys.is_empty() {
        return Vec::new();
    }
    let mut read = |address| read_word(process.pid, address);
    let followed: Vec<Followed> = keys
        .iter()
        .take(MAX_FOLLOWED)
        .map(|&key| Followed { key, outcome: follow(image, key, &mut read) })
        .collect();
    if process.is_alive() {
        return followed;
    }
    // What was read may be of another process that was given the number since.
    let ended = || Err(format!("process {} has ended", process.pid));
    followed.into_iter().map(|followed| Followed { outcome: ended(), ..followed }).collect()
}

fn read_word(pid: u32, address: u64) -> Result<u64, String> {
    let wrong = |errno: Errno| {
        let hint = if errno == Errno::EPERM { ": run as root, or with CAP_SYS_PTRACE" } else { "" };
        format!("the memory of process {pid} cannot be read ({}){hint}", errno.desc())
    };
    let mut word = [0_u8; 8];
    match read_memory(pid, address, &mut word) {
        Ok(8) => Ok(u64::from_le_bytes(word)),
        Ok(_) => Err(wrong(Errno::EFAULT)),
        Err(errno) => Err(wrong(errno)),
    }
}

/// The functions that one IFUNC stands for.
fn follow(
    image: &Image,
    key: IfuncKey,
    read: &mut ReadWord<'_>,
) -> Result<Vec<Implementation>, String> {
    let owner = image
        .objects
        .iter()
        .find(|object| object.mapped.inode == key.inode)
        .and_then(|object| object.elf.as_ref().ok())
        .ok_or_else(|| "its object cannot be read".to_owned())?;
    let names = owner.ifunc_names(key.resolver);
    let ifunc = Ifunc { image, key, names: &names };
    let mut found: Vec<Implementation> = Vec::new();
    let mut why = "no slot of the process has been set to its implementation".to_owned();
    let mut left = MAX_READS;
    for object in &image.objects {
        let Ok(elf) = &object.elf else { continue };
        let own = object.mapped.inode == key.inode;
        let slots = match elf.slots(&names, own.then_some(key.resolver)) {
            Ok(slots) => slots,
            Err(error) => {
                why = error.to_string();
                continue;
            }
        };
        for bias in if slots.is_empty() { Vec::new() } else { object.biases() } {
            for slot in &slots {
                let address = bias.wrapping_add(slot.vaddr);
                if left == 0 || !is_data(object, address) {
                    continue;
                }
                left -= 1;
                match read(address) {
                    Err(error) => why = error,
                    Ok(value) if is_resolved(slot, value, bias) => {
                        let implementation = ifunc.implementation(slot, value);
                        found.extend(implementation.filter(|new| !found.contains(new)));
                    }
                    Ok(_) => {}
                }
            }
        }
    }
    if found.is_empty() { Err(why) } else { Ok(found) }
}

/// Whether the object has a whole word mapped at `address`.
fn is_data(object: &LoadedObject, address: u64) -> bool {
    object.mapped.mappings.iter().any(|mapping| {
        mapping.start <= address && address.checked_add(8).is_some_and(|end| end <= mapping.end)
    })
}

/// Whether the slot no longer holds what the file has there, as it is or moved with the object: the
/// way to the linker's code that would resolve it.
fn is_resolved(slot: &Slot, value: u64, bias: u64) -> bool {
    value != 0
        && slot
            .initial
            .is_none_or(|initial| value != initial && value != initial.wrapping_add(bias))
}

/// The IFUNC that is followed.
struct Ifunc<'a> {
    image: &'a Image,
    key: IfuncKey,
    names: &'a [Vec<u8>],
}

impl Ifunc<'_> {
    /// The function at address `value`, if the IFUNC can stand for it.
    fn implementation(&self, slot: &Slot, value: u64) -> Option<Implementation> {
        let (object, file_offset) = self.image.objects.iter().find_map(|object| {
            let mut mappings = object.mapped.mappings.iter();
            let mapping = mappings.find(|mapping| mapping.has_code(value))?;
            Some((object, mapping.file_offset.checked_add(value - mapping.start)?))
        })?;
        let elf = object.elf.as_ref().ok()?;
        let vaddr = elf.code_at(file_offset).ok()?;
        let inode = object.mapped.inode;
        let own = inode == self.key.inode;
        if own && vaddr == self.key.resolver {
            return None;
        }
        // Another object may define the same name and be asked first, and a program at a fixed address
        // may lead all others to an entry of its own linkage table.
        if !own && !slot.by_resolver && self.is_defined_by(elf) {
            return None;
        }
        let symbol = match elf.symbol_at(vaddr) {
            Some(SymbolHit { vaddr: start, kind: SymbolKind::Func, name, .. })
                if start == vaddr =>
            {
                name
            }
            // A stripped object has no names for its own functions.
            None if own && slot.initial.is_some() => format!("offset:{file_offset:#x}"),
            _ => return None,
        };
        Some(Implementation { inode, file_offset, symbol })
    }

    fn is_defined_by(&self, elf: &Elf) -> bool {
        self.names.iter().any(|name| {
            let name = String::from_utf8_lossy(name);
            elf.resolve(&name).iter().any(|hit| hit.global)
        })
    }
}

#[cfg(test)]
mod tests;
