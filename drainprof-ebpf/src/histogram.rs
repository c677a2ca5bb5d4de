//! Histograms of pin delays and lifetimes, filled by closes and late drains.

use drainprof_common::{
    hist,
    loss::Loss,
    maps::{HIST_WORDS, HistKey, HistSlot, cursor},
};

use crate::{atomic, config, global::global, losses, maps, series};

const BPF_NOEXIST: u64 = 1;

global! {
    /// [`add`] as a global function, for where it is rarely called.
    pub(crate) fn histogram_add(series: u32, of: u32, place: u64, nanoseconds: u64) -> () = add;
    /// The index of a histogram, made if it is new; `None` where there is no more room.
    fn histogram_get(series: u32, of: u32, place: u64) -> Option<u32> = find_or_make;
}

/// Adds a value to a histogram; `of` is a [`hist::Of`].
#[inline(always)]
pub(crate) fn add(series: u32, of: u32, place: u64, nanoseconds: u64) {
    let Some(slot) =
        remembered(series, of, place).or_else(|| slot(histogram_get(series, of, place)?))
    else {
        losses::count_here(Loss::HistogramMapFull, 1);
        return;
    };
    // The compiler must not see that the check below always holds: the verifier does not.
    let bucket = core::hint::black_box(hist::bucket(nanoseconds));
    // SAFETY: map memory; a slot that is ready stays its key's.
    unsafe {
        let hist = &raw mut (*slot).hist;
        atomic::add(&raw mut (*hist).count, 1);
        atomic::add(&raw mut (*hist).sum, nanoseconds);
        atomic::raise(&raw mut (*hist).max, nanoseconds);
        atomic::raise(&raw mut (*hist).not_min, !nanoseconds);
        if bucket < hist::BUCKETS {
            atomic::add_32((&raw mut (*hist).buckets).cast::<u32>().add(bucket), 1);
        }
    }
}

#[inline(always)]
fn slot(index: u32) -> Option<*mut HistSlot> {
    maps::HISTOGRAMS.get_ptr_mut(index)
}

/// Where `HIST_WORDS` may remember a histogram.
#[inline(always)]
fn memory(series: u32, of: u32, place: u64) -> Option<*mut u64> {
    let mixed = (place ^ (place >> 10)) as u32 ^ (series * 13 + of);
    maps::HIST_WORDS.get_ptr_mut(mixed & (HIST_WORDS as u32 - 1))
}

/// The histogram that was last looked up here, if it is this one.
#[inline(always)]
fn remembered(series: u32, of: u32, place: u64) -> Option<*mut HistSlot> {
    // SAFETY: map memory, one word.
    let index = (unsafe { atomic::load(memory(series, of, place)?) } as u32).wrapping_sub(1);
    let slot = slot(index)?;
    // SAFETY: map memory; a key is written once.
    let is_it = unsafe {
        (*slot).key.of == of && (*slot).key.series == series && (*slot).key.place == place
    };
    if is_it { Some(slot) } else { None }
}

#[inline(always)]
fn find_or_make(series: u32, of: u32, place: u64) -> Option<u32> {
    let key = HistKey { series, of, place };
    let index = find(&key).or_else(|| make(&key))?;
    if let Some(word) = memory(series, of, place) {
        // SAFETY: map memory, one word.
        unsafe { atomic::store(word, u64::from(index) + 1) };
    }
    Some(index)
}

#[inline(always)]
fn find(key: &HistKey) -> Option<u32> {
    // SAFETY: the value is one word, read at once; histograms are never removed.
    maps::HIST_INDEX.get_ptr(key).map(|index| unsafe { atomic::load(index) } as u32)
}

#[inline(always)]
fn make(key: &HistKey) -> Option<u32> {
    let index = u64::from(series::take_cursor(cursor::HIST, config::max_histograms())?);
    let inserted = maps::HIST_INDEX.insert(key, &index, BPF_NOEXIST);
    // From where it stands for the map already: the stack has no room for a second one.
    // SAFETY: a variable.
    let index = unsafe { (&raw const index).read_volatile() } as u32;
    if inserted.is_err() {
        // Another CPU made it first.
        series::give_back_cursor(cursor::HIST, index);
        return find(key);
    }
    if let Some(slot) = slot(index) {
        // SAFETY: map memory; this CPU alone made the slot.
        unsafe {
            (*slot).key.series = key.series;
            (*slot).key.place = key.place;
            core::ptr::write_volatile(&raw mut (*slot).key.of, key.of);
        }
    }
    Some(index)
}
