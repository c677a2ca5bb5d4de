//! drainprof's kernel side: see, count, send.
//!
//! The programs are generic: which function a uprobe sits on, and what its arguments mean, is data in
//! the `PROBES` map, found through the attach cookie. Nothing here reads a kernel structure: only
//! `pt_regs`, tracepoint arguments and the target's own memory.
//!
//! Uprobe programs are preemptible, so everything that two hits could touch at once is changed by one
//! atomic operation. Values of hash maps are recycled the moment they are deleted, so granules live in
//! an array of slots with a generation, and objects hold references to them.
#![cfg_attr(target_arch = "bpf", no_std, no_main)]
#![feature(core_intrinsics)]
#![allow(
    internal_features,
    reason = "BPF has no atomic read-modify-write in core::sync on this target"
)]
#![allow(
    missing_docs,
    reason = "the map and program items are documented where they stand; macros add more"
)]
#![allow(
    clippy::inline_always,
    reason = "the verifier follows a static function again on every path; what is shared is global instead"
)]
#![allow(
    clippy::needless_borrows_for_generic_args,
    reason = "keys and values passed by value are copied once more on a stack of 512 bytes"
)]
#![allow(
    unreachable_pub,
    reason = "programs and maps are exported by name, through the object file"
)]

mod atomic;
mod calls;
mod clock;
mod config;
mod diagnostics;
mod emit;
mod global;
mod granule;
mod growth;
mod histogram;
mod hit;
mod interpreter;
mod losses;
mod maps;
mod memory;
mod moved;
mod object;
mod objects;
mod paths;
mod probes;
mod realloc;
mod series;
mod sites;
mod totals;
mod walk;

/// A panic could only be a bug; the verifier refuses any program that can reach this endless loop.
#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

/// For linters and documentation only: the programs run in the kernel.
#[cfg(not(target_arch = "bpf"))]
fn main() {}
