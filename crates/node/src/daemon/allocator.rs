//! The C library's allocator, which otherwise keeps what the daemon needs for a moment an hour, such as symbols of large
//! programs and reports of windows.

use nix::libc;

/// Larger blocks are mapped, and go back as soon as they are freed; more free memory at the heap's end does, too.
const LARGE_BLOCK_BYTES: libc::c_int = 256 << 10;

/// Arenas for all threads. Each keeps free memory of its own, and there would be eight per CPU: threads that read a heap
/// or a file come and go.
const MAX_ARENAS: libc::c_int = 2;

/// Keeps little. By default the allocator takes the size of the largest block that was freed, up to 32 MiB,
/// for usual, and keeps twice as much.
pub(super) fn keep_little() {
    let values = [
        (libc::M_ARENA_MAX, MAX_ARENAS),
        (libc::M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES),
        (libc::M_TRIM_THRESHOLD, LARGE_BLOCK_BYTES),
    ];
    for (parameter, value) in values {
        // SAFETY: this only sets a number in the allocator, under its own lock. Where it fails, nothing changes.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Gives free memory back to the kernel, wherever it lies.
pub(super) fn give_back() {
    // SAFETY: this only gives free memory back to the kernel, under the allocator's own locks.
    unsafe { libc::malloc_trim(0) };
}
