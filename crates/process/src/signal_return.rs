//! The return from a signal handler, known by its machine code in libraries that do not describe it.
//!
//! Used by `unwind` to find the interrupted frame, and by `symbolize` to name the code.

/// `mov $15, %rax; syscall` and `mov $15, %eax; syscall`.
const RETURNS: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 5], &[0xb8, 15, 0, 0, 0, 0x0f, 5]];

/// Length of the longest of them, in bytes.
pub(crate) const LONGEST_RETURN: usize = 9;

/// Whether `code` begins with the return from a signal handler. The kernel, not a call, puts this address on the
/// stack: it is the first byte of the code, not one past a call.
pub(crate) fn returns_from_signal(code: &[u8]) -> bool {
    RETURNS.iter().any(|returns| code.starts_with(returns))
}
