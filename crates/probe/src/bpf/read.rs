//! Reading what the kernel side has counted.

use std::{mem::offset_of, sync::atomic::Ordering, time::Duration};

use aya::Ebpf;
use drainprof_common::{
    counter,
    hist::{Hist, Of},
    loss::{LOSS_COUNT, LOSS_SLOTS, Loss, LossCounts},
    maps::{Counter, HistKey, HistSlot, ProbeCounts, SeriesKey, SeriesState, Slot, Totals, cursor},
};
use nix::time::{ClockId, clock_gettime};

use super::{
    BpfError, Sizes,
    load::mapped,
    memory::{Cursors, Mapped},
    names,
};

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
    /// Its counters, summed over slots.
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

/// What the kernel side counts, and the losses that we have found ourselves.
pub(super) struct Counters {
    slots: u32,
    /// Specs per slot.
    probes: u32,
    totals: Mapped<Totals>,
    series_state: Mapped<SeriesState>,
    probe_counts: Mapped<ProbeCounts>,
    histograms: Mapped<HistSlot>,
    losses: Mapped<[u64; LOSS_SLOTS]>,
    own_losses: LossCounts,
    cursors: Cursors,
    /// Of each series, whether it is not read any more. Its entry is never used again.
    forgotten: Vec<bool>,
}

impl Counters {
    pub(super) fn take(
        ebpf: &Ebpf,
        sizes: &Sizes,
        slots: u32,
        cursors: &Cursors,
    ) -> Result<Self, BpfError> {
        let (series, n) = (sizes.instances as usize, slots as usize);
        Ok(Self {
            slots,
            probes: sizes.probes,
            totals: mapped(ebpf, names::TOTALS, series * n)?,
            series_state: mapped(ebpf, names::SERIES_STATE, series)?,
            probe_counts: mapped(ebpf, names::PROBE_COUNTS, sizes.probes as usize * n)?,
            histograms: mapped(ebpf, names::HISTOGRAMS, sizes.histograms() as usize)?,
            losses: mapped(ebpf, names::LOSSES, n)?,
            own_losses: [0; LOSS_COUNT],
            cursors: cursors.clone(),
            forgotten: vec![false; series],
        })
    }

    /// Counts a loss of our own.
    pub(super) fn count_loss(&mut self, loss: Loss, number: u64) {
        self.own_losses[loss as usize] += number;
    }

    /// Counts what we have ended ourselves.
    pub(super) fn add_ended(&self, series: u32, objects: u64, bytes: u64) {
        // One CPU's counters: the kernel side adds to them atomically, too.
        let add = |counter: Counter, count: u64| {
            if let Some(word) = self.totals.word(series as usize, counter.index()) {
                word.fetch_add(count, Ordering::SeqCst);
            }
        };
        add(counter!(freed_in_bulk), objects);
        add(counter!(freed_bytes), bytes);
        add(counter!(ended_with_parent), 1);
        let open = offset_of!(SeriesState, open_now) / 8;
        if let Some(word) = self.series_state.word(series as usize, open) {
            word.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Reads the series of these keys no more.
    pub(super) fn forget_series(&mut self, is_over: impl Fn(SeriesKey) -> bool) {
        for series in 0..self.cursors.filled(cursor::SERIES, self.series_state.len()) {
            let series = series as u32;
            if !self.is_forgotten(series)
                && self.series_state(series).is_some_and(|state| is_over(state.key))
            {
                self.forgotten[series as usize] = true;
            }
        }
    }

    /// Whether a series is not read any more.
    pub(super) fn is_forgotten(&self, series: u32) -> bool {
        self.forgotten.get(series as usize).is_some_and(|forgotten| *forgotten)
    }

    fn kept_series(&self) -> impl Iterator<Item = usize> {
        (0..self.cursors.filled(cursor::SERIES, self.series_state.len()))
            .filter(|series| !self.is_forgotten(*series as u32))
    }

    fn kept_histograms(&self) -> impl Iterator<Item = usize> {
        (0..self.cursors.filled(cursor::HIST, self.histograms.len())).filter(|index| {
            let HistKey { series, .. } = self.histograms.part(*index, 0);
            !self.is_forgotten(series)
        })
    }

    /// How many series are not forgotten, and how many histograms they have.
    pub(super) fn in_use(&self) -> (usize, usize) {
        (self.kept_series().count(), self.kept_histograms().count())
    }

    /// All series but those that are forgotten.
    pub(super) fn series(&self) -> Vec<SeriesRecord> {
        self.kept_series()
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

    /// What is known of a series; `None` where there is none of this number.
    pub(super) fn series_state(&self, series: u32) -> Option<SeriesState> {
        let state = self.series_state.get(series as usize);
        (state.created_ns != 0).then_some(state)
    }

    fn sum_totals(&self, series: usize) -> Totals {
        let mut sum = Totals::default();
        for slot in 0..self.slots as usize {
            let one = self.totals.get(slot * self.series_state.len() + series);
            let words: &mut [u64] = bytemuck::cast_slice_mut(std::slice::from_mut(&mut sum));
            for (sum, word) in words.iter_mut().zip(bytemuck::cast_slice::<_, u64>(&[one])) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sum
    }

    /// All histograms but those of forgotten series: what of, series, place.
    pub(super) fn histograms(&self) -> impl Iterator<Item = (Of, u32, u64, Hist)> {
        self.kept_histograms().filter_map(|index| {
            let HistSlot { key, hist } = self.histograms.get(index);
            let of = [Of::PinDelay, Of::Lifetime, Of::SiteDelay, Of::SiteLife]
                .into_iter()
                .find(|of| *of as u32 == key.of)?;
            Some((of, key.series, key.place, hist))
        })
    }

    /// The counters of one spec, summed over slots.
    pub(super) fn probe(&self, spec: u32) -> ProbeCounts {
        let mut sum = ProbeCounts::default();
        for slot in 0..self.slots {
            let one = self.probe_counts.get((slot * self.probes + spec) as usize);
            sum.entries += one.entries;
            sum.returns += one.returns;
            sum.rejected += one.rejected;
            sum.faults += one.faults;
        }
        sum
    }

    /// Lets a spec count from zero. No probe has it now.
    pub(super) fn clear_probe(&self, spec: u32) {
        for slot in 0..self.slots {
            self.probe_counts.clear((slot * self.probes + spec) as usize);
        }
    }

    /// All losses, the kernel side's and our own.
    pub(super) fn losses(&self) -> LossCounts {
        let mut sum = self.own_losses;
        for slot in 0..self.slots as usize {
            let one = self.losses.get(slot);
            for index in 0..LOSS_COUNT {
                sum[index] += one[index];
            }
        }
        sum
    }
}
