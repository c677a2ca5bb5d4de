//! Reading what the kernel side has counted.

use std::time::Duration;

use drainprof_common::{
    hist::{Hist, Of},
    loss::{LOSS_COUNT, LossCounts},
    maps::{HistSlot, ProbeCounts, SeriesKey, SeriesState, Slot, Totals, cursor},
    state,
};
use nix::time::{ClockId, clock_gettime};

use super::Session;

/// `CLOCK_MONOTONIC` nanoseconds, the clock of the kernel side.
pub(super) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| Duration::from(time).as_nanos().try_into().unwrap_or(u64::MAX))
}

/// One series with its counters.
#[derive(Clone, Debug)]
pub struct SeriesRecord {
    /// Its index.
    pub series: u32,
    /// What is known of it.
    pub state: SeriesState,
    /// Its counters, summed over CPUs.
    pub totals: Totals,
}

/// One granule that is open, or closed with live objects.
#[derive(Clone, Debug)]
pub struct GranuleRecord {
    /// The slot as it was read.
    pub slot: Slot,
}

/// Counters that say that something ended; they are read before those that say that it began, so that
/// a reading taken while probes fire never shows more ends than beginnings.
macro_rules! ends {
    ($to:ident, $from:ident) => {
        ends!(@ $to, $from, drainable, pinned, unknown, closed_plain, migrated, ended_with_parent, reopened, freed, freed_in_bulk,
            freed_bytes, replaced, late_drained, closed_bytes)
    };
    (@ $to:ident, $from:ident, $($field:ident),*) => {
        $($to.$field = $from.$field;)*
    };
}

impl Session {
    /// All series.
    #[must_use]
    pub fn read_series(&self) -> Vec<SeriesRecord> {
        (0..self.filled(cursor::SERIES, self.series_state.len()))
            .filter_map(|series| {
                let ends = self.sum_totals(series);
                let state = self.series_state.get(series);
                let mut totals = self.sum_totals(series);
                ends!(totals, ends);
                (state.created_ns != 0).then_some(SeriesRecord {
                    series: series as u32,
                    state,
                    totals,
                })
            })
            .collect()
    }

    /// Whose series it is.
    #[must_use]
    pub fn series_key(&self, series: u32) -> Option<SeriesKey> {
        self.series_state(series).map(|state| state.key)
    }

    /// What is known of a series; `None` where there is none of this number.
    #[must_use]
    pub fn series_state(&self, series: u32) -> Option<SeriesState> {
        let state = self.series_state.get(series as usize);
        (state.created_ns != 0).then_some(state)
    }

    fn sum_totals(&self, series: usize) -> Totals {
        let mut sum = Totals::default();
        for cpu in 0..self.cpus as usize {
            let one = self.totals.get(cpu * self.series_state.len() + series);
            let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut sum));
            for (sum, word) in words.iter_mut().zip(bytemuck::cast_slice::<_, u64>(&[one])) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sum
    }

    /// How many entries of an array a cursor has handed out.
    pub(super) fn filled(&self, which: u32, limit: usize) -> usize {
        usize::try_from(self.cursors.get(which as usize)).unwrap_or(usize::MAX).min(limit)
    }

    /// The granules that are open, or closed with live objects.
    #[must_use]
    pub fn read_granules(&self) -> Vec<GranuleRecord> {
        (0..self.filled(cursor::SLOT, self.slots.len()))
            .map(|index| self.slots.get(index))
            .filter(|slot| {
                slot.state & state::USED != 0
                    && (slot.state & state::CLOSED == 0
                        || (state::live(slot.state) != 0
                            && slot.state & (state::BEFORE | state::TAINTED | state::STRAGGLER)
                                == 0))
            })
            .map(|slot| GranuleRecord { slot })
            .collect()
    }

    /// All histograms: what of, series, place. Lifetimes of one place may come in two parts.
    #[must_use]
    pub fn read_histograms(&self) -> Vec<(Of, u32, u64, Hist)> {
        let nested = self.nested_lifetimes.iter();
        let nested = nested.map(|((series, place), hist)| (Of::Lifetime, *series, *place, *hist));
        (0..self.filled(cursor::HIST, self.histograms.len()))
            .filter_map(|index| {
                let HistSlot { key, hist } = self.histograms.get(index);
                let of = [Of::PinDelay, Of::Lifetime, Of::SiteDelay]
                    .into_iter()
                    .find(|of| *of as u32 == key.of)?;
                Some((of, key.series, key.place, hist))
            })
            .chain(nested)
            .collect()
    }

    /// The counters of one spec, summed over CPUs.
    #[must_use]
    pub fn read_probe(&self, spec: u32) -> ProbeCounts {
        let mut sum = ProbeCounts::default();
        for cpu in 0..self.cpus {
            let one = self.probe_counts.get((cpu * self.sizes.probes + spec) as usize);
            sum.entries += one.entries;
            sum.returns += one.returns;
            sum.rejected += one.rejected;
            sum.faults += one.faults;
        }
        sum
    }

    /// All losses, the kernel side's and our own.
    #[must_use]
    pub fn read_losses(&self) -> LossCounts {
        let mut sum = *self.own_losses();
        for cpu in 0..self.cpus as usize {
            let one = self.losses.get(cpu);
            for index in 0..LOSS_COUNT {
                sum[index] += one[index];
            }
        }
        sum
    }
}

impl Session {
    /// The share of the fullest of those tables whose entries are never given back, from 0 to 1: targets are only
    /// numbers, but allocator instances, histograms and specs of probes have a place each.
    #[must_use]
    pub fn wear(&self) -> f64 {
        let share = |taken: u64, of: u32| taken as f64 / f64::from(of.max(1));
        let level = |which: u32| self.cursors.get(which as usize);
        let shares = [
            share(level(cursor::SERIES), self.sizes.instances),
            share(level(cursor::HIST), self.sizes.histograms()),
            share(u64::from(self.specs), self.sizes.probes),
        ];
        shares.into_iter().fold(0.0, f64::max).min(1.0)
    }
}
