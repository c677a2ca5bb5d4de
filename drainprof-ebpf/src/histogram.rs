//! Histograms of pin delays and lifetimes, filled by closes and late drains.

use drainprof_common::{
    hist::{self, Hist},
    loss::Loss,
    maps::HistKey,
};

use crate::{atomic, losses, maps};

const BPF_NOEXIST: u64 = 1;

/// Adds a value to a histogram; `of` is a [`hist::Of`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn histogram_add(series: u32, of: u32, place: u64, nanoseconds: u64) -> u32 {
    let key = HistKey { series, of, place };
    let Some(hist) = maps::HISTOGRAMS.get_ptr_mut(&key).or_else(|| make(&key)) else {
        losses::count(Loss::HistogramMapFull);
        return 0;
    };
    // The compiler must not see that the check below always holds: the verifier does not.
    let bucket = core::hint::black_box(hist::bucket(nanoseconds));
    // SAFETY: map memory; histograms are never removed while probes are attached.
    unsafe {
        atomic::add(&raw mut (*hist).count, 1);
        atomic::add(&raw mut (*hist).sum, nanoseconds);
        atomic::word_raise(&raw mut (*hist).max, nanoseconds);
        atomic::word_raise(&raw mut (*hist).not_min, !nanoseconds);
        if bucket < hist::BUCKETS {
            atomic::add_32((&raw mut (*hist).buckets).cast::<u32>().add(bucket), 1);
        }
    }
    0
}

#[inline(always)]
fn make(key: &HistKey) -> Option<*mut Hist> {
    let zero = maps::ZERO_HIST.get_ptr(0)?;
    // SAFETY: a live value of the array map, which nobody writes.
    let _ = unsafe { maps::HISTOGRAMS.insert(key, &*zero, BPF_NOEXIST) };
    maps::HISTOGRAMS.get_ptr_mut(key)
}
