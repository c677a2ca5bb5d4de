//! What the kernel says about one eBPF program that it took.
//!
//! A plain value: `bpf` fills it, `doctor` shows it, `cargo xtask build-ebpf` keeps it beside the object.

use serde::Serialize;

/// One program, as this kernel has it. What a kernel does not report is `None`, never 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProgramStatistics {
    /// Its name in the object file.
    pub name: String,
    /// Instructions that the verifier went through, each as often as it came by: what loading costs, and
    /// what must stay below the verifier's limit of a million. Reported since Linux 5.16.
    pub verified_instructions: Option<u32>,
    /// Bytes of machine code that it became, with the functions that it calls. Not reported where the
    /// kernel's BPF compiler is switched off.
    pub jited_bytes: Option<u32>,
}
