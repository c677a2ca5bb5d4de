//! The time.

use aya_ebpf::helpers::bpf_ktime_get_ns;

/// `CLOCK_MONOTONIC` nanoseconds.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helper takes no argument.
    unsafe { bpf_ktime_get_ns() }
}
