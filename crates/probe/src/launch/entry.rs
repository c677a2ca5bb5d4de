//! Where a fresh image begins, and the breakpoint that stops it there.
//!
//! The entry point is where the dynamic loader hands over: by then every start-up library is mapped and
//! relocated, and nothing of `main` has run. It is read from the auxiliary vector, so PIE, static and
//! static-PIE need no case of their own. Called by the tracer thread on tasks that stand still.

use std::{fs::File, io::Read as _};

use nix::{errno::Errno, libc::c_long, sys::ptrace, unistd::Pid};

use super::{TraceError, sys};

const AT_NULL: u64 = 0;
const AT_ENTRY: u64 = 9;
/// The kernel's own limit is 22 pairs and a few of the architecture's; this is far above.
const MAX_AUXV_BYTES: u64 = 4096;
/// `int3`.
const TRAP_BYTE: u8 = 0xcc;
/// The code segment of 64-bit user code (`__USER_CS`); 32-bit code runs with 0x23.
#[cfg(target_arch = "x86_64")]
const USER_CS_64: u64 = 0x33;
const SIGTRAP_BIT: u64 = 1 << (nix::libc::SIGTRAP - 1);

/// A breakpoint at the entry point of one image.
#[derive(Clone, Debug)]
pub(super) struct Breakpoint {
    address: u64,
    original: u8,
    /// False once the byte is back: a task may still have the trap ahead of it.
    planted: bool,
    /// Whether the image blocked SIGTRAP. The kernel unblocks it by force to deliver ours.
    blocked_trap: bool,
}

/// Finds the entry point of the image that `pid` just executed, and plants a breakpoint there.
pub(super) fn plant(pid: Pid) -> Result<Breakpoint, TraceError> {
    only_64_bit(pid)?;
    let address = entry_point(&read_auxv(pid)?).ok_or(TraceError::NoEntryPoint)?;
    let failed = |source: Errno| TraceError::Plant { address, source };
    let mut breakpoint = Breakpoint {
        address,
        original: read_byte(pid, address).map_err(failed)?,
        planted: true,
        blocked_trap: sys::signal_mask(pid).is_ok_and(|mask| mask & SIGTRAP_BIT != 0),
    };
    if breakpoint.original == TRAP_BYTE {
        // The program begins with a trap of its own; there is nothing to put back.
        breakpoint.planted = false;
    }
    write_byte(pid, address, TRAP_BYTE).map_err(failed)?;
    Ok(breakpoint)
}

impl Breakpoint {
    /// Puts the program's own byte back through the stopped task `tid` of the process.
    pub(super) fn remove(&mut self, tid: Pid) -> nix::Result<()> {
        if std::mem::take(&mut self.planted) && read_byte(tid, self.address)? == TRAP_BYTE {
            write_byte(tid, self.address, self.original)?;
        }
        Ok(())
    }

    /// Whether `tid` has executed the breakpoint, so that its SIGTRAP is under way or here.
    pub(super) fn is_hit_by(&self, tid: Pid) -> bool {
        instruction_pointer(tid).is_ok_and(|at| at == self.address.wrapping_add(1))
    }

    /// Takes `tid`, which hit the breakpoint, back to the first instruction as if nothing had happened.
    pub(super) fn rewind(&mut self, tid: Pid) -> nix::Result<()> {
        self.remove(tid)?;
        set_instruction_pointer(tid, self.address)?;
        if self.blocked_trap {
            sys::set_signal_mask(tid, sys::signal_mask(tid)? | SIGTRAP_BIT)?;
        }
        Ok(())
    }
}

fn read_auxv(pid: Pid) -> Result<Vec<u8>, TraceError> {
    let mut bytes = Vec::new();
    File::open(format!("/proc/{pid}/auxv"))
        .and_then(|file| file.take(MAX_AUXV_BYTES).read_to_end(&mut bytes))
        .map_err(TraceError::Auxv)?;
    Ok(bytes)
}

/// The entry point in an auxiliary vector of a 64-bit process.
fn entry_point(auxv: &[u8]) -> Option<u64> {
    auxv.as_chunks::<16>()
        .0
        .iter()
        .map(|pair| {
            let word = u128::from_le_bytes(*pair);
            (word as u64, (word >> 64) as u64)
        })
        .take_while(|&(kind, _)| kind != AT_NULL)
        .find_map(|(kind, value)| (kind == AT_ENTRY && value != 0).then_some(value))
}

/// Memory is read and written by whole aligned words, so that the entry may lie at the end of a page.
fn word_of(address: u64) -> (ptrace::AddressType, usize) {
    ((address & !7) as ptrace::AddressType, (address & 7) as usize)
}

fn read_byte(tid: Pid, address: u64) -> nix::Result<u8> {
    let (word, at) = word_of(address);
    Ok(ptrace::read(tid, word)?.to_le_bytes()[at])
}

fn write_byte(tid: Pid, address: u64, byte: u8) -> nix::Result<()> {
    let (word, at) = word_of(address);
    let mut bytes = ptrace::read(tid, word)?.to_le_bytes();
    bytes[at] = byte;
    ptrace::write(tid, word, c_long::from_le_bytes(bytes))
}

#[cfg(target_arch = "x86_64")]
fn only_64_bit(pid: Pid) -> Result<(), TraceError> {
    match ptrace::getregs(pid) {
        Ok(registers) if registers.cs == USER_CS_64 => Ok(()),
        Ok(_) => Err(TraceError::NotX86_64),
        Err(source) => Err(TraceError::Registers(source)),
    }
}

#[cfg(target_arch = "x86_64")]
fn instruction_pointer(tid: Pid) -> nix::Result<u64> {
    ptrace::getregs(tid).map(|registers| registers.rip)
}

#[cfg(target_arch = "x86_64")]
fn set_instruction_pointer(tid: Pid, address: u64) -> nix::Result<()> {
    let mut registers = ptrace::getregs(tid)?;
    registers.rip = address;
    ptrace::setregs(tid, registers)
}

#[cfg(not(target_arch = "x86_64"))]
fn only_64_bit(_: Pid) -> Result<(), TraceError> {
    Err(TraceError::NotX86_64)
}

#[cfg(not(target_arch = "x86_64"))]
fn instruction_pointer(_: Pid) -> nix::Result<u64> {
    Err(Errno::ENOSYS)
}

#[cfg(not(target_arch = "x86_64"))]
fn set_instruction_pointer(_: Pid, _: u64) -> nix::Result<()> {
    Err(Errno::ENOSYS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn auxv(pairs: &[(u64, u64)]) -> Vec<u8> {
        pairs.iter().flat_map(|&(k, v)| [k.to_le_bytes(), v.to_le_bytes()]).flatten().collect()
    }

    /// The entry point is found among the other entries.
    #[test]
    fn entry_point_is_found() {
        let bytes = auxv(&[(33, 0x7fff_0000), (9, 0x5555_0000_1060), (0, 0)]);
        assert_eq!(entry_point(&bytes), Some(0x5555_0000_1060));
    }

    /// A vector that ends before the entry, lacks it, or is a 32-bit one gives none, at any length.
    #[test]
    fn odd_vectors_give_no_entry_point() {
        assert_eq!(entry_point(&auxv(&[(6, 4096), (0, 0), (9, 0x1000)])), None);
        assert_eq!(entry_point(&auxv(&[(9, 0)])), None);
        let narrow: Vec<u8> = [32_u32, 0xf7f0_0000, 9, 0x0804_9000, 0, 0]
            .iter()
            .flat_map(|w| w.to_le_bytes())
            .collect();
        assert_eq!(entry_point(&narrow), None);
        let whole = auxv(&[(3, 1), (9, 0x1000)]);
        for cut in 0..whole.len() {
            assert_eq!(entry_point(&whole[..cut]), None, "cut at {cut}");
        }
    }

    /// The byte that is patched lies in the word that is read, for every alignment.
    #[test]
    fn words_are_aligned() {
        for address in 0x1000..0x1010_u64 {
            let (word, at) = word_of(address);
            assert_eq!(word as u64 + at as u64, address);
            assert_eq!(word as u64 % 8, 0);
        }
    }
}
