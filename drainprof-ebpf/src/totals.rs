//! The counters of series: the one way to add to them.

use drainprof_common::maps::{Counter, Totals};

use crate::{atomic, config, losses, maps};

/// This CPU's counters of a series.
#[derive(Clone, Copy)]
pub(crate) struct TotalsRef(*mut Totals);

impl TotalsRef {
    /// Those of a series; `None` where there is none of this number.
    #[inline(always)]
    pub(crate) fn of(series: u32) -> Option<Self> {
        let slot = losses::counter_slot() * config::max_series() + series;
        maps::TOTALS.get_ptr_mut(slot).map(Self)
    }

    /// Adds to one of them (wrapping).
    #[inline(always)]
    pub(crate) fn add(self, counter: Counter, value: u64) {
        // SAFETY: map memory; a counter stands within the totals. The add is atomic against preemption.
        unsafe { atomic::add(self.0.cast::<u64>().add(counter.index()), value) };
    }
}

/// Adds to one counter of a series of which nothing else is counted.
#[inline(always)]
pub(crate) fn add(series: u32, counter: Counter, value: u64) {
    if let Some(totals) = TotalsRef::of(series) {
        totals.add(counter, value);
    }
}
