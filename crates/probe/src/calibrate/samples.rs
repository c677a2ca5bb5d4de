//! One tiny function per kind of instruction, to be probed in this very process.
//!
//! Each begins with a representative of its kind and returns. Nothing else calls them, and a probe on them
//! is met by no other process.

use crate::plan::cost::InstructionKind;

/// A function whose first instruction stands for a kind.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    /// The kind.
    pub(super) kind: InstructionKind,
    /// The instruction, for errors.
    pub(super) instruction: &'static str,
    /// The function.
    pub(super) function: extern "C" fn(),
}

/// A function that keeps words below its stack pointer while a nop of ten bytes is executed.
#[derive(Clone, Copy)]
pub(super) struct RedZone {
    /// The function; it returns 0 if the words are what they were.
    pub(super) function: extern "C" fn(u64) -> u64,
    /// Bytes from its first instruction to the nop.
    pub(super) nop: u64,
}

/// Where [`RedZone`] can be had; `None` where there is none for this architecture.
pub(super) const fn red_zone() -> Option<RedZone> {
    arch::RED_ZONE
}

/// All samples; a kind with several costs what the most expensive of them does. Empty where there are none for
/// this architecture.
pub(super) fn samples() -> &'static [Sample] {
    &arch::SAMPLES
}

#[cfg(target_arch = "x86_64")]
mod arch {
    use std::arch::naked_asm;

    use super::{RedZone, Sample};
    use crate::plan::cost::InstructionKind as Kind;

    /// Defines a function of these instructions and nothing else.
    macro_rules! function {
        ($name:ident: $($line:literal),+) => {
            #[unsafe(naked)]
            extern "C" fn $name() {
                naked_asm!($($line),+)
            }
        };
    }

    // Only registers that a call may change are changed, and the stack is as it was at the `ret`.
    function!(nop5: ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00", "ret");
    function!(nop10: ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0", "ret");
    function!(nop: "nop", "ret");
    // Kernels treat those of three, four and eight bytes alike.
    function!(long_nop: ".byte 0x0f, 0x1f, 0x40, 0x00", "ret");
    function!(push: "push rbp", "pop rbp", "ret");
    // A short jump to the next instruction; `jcc` and `call` take the same path through the kernel.
    function!(branch: ".byte 0xeb, 0x00", "ret");
    function!(endbr: "endbr64", "ret");
    function!(mov: "mov rax, rdi", "ret");
    function!(memory: "mov rax, qword ptr [rsp]", "ret");
    // Making room on the stack is the most frequent by far, and so the first that a kernel would emulate;
    // an addition stands for the rest.
    function!(sub_rsp: "sub rsp, 8", "add rsp, 8", "ret");
    function!(add: "add rax, 1", "ret");
    function!(compare: "test rdi, rdi", "ret");
    function!(lea: "lea rax, [rdi + 8]", "ret");
    function!(ret: "ret");
    function!(other: "cqo", "ret");

    macro_rules! samples {
        ($($kind:ident $text:literal $function:ident),+ $(,)?) => {
            [$(Sample { kind: Kind::$kind, instruction: $text, function: $function }),+]
        };
    }

    /// A call that took the stack for its own would put its return address and three registers into these words.
    #[unsafe(naked)]
    extern "C" fn keeps_words(word: u64) -> u64 {
        naked_asm!(
            "mov qword ptr [rsp - 8], rdi",
            "mov qword ptr [rsp - 16], rdi",
            "mov qword ptr [rsp - 24], rdi",
            "mov qword ptr [rsp - 32], rdi",
            ".byte 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0",
            "xor eax, eax",
            ".irp at, 8, 16, 24, 32",
            "mov rcx, qword ptr [rsp - \\at]",
            "xor rcx, rdi",
            "or rax, rcx",
            ".endr",
            "ret",
        )
    }

    /// Each of the four stores has five bytes.
    pub(super) const RED_ZONE: Option<RedZone> =
        Some(RedZone { function: keeps_words, nop: 4 * 5 });

    pub(super) static SAMPLES: [Sample; 15] = samples![
        Nop5 "nop5" nop5,
        Nop10 "nop10" nop10,
        Nop "nop" nop,
        LongNop "nop dword ptr [rax]" long_nop,
        Push "push rbp" push,
        Branch "jmp" branch,
        Endbr "endbr64" endbr,
        Move "mov rax, rdi" mov,
        Memory "mov rax, [rsp]" memory,
        Arithmetic "sub rsp, 8" sub_rsp,
        Arithmetic "add rax, 1" add,
        Compare "test rdi, rdi" compare,
        Lea "lea rax, [rdi + 8]" lea,
        Return "ret" ret,
        Other "cqo" other,
    ];
}

#[cfg(not(target_arch = "x86_64"))]
mod arch {
    pub(super) const RED_ZONE: Option<super::RedZone> = None;
    pub(super) static SAMPLES: [super::Sample; 0] = [];
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Every kind has a sample, every sample a function of its own, and calling it comes back.
    #[test]
    fn every_kind_has_a_sample() {
        let kinds: BTreeSet<_> = samples().iter().map(|sample| sample.kind).collect();
        assert_eq!(kinds, InstructionKind::ALL.into_iter().collect());
        let places: BTreeSet<_> = samples().iter().map(|sample| sample.function as usize).collect();
        assert_eq!(places.len(), samples().len());
        for sample in samples() {
            (sample.function)();
        }
    }

    /// The function with a red zone finds nothing wrong without a probe, and its nop is where it is said to be, in one page.
    #[test]
    fn words_below_the_stack_pointer() {
        let zone = red_zone().unwrap();
        for word in [0, 1, u64::MAX] {
            assert_eq!((zone.function)(word), 0);
        }
        let nop = zone.function as usize as u64 + zone.nop;
        assert!(nop % 4096 <= 4096 - 10, "{nop:#x} is too close to the end of its page");
        let mut bytes = [0; 10];
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, nop).unwrap();
        assert_eq!(bytes, [0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]);
    }
}
