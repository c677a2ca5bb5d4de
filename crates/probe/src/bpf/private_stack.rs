//! Whether programs run on the stack of their thread, as programs of uprobes must, and not on one that belongs to the CPU.
//!
//! Since Linux 6.13 the kernel gives the functions of programs of this type a *private stack*, one per program and CPU. It
//! guards kprobes and tracepoints against two threads in one program on one CPU, but not uprobes, which can be preempted:
//! there the threads overwrite each other's frames, and the kernel crashes. Programs with a tail call get no private stack
//! (`drainprof-ebpf/src/probes/program.rs`). That this is so is asked of the kernel, in two ways, and never inferred from
//! its version:
//!
//! - By what it accepts: two functions with more stack together than a thread's stack may hold for them are refused,
//!   unless they have private stacks. Tried once, without a tail call and with one.
//! - By the machine code of each program that was loaded, where that can be read.
//!
//! Called wherever a program is loaded that uprobes will run.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    sync::OnceLock,
};

use aya_obj::copy_instructions;

use super::{BpfError, syscall};

/// What the kernel does with the stacks of programs that uprobes run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrivateStacks {
    /// It has no private stacks, or none that it would give to such programs.
    Absent,
    /// It has them, and a program with a tail call gets none.
    Avoided {
        /// Whether its machine code shows which programs have one.
        shown: bool,
    },
    /// It has them, and gives them to programs with a tail call as well.
    Forced,
}

impl PrivateStacks {
    /// Asks the kernel, once: up to four small programs are loaded and thrown away.
    pub fn of_kernel() -> Result<Self, BpfError> {
        static KNOWN: OnceLock<PrivateStacks> = OnceLock::new();
        if let Some(known) = KNOWN.get() {
            return Ok(*known);
        }
        let asked = Self::ask().map_err(|source| {
            BpfError::load("programs that show how much stack they may use".to_owned(), 0, source)
        })?;
        Ok(*KNOWN.get_or_init(|| asked))
    }

    fn ask() -> io::Result<Self> {
        // Else whatever makes the kernel refuse would pass for an answer.
        Trial { large: false, tail_call: false }.load()?;
        let Some(program) = (Trial { large: true, tail_call: false }).unless_refused()? else {
            return Ok(Self::Absent);
        };
        Trial { large: false, tail_call: true }.load()?;
        if (Trial { large: true, tail_call: true }).unless_refused()?.is_some() {
            return Ok(Self::Forced);
        }
        let code = syscall::machine_code(program.as_fd())?;
        Ok(Self::Avoided { shown: code.is_some_and(|code| is_private(&code)) })
    }
}

/// Makes sure that a program that was just loaded runs on the stack of its thread.
pub(super) fn exclude(name: &str, program: BorrowedFd<'_>) -> Result<(), BpfError> {
    let excluded = match PrivateStacks::of_kernel()? {
        PrivateStacks::Absent => return Ok(()),
        PrivateStacks::Forced => false,
        PrivateStacks::Avoided { shown } => is_excluded(program, shown).map_err(|source| {
            BpfError::load(format!("program {name}, and show its code"), 0, source)
        })?,
    };
    if excluded { Ok(()) } else { Err(BpfError::PrivateStack { program: name.to_owned() }) }
}

/// The same on a kernel that lets programs with a tail call alone; whether machine code shows private stacks is known.
fn is_excluded(program: BorrowedFd<'_>, shown: bool) -> io::Result<bool> {
    if shown && let Some(code) = syscall::machine_code(program)? {
        return Ok(!is_private(&code));
    }
    // Where it shows neither (`net.core.bpf_jit_harden`), the object is what is known: each of its programs has the call.
    let instructions = syscall::instructions(program)?;
    Ok(instructions.is_none_or(|instructions| has_tail_call(&instructions)))
}

/// Whether machine code (x86-64) has a function that begins by taking the address of a private stack:
///
/// ```text
/// 49 b9 ........ ........   mov r9, address for the first CPU, in one of three encodings
/// 65 4c 03 0c 25 ........   add r9, gs:[offset of this CPU's]
/// ```
fn is_private(code: &[u8]) -> bool {
    let adds = |at: usize| code[at..].starts_with(&[0x65, 0x4c, 0x03, 0x0c, 0x25]);
    let moves = |at: usize, length: usize, begin: &[u8]| {
        at.checked_sub(length).is_some_and(|at| code[at..].starts_with(begin))
    };
    (0..code.len()).filter(|at| adds(*at)).any(|at| {
        moves(at, 10, &[0x49, 0xb9])
            || moves(at, 7, &[0x49, 0xc7, 0xc1])
            || moves(at, 6, &[0x41, 0xb9])
    })
}

/// Whether instructions, as the kernel shows them, have a tail call.
fn has_tail_call(instructions: &[u8]) -> bool {
    instructions.chunks_exact(size_of_val(&TAIL_CALL)).any(|one| one == TAIL_CALL)
}

/// Goes on in another program: the call of helper 12.
const TAIL_CALL: [u8; 8] = [0x85, 0, 0, 0, 12, 0, 0, 0];

/// A program of two functions, one of which calls the other.
#[derive(Clone, Copy)]
struct Trial {
    /// Whether they need more stack together than the 512 bytes that they may have.
    large: bool,
    /// Whether it has a tail call.
    tail_call: bool,
}

impl Trial {
    /// Loads it; `None` if the verifier refuses it. No memory, for example, is no such answer.
    fn unless_refused(self) -> io::Result<Option<OwnedFd>> {
        match self.load() {
            Err(error) if error.raw_os_error() == Some(nix::libc::EACCES) => Ok(None),
            loaded => loaded.map(Some),
        }
    }

    fn load(self) -> io::Result<OwnedFd> {
        let none = syscall::no_program()?;
        let instructions = copy_instructions(&self.code(&none)).map_err(io::Error::other)?;
        syscall::load(syscall::PLAIN, c"GPL", &instructions, None)
    }

    fn code(self, none: &OwnedFd) -> Vec<u8> {
        // Each has enough for a private stack (64 bytes).
        let depth: i16 = if self.large { -320 } else { -64 };
        let [low, high] = depth.to_le_bytes();
        // *(u64 *)(r10 + depth) = 0; r0 = 0; exit
        let frame = [0x7a, 0x0a, low, high, 0, 0, 0, 0];
        let end = [[0xb7, 0, 0, 0, 0, 0, 0, 0], [0x95, 0, 0, 0, 0, 0, 0, 0]];
        let mut code = Vec::new();
        if self.tail_call {
            let [a, b, c, d] = none.as_raw_fd().to_le_bytes();
            code.extend([
                // r2 = the array, in two parts; r3 = 0; tail call
                [0x18, 0x12, 0, 0, a, b, c, d],
                [0; 8],
                [0xb7, 0x03, 0, 0, 0, 0, 0, 0],
                TAIL_CALL,
            ]);
        }
        code.push(frame);
        // Call the function behind the next two instructions.
        code.push([0x85, 0x10, 0, 0, 2, 0, 0, 0]);
        code.extend(end);
        code.push(frame);
        code.extend(end);
        code.concat()
    }
}

#[cfg(test)]
mod tests {
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _, SymbolKind};

    use super::{super::load::OBJECT, *};

    /// The beginning of a function with a private stack, as Linux 6.18 and 7.2 make it, and of one without.
    #[test]
    fn machine_code() {
        let begin = [0x0f, 0x1f, 0x44, 0, 0, 0x55, 0x48, 0x89, 0xe5, 0x53, 0x41, 0x55];
        let add: &[u8] = &[0x65, 0x4c, 0x03, 0x0c, 0x25, 4, 3, 2, 1];
        let code = |parts: &[&[u8]]| [&begin[..], &parts.concat()].concat();
        let moves: [&[u8]; 3] = [
            &[0x49, 0xb9, 8, 7, 6, 5, 4, 3, 2, 1],
            &[0x49, 0xc7, 0xc1, 0, 6, 0x80, 0x83],
            &[0x41, 0xb9, 0, 6, 0x80, 3],
        ];
        for number in moves {
            assert!(is_private(&code(&[number, add])), "{number:x?}");
            assert!(!is_private(&code(&[number, &[0x4d, 0x01, 0xc1]])), "any number in r9");
            assert!(!is_private(&code(&[number, &[0x90], add])), "not one behind the other");
        }
        assert!(!is_private(&code(&[])));
        assert!(!is_private(add), "no number before it");
    }

    /// A call of a helper of another number, or of a function, is none.
    #[test]
    fn instructions() {
        let end = [0x95, 0, 0, 0, 0, 0, 0, 0];
        assert!(has_tail_call(&[TAIL_CALL, end].concat()));
        let (helper, function) = ([0x85, 0, 0, 0, 14, 0, 0, 0], [0x85, 0x10, 0, 0, 12, 0, 0, 0]);
        assert!(!has_tail_call(&[helper, function, end].concat()));
    }

    /// Every program for uprobes in the object has one.
    #[test]
    fn all_programs_have_a_tail_call() {
        let file = object::File::parse(OBJECT).unwrap();
        let mut seen = 0;
        for symbol in file.symbols().filter(|symbol| symbol.kind() == SymbolKind::Text) {
            let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
            if ["uprobe", "uretprobe"].iter().any(|kind| section.name().unwrap().starts_with(kind))
            {
                let code = section.data_range(symbol.address(), symbol.size()).unwrap().unwrap();
                assert!(has_tail_call(code), "{}", symbol.name().unwrap());
                seen += 1;
            }
        }
        assert!(seen > 20, "{seen}");
    }
}
