//! Memory of the process that runs now.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;

/// Reads 1 to 8 bytes of the target's memory, zero-extended.
#[inline(always)]
pub(crate) fn read_user(address: u64, size: u32) -> Option<u64> {
    if size == 0 || size > 8 {
        return None;
    }
    let mut word = 0u64;
    // SAFETY: `word` has room for the at most eight bytes; the helper checks the user address.
    let result =
        unsafe { bpf_probe_read_user((&raw mut word).cast(), size, address as *const c_void) };
    if result == 0 { Some(word) } else { None }
}

/// The return address of a call that was entered with this stack pointer: its frame is not set up yet. 0 where
/// it cannot be read.
#[inline(always)]
pub(crate) fn return_address(rsp: u64) -> u64 {
    read_user(rsp, 8).unwrap_or(0)
}
