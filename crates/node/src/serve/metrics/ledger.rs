//! Counters that never fall, for a bounded number of label sets.
//!
//! What comes in are totals by *source* (a process, a label set of the state); what goes out are sums by *row*, that
//! is, by what is shown. A source adds what it has grown by since it was last seen, so a source that goes, or that
//! begins again at zero, makes no sum fall. Beyond the bound, sources add to a row called `other`. A row in which
//! nothing runs any more gives its place to a new one where that is needed: its sum then moves to `other`, so that
//! the sum over all rows stays what it was. A source that adds to `other` goes on to do so for as long as it is known.

use std::{
    collections::{BTreeMap, HashMap},
    hash::Hash,
};

/// One source's totals.
#[derive(Clone, Debug)]
pub(super) struct Reading<K, R, const N: usize> {
    /// Which source.
    pub(super) source: K,
    /// The row that it would like.
    pub(super) row: R,
    /// Its totals; `None` where they could not be read this time.
    pub(super) totals: Option<[u64; N]>,
    /// Whether it still runs.
    pub(super) alive: bool,
}

#[derive(Clone, Debug)]
struct Source<R, const N: usize> {
    totals: Option<[u64; N]>,
    row: R,
    own: bool,
    round: u64,
}

#[derive(Clone, Copy, Debug)]
struct Row<const N: usize> {
    sums: [u64; N],
    alive: u64,
}

/// The sums.
#[derive(Debug)]
pub(super) struct Ledger<K, R, const N: usize> {
    most: usize,
    /// Whether what a source had when it was first seen counts.
    from_zero: bool,
    other: fn(&R) -> R,
    round: u64,
    sources: HashMap<K, Source<R, N>>,
    rows: BTreeMap<R, Row<N>>,
    others: BTreeMap<R, [u64; N]>,
}

impl<K: Hash + Eq + Clone, R: Ord + Clone, const N: usize> Ledger<K, R, N> {
    /// With at most so many rows; `other` names the row for the rest, of which there must be few.
    pub(super) fn new(most: usize, from_zero: bool, other: fn(&R) -> R) -> Self {
        Self {
            most,
            from_zero,
            other,
            round: 0,
            sources: HashMap::new(),
            rows: BTreeMap::new(),
            others: BTreeMap::new(),
        }
    }

    /// Takes in all sources as they are now. Doing so twice changes nothing.
    pub(super) fn observe(&mut self, readings: Vec<Reading<K, R, N>>) {
        self.round += 1;
        // Those that are known come first: only then is it known which rows have nothing that runs.
        let mut new = Vec::new();
        for reading in readings {
            if self.sources.contains_key(&reading.source) {
                self.grow(&reading);
            } else {
                new.push(reading);
            }
        }
        // A row that a source comes back to stays: it would begin again between two looks otherwise.
        for reading in &new {
            if let Some(row) = self.rows.get_mut(&reading.row) {
                row.alive = self.round;
            }
        }
        for reading in new {
            let row = &reading.row;
            let own =
                (self.other)(row) != *row && (self.rows.contains_key(row) || self.make_room());
            if own {
                self.rows.entry(row.clone()).or_insert(Row { sums: [0; N], alive: 0 });
            }
            let totals = if self.from_zero { Some([0; N]) } else { reading.totals };
            let source = Source { totals, row: row.clone(), own, round: self.round };
            self.sources.insert(reading.source.clone(), source);
            self.grow(&reading);
        }
        let round = self.round;
        self.sources.retain(|_, source| source.round == round);
    }

    /// The row that a source adds to; `None` if it is not known.
    pub(super) fn row(&self, source: &K) -> Option<R> {
        let source = self.sources.get(source)?;
        Some(if source.own { source.row.clone() } else { (self.other)(&source.row) })
    }

    /// All rows and their sums.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&R, &[u64; N])> {
        self.rows.iter().map(|(row, is)| (row, &is.sums)).chain(&self.others)
    }

    /// How many rows are shown by themselves, and how many sources add to `other`.
    pub(super) fn shown(&self) -> (usize, usize) {
        (self.rows.len(), self.sources.values().filter(|source| !source.own).count())
    }

    fn grow(&mut self, reading: &Reading<K, R, N>) {
        let Some(source) = self.sources.get_mut(&reading.source) else { return };
        source.round = self.round;
        let own = source.own.then(|| self.rows.get_mut(&source.row)).flatten();
        let sums = match own {
            Some(row) => {
                if reading.alive {
                    row.alive = self.round;
                }
                &mut row.sums
            }
            None => self.others.entry((self.other)(&source.row)).or_insert([0; N]),
        };
        let Some(totals) = reading.totals else { return };
        let before = source.totals.unwrap_or(totals);
        for (sum, (now, before)) in sums.iter_mut().zip(totals.into_iter().zip(before)) {
            // Fewer than before: it began again.
            *sum = sum.saturating_add(now.checked_sub(before).unwrap_or(now));
        }
        source.totals = Some(totals);
    }

    /// Room for one more row, if need be in place of the one in which nothing has run for longest.
    fn make_room(&mut self) -> bool {
        if self.rows.len() < self.most {
            return true;
        }
        let idle = self.rows.iter().filter(|(_, row)| row.alive < self.round);
        let Some(name) = idle.min_by_key(|(_, row)| row.alive).map(|(name, _)| name.clone()) else {
            return false;
        };
        let Some(gone) = self.rows.remove(&name) else { return false };
        let sums = self.others.entry((self.other)(&name)).or_insert([0; N]);
        for (sum, more) in sums.iter_mut().zip(gone.sums) {
            *sum = sum.saturating_add(more);
        }
        for source in self.sources.values_mut().filter(|source| source.row == name) {
            source.own = false;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as for every row")]
    fn other(_: &u8) -> u8 {
        255
    }

    fn reading(source: u8, total: u64, alive: bool) -> Reading<u8, u8, 1> {
        Reading { source, row: source, totals: Some([total]), alive }
    }

    /// A row that nothing runs in makes room, and its sum is kept in `other`.
    #[test]
    fn idle_rows_make_room() {
        let mut ledger = Ledger::new(1, true, other);
        ledger.observe(vec![reading(1, 10, true)]);
        ledger.observe(vec![reading(1, 12, true), reading(2, 5, true)]);
        assert_eq!(ledger.rows().collect::<Vec<_>>(), [(&1, &[12]), (&255, &[5])]);
        ledger.observe(vec![reading(1, 13, false), reading(2, 6, true), reading(3, 7, true)]);
        assert_eq!(ledger.rows().collect::<Vec<_>>(), [(&3, &[7]), (&255, &[19])]);
        assert_eq!((ledger.row(&2), ledger.row(&3), ledger.shown()), (Some(255), Some(3), (1, 2)));
    }

    /// Without the past: what a process did before it was seen is not counted.
    #[test]
    fn past_may_be_left_out() {
        let mut ledger = Ledger::new(1, false, other);
        ledger.observe(vec![reading(1, 10, true)]);
        ledger.observe(vec![reading(1, 12, true)]);
        assert_eq!(ledger.rows().collect::<Vec<_>>(), [(&1, &[2])]);
    }

    proptest! {
        /// However sources come, grow, begin again and go: no row that stays falls, `other` and the sum over all rows
        /// never do, that sum is exact, and there are never more rows than the bound.
        #[test]
        fn never_falls(rounds in prop::collection::vec(
            prop::collection::vec((0_u8..12, 0_u64..100, any::<bool>(), 0_u8..10), 0..12), 1..40,
        )) {
            let mut ledger = Ledger::new(3, true, other);
            let mut totals: HashMap<u8, u64> = HashMap::new();
            let mut truth = 0;
            let mut before: BTreeMap<u8, u64> = BTreeMap::new();
            let mut sum_before = 0;
            for round in rounds {
                let mut readings = BTreeMap::new();
                for (source, more, alive, again) in round {
                    let total = totals.entry(source).or_insert(0);
                    if readings.contains_key(&source) {
                        continue;
                    }
                    // Now and then one begins again, with fewer than it had.
                    if again == 0 && *total > 0 {
                        let fewer = more.min(*total - 1);
                        truth += fewer;
                        *total = fewer;
                    } else {
                        truth += more;
                        *total += more;
                    }
                    readings.insert(source, reading(source, *total, alive));
                }
                // Those that are absent are forgotten, and begin at zero when they come back.
                totals.retain(|source, _| readings.contains_key(source));
                let again: Vec<_> = readings.values().cloned().collect();
                ledger.observe(readings.into_values().collect());
                let now: BTreeMap<u8, u64> = ledger.rows().map(|(row, sums)| (*row, sums[0])).collect();
                for (row, sum) in &before {
                    prop_assert!(now.get(row).is_none_or(|now| now >= sum), "{row}: {before:?} {now:?}");
                    prop_assert!(*row != 255 || now.contains_key(row));
                }
                let sum: u64 = now.values().sum();
                prop_assert!(sum >= sum_before);
                prop_assert_eq!(sum, truth);
                prop_assert!(ledger.shown().0 <= 3);
                prop_assert!(ledger.sources.len() <= 12);
                ledger.observe(again);
                let twice: BTreeMap<u8, u64> = ledger.rows().map(|(row, sums)| (*row, sums[0])).collect();
                prop_assert_eq!(&twice, &now);
                before = now;
                sum_before = sum;
            }
        }
    }
}
