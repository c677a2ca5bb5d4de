//! Where an argument of a function is.

/// The registers that arguments are passed in, by the numbers that x86 encodes: rdi rsi rdx rcx r8 r9.
pub const ARGUMENTS: [u8; 6] = [7, 6, 2, 1, 8, 9];
/// Names of the registers, in the order in which x86 encodes them.
const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Where an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the register with this number, in the order in which x86 encodes them.
    Register(u8),
    /// In memory, this many bytes from the stack pointer.
    Stack(i16),
}

impl std::fmt::Display for Location {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Register(number) => {
                out.write_str(REGISTERS.get(*number as usize).unwrap_or(&"?"))
            }
            Self::Stack(offset) if *offset < 0 => write!(out, "[rsp-{:#x}]", -i32::from(*offset)),
            Self::Stack(offset) => write!(out, "[rsp+{offset:#x}]"),
        }
    }
}
