//! Atomic operations on map memory. `core::sync::atomic` has no read-modify-write on this target; the
//! intrinsics compile to BPF's atomic instructions (with fetch since Linux 5.12).

use core::intrinsics::{
    AtomicOrdering, atomic_and, atomic_cxchg, atomic_or, atomic_xadd, atomic_xchg, atomic_xsub,
};

use crate::global::global;

/// Adds and returns what was there before.
///
/// # Safety
/// `word` points to eight valid, aligned bytes of map memory. The same holds for all functions here.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::SeqCst }>(word, value) }
}

/// Subtracts (wrapping) and returns what was there before.
#[inline(always)]
pub(crate) unsafe fn sub(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xsub::<u64, u64, { AtomicOrdering::SeqCst }>(word, value) }
}

/// Sets bits and returns what was there before.
#[inline(always)]
pub(crate) unsafe fn or(word: *mut u64, bits: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_or::<u64, u64, { AtomicOrdering::SeqCst }>(word, bits) }
}

/// Keeps only `bits` and returns what was there before.
#[inline(always)]
pub(crate) unsafe fn and(word: *mut u64, bits: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_and::<u64, u64, { AtomicOrdering::SeqCst }>(word, bits) }
}

/// Replaces the word and returns what was there before.
#[inline(always)]
pub(crate) unsafe fn swap(word: *mut u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { atomic_xchg::<u64, { AtomicOrdering::SeqCst }>(word, value) }
}

/// Replaces a 32-bit word and returns what was there before.
#[inline(always)]
pub(crate) unsafe fn swap_32(word: *mut u32, value: u32) -> u32 {
    // SAFETY: the caller's promise, for four bytes.
    unsafe { atomic_xchg::<u32, { AtomicOrdering::SeqCst }>(word, value) }
}

/// Replaces `expected` by `value`; returns what was there, which is `expected` on success.
#[inline(always)]
pub(crate) unsafe fn compare_swap(word: *mut u64, expected: u64, value: u64) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        atomic_cxchg::<u64, { AtomicOrdering::SeqCst }, { AtomicOrdering::SeqCst }>(
            word, expected, value,
        )
        .0
    }
}

/// Reads the word at once.
#[inline(always)]
pub(crate) unsafe fn load(word: *const u64) -> u64 {
    // SAFETY: the caller's promise; an aligned 64-bit load is one instruction.
    unsafe { core::ptr::read_volatile(word) }
}

/// Writes the word at once.
#[inline(always)]
pub(crate) unsafe fn store(word: *mut u64, value: u64) {
    // SAFETY: the caller's promise; an aligned 64-bit store is one instruction.
    unsafe { core::ptr::write_volatile(word, value) }
}

/// Raises the word to `value` if it is lower: mostly it is not.
#[inline(always)]
pub(crate) unsafe fn raise(word: *mut u64, value: u64) {
    // SAFETY: the caller's promise.
    if unsafe { load(word) } < value {
        word_raise(word, value);
    }
}

global! {
    /// Raises the word to `value` if it is lower. Gives up after a few collisions with other CPUs, each of
    /// which has raised it too.
    fn word_raise(word: *mut u64, value: u64) -> () = raise_far;
}

#[inline(always)]
fn raise_far(word: *mut u64, value: u64) {
    if word.is_null() {
        return;
    }
    for _ in 0..8 {
        // SAFETY: the callers pass map memory.
        unsafe {
            let seen = load(word);
            if seen >= value || compare_swap(word, seen, value) == seen {
                break;
            }
        }
    }
}

/// Adds to a 32-bit word.
#[inline(always)]
pub(crate) unsafe fn add_32(word: *mut u32, value: u32) {
    // SAFETY: the caller's promise, for four bytes.
    unsafe { atomic_xadd::<u32, u32, { AtomicOrdering::SeqCst }>(word, value) };
}
