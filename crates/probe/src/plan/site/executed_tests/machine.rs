//! Executes code with known registers, and notes what they are afterwards.

use std::{ffi::c_void, ptr};

use iced_x86::{
    Code, Instruction, MemoryOperand, Register,
    code_asm::{
        AsmRegister64, CodeAssembler,
        registers::gpr64::{
            r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
        },
    },
};
use nix::libc;

/// Registers in the order in which x86 encodes them.
pub(super) const ALL: [AsmRegister64; 16] =
    [rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
const MAPPED: usize = 0x4_0000;
const INPUT: usize = 0x1000;
const OUTPUT: usize = 0x1100;
const SAVED: usize = 0x1200;
const STUB: usize = 0x1300;
/// Where the code goes, from the mapping's beginning.
pub(super) const CODE: usize = 0x2000;
/// Memory that code may read.
pub(super) const READABLE: usize = 0x3000;
/// Where the stack pointer points when the code is entered.
pub(super) const STACK: usize = 0x2_0000;

/// Memory that can be written and executed, with a stub that enters code with known registers and one that
/// notes them.
pub(super) struct Machine {
    base: *mut u8,
}

/// What the processor says.
pub(super) struct Seen {
    /// All registers, by number.
    pub(super) registers: [u64; 16],
}

impl Machine {
    pub(super) fn new() -> Self {
        // SAFETY: a new mapping, known here alone.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut::<c_void>(),
                MAPPED,
                libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        assert_ne!(base, libc::MAP_FAILED);
        let machine = Self { base: base.cast() };
        machine.write_stubs();
        machine
    }

    pub(super) fn address(&self, at: usize) -> u64 {
        self.base as u64 + at as u64
    }

    pub(super) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MAPPED);
        // SAFETY: within the mapping, which only this thread uses.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) };
    }

    pub(super) fn word(&self, address: u64) -> u64 {
        let at = (address - self.base as u64) as usize;
        assert!(at + 8 <= MAPPED);
        // SAFETY: as above; words of the stack need not be aligned.
        unsafe { self.base.add(at).cast::<u64>().read_unaligned() }
    }

    /// At 0: saves what the calling convention asks for, loads all registers, goes to the code. At
    /// `STUB`: notes all registers, restores, returns. Addresses within 2 GiB are reached relative to rip.
    fn write_stubs(&self) {
        // Through rip: no register is needed for the address.
        let at = |offset: usize| {
            MemoryOperand::with_base_displ(Register::RIP, self.address(offset).cast_signed())
        };
        let load = |register: AsmRegister64, offset: usize| {
            Instruction::with2(Code::Mov_r64_rm64, Register::from(register), at(offset)).unwrap()
        };
        let store = |offset: usize, register: AsmRegister64| {
            Instruction::with2(Code::Mov_rm64_r64, at(offset), Register::from(register)).unwrap()
        };
        let saved = [rbx, rbp, r12, r13, r14, r15];
        let mut enter = CodeAssembler::new(64).unwrap();
        for register in saved {
            enter.push(register).unwrap();
        }
        enter.add_instruction(store(SAVED, rsp)).unwrap();
        for (number, register) in ALL.into_iter().enumerate() {
            enter.add_instruction(load(register, INPUT + number * 8)).unwrap();
        }
        enter.jmp(self.address(CODE)).unwrap();
        self.write(0, &enter.assemble(self.address(0)).unwrap());
        let mut leave = CodeAssembler::new(64).unwrap();
        for (number, register) in ALL.into_iter().enumerate() {
            leave.add_instruction(store(OUTPUT + number * 8, register)).unwrap();
        }
        leave.add_instruction(load(rsp, SAVED)).unwrap();
        leave.cld().unwrap();
        for register in saved.into_iter().rev() {
            leave.pop(register).unwrap();
        }
        leave.ret().unwrap();
        self.write(STUB, &leave.assemble(self.address(STUB)).unwrap());
    }

    /// Executes `prefix` with `input` in the registers.
    pub(super) fn run(&self, prefix: &[u8], input: &[u64; 16]) -> Seen {
        self.write(CODE, prefix);
        let mut back = CodeAssembler::new(64).unwrap();
        back.jmp(self.address(STUB)).unwrap();
        let at = CODE + prefix.len();
        self.write(at, &back.assemble(self.address(at)).unwrap());
        self.write(INPUT, bytemuck::cast_slice(input));
        // SAFETY: the stub keeps the calling convention; the generated code reads and writes only its own
        // stack and the scratch area, both within the mapping.
        unsafe {
            let enter: extern "C" fn() = std::mem::transmute(self.base);
            enter();
        }
        let mut registers = [0; 16];
        for (number, register) in registers.iter_mut().enumerate() {
            *register = self.word(self.address(OUTPUT + number * 8));
        }
        Seen { registers }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: nothing refers to the mapping any more.
        unsafe { libc::munmap(self.base.cast(), MAPPED) };
    }
}
