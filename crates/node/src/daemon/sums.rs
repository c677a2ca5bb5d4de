//! Counts by label set and profile, of processes that have gone together with those that run: they never fall.

use std::collections::{BTreeMap, BTreeSet};

use drainprof_common::hist::{Hist, lower_bound};
use drainprof_report::{Allocator, Kind, Report, Target, account::TargetFacts};

use crate::{Counts, Labels, PinDelays, WorstSite};

/// The executable's name that stands for all label sets beyond the bound.
pub(super) const OTHER: &str = "other";

/// A target: what was read of it, and what its report says.
pub(super) type Seen<'a> = (&'a TargetFacts, &'a Target);

/// What processes with the same labels have counted with one profile.
type Key = (Labels, String);

/// The counts of processes, or parts of their time, that are over.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    over: BTreeMap<Key, Counts>,
    worst: BTreeMap<Key, WorstSite>,
    label_sets: BTreeSet<Labels>,
    limit: usize,
}

impl Sums {
    /// None yet. At most `limit` label sets are told apart; what comes beyond counts under [`OTHER`].
    #[must_use]
    pub(super) const fn new(limit: usize) -> Self {
        Self { over: BTreeMap::new(), worst: BTreeMap::new(), label_sets: BTreeSet::new(), limit }
    }

    /// Adds what was counted for a target that is no longer looked at.
    pub(super) fn add(&mut self, labels: &Labels, seen: Seen<'_>) {
        let labels = self.known(labels);
        add(&mut self.over, &labels, seen, false);
    }

    /// All counts: what is over, and what those targets have counted that are looked at now.
    #[must_use]
    pub(super) fn with<'a>(
        &mut self,
        now: impl Iterator<Item = (&'a Labels, Seen<'a>)>,
    ) -> Vec<Counts> {
        let mut all = self.over.clone();
        for (labels, seen) in now {
            let labels = self.known(labels);
            add(&mut all, &labels, seen, true);
        }
        for (key, counts) in &mut all {
            counts.worst_site = self.worst.get(key).cloned();
        }
        all.into_values().collect()
    }

    /// Takes notice of who pins most, by the report of a window that has ended.
    pub(super) fn blame(
        &mut self,
        labels: &Labels,
        (window, unix_ms): (u64, u64),
        report: &Report,
    ) {
        let labels = self.known(labels);
        for allocator in report.targets.iter().flat_map(|target| &target.allocators) {
            // What an earlier window has said is over, whatever this one says.
            let key = (labels.clone(), allocator.profile.clone());
            if self.worst.get(&key).is_some_and(|known| known.window != window) {
                self.worst.remove(&key);
            }
            let pinning = allocator.sites.iter().flatten().filter(|site| site.granules_pinned > 0);
            for site in pinning {
                let known = self.worst.get(&key).map_or(0, |known| known.granules_pinned);
                if let Some(id) = site.id.clone().filter(|_| site.granules_pinned > known) {
                    let granules_pinned = site.granules_pinned;
                    let worst = WorstSite { site: id, window, granules_pinned, unix_ms };
                    self.worst.insert(key.clone(), worst);
                }
            }
        }
    }

    /// The labels to count under. A set that was once beyond the bound stays there, since no set is ever
    /// forgotten: so no count moves from one set to another.
    fn known(&mut self, labels: &Labels) -> Labels {
        if self.label_sets.contains(labels) {
            return labels.clone();
        }
        if self.label_sets.len() >= self.limit {
            return Labels { exe: OTHER.to_owned(), ..Labels::default() };
        }
        self.label_sets.insert(labels.clone());
        labels.clone()
    }
}

fn add(sums: &mut BTreeMap<Key, Counts>, labels: &Labels, (facts, target): Seen<'_>, runs: bool) {
    let mut profiles: Vec<(&str, Kind)> = Vec::new();
    for allocator in &target.allocators {
        let sum = entry(sums, labels, &allocator.profile, allocator.kind);
        add_allocator(sum, allocator, runs);
        if !profiles.iter().any(|(known, _)| *known == allocator.profile) {
            profiles.push((&allocator.profile, allocator.kind));
        }
    }
    for one in &facts.allocators {
        let sum = entry(sums, labels, &one.profile.name, one.profile.kind);
        add_delays(&mut sum.pin_delays, &one.pin_delays);
    }
    for probe in &target.probes {
        let kind = profiles.iter().find(|(known, _)| *known == probe.profile);
        let kind = kind.map_or(Kind::Drain, |(_, kind)| *kind);
        let sum = entry(sums, labels, &probe.profile, kind);
        sum.hits += probe.entries + probe.returns;
        // Whole parts of two: their sum is exact in any order, and so never falls by a rounding.
        sum.cost_seconds += (probe.cost_seconds * COST_PARTS).round() / COST_PARTS;
    }
    if runs {
        for (profile, kind) in profiles {
            entry(sums, labels, profile, kind).processes += 1;
        }
    }
}

/// Parts of a second in which costs are added up: about a microsecond each.
const COST_PARTS: f64 = 1_048_576.0;

fn entry<'a>(
    sums: &'a mut BTreeMap<Key, Counts>,
    labels: &Labels,
    profile: &str,
    kind: Kind,
) -> &'a mut Counts {
    sums.entry((labels.clone(), profile.to_owned())).or_insert_with(|| Counts {
        labels: labels.clone(),
        profile: profile.to_owned(),
        kind: kind.name().to_owned(),
        ..Counts::default()
    })
}

/// Puts the kernel side's fine buckets into the few of a metric. Each of them lies in one of these.
fn add_delays(sum: &mut PinDelays, more: &Hist) {
    let mut bucket = 0;
    for (fine, count) in more.buckets.iter().enumerate() {
        while PinDelays::bound(bucket).is_some_and(|bound| lower_bound(fine) >= bound) {
            bucket += 1;
        }
        sum.buckets[bucket] += u64::from(*count);
    }
    sum.sum_nanoseconds = sum.sum_nanoseconds.saturating_add(more.sum);
}

/// Counters go on for ever; gauges are of those alone that are looked at now.
fn add_allocator(sum: &mut Counts, allocator: &Allocator, runs: bool) {
    let granules = &allocator.granules;
    sum.opened += granules.opened;
    sum.drainable += granules.drainable;
    sum.pinned += granules.pinned;
    sum.unknown += granules.closed.saturating_sub(granules.drainable + granules.pinned);
    if let Some(objects) = &allocator.objects {
        sum.allocated += objects.allocated;
        sum.freed += objects.freed;
    }
    if runs {
        sum.open_now += granules.open_now;
        let plus = |sum: Option<u64>, more: Option<u64>| match (sum, more) {
            (Some(sum), Some(more)) => Some(sum + more),
            (sum, more) => sum.or(more),
        };
        sum.retained_granules = plus(sum.retained_granules, allocator.retention.granules);
        sum.retained_bytes = plus(sum.retained_bytes, allocator.retention.bytes);
    }
}

#[cfg(test)]
mod tests {
    use drainprof_report::{Options, Report, account::Snapshot, samples};
    use proptest::prelude::*;

    use super::*;

    fn snapshot() -> Snapshot {
        let mut snapshot = samples::drain_snapshot();
        for delay in [100, 5_000, 3_000_000, u64::MAX >> 8] {
            snapshot.targets[0].allocators[0].pin_delays.record(delay);
        }
        snapshot
    }

    fn report(snapshot: &Snapshot) -> Report {
        Report::build(snapshot, &Options::default())
    }

    fn labels(exe: &str) -> Labels {
        Labels { exe: exe.into(), ..Labels::default() }
    }

    /// What has gone and what runs is added up; gauges are of what runs alone; nothing is counted twice.
    #[test]
    fn counters_and_gauges() {
        let snapshot = snapshot();
        let report = report(&snapshot);
        let target = &report.targets[0];
        let seen = (&snapshot.targets[0], target);
        let (closed, open): (u64, u64) =
            target.allocators.iter().fold((0, 0), |(closed, open), one| {
                (closed + one.granules.closed, open + one.granules.open_now)
            });
        assert!(closed > 0);
        let ends = |counts: &[Counts]| -> u64 {
            counts.iter().map(|one| one.drainable + one.pinned + one.unknown).sum()
        };
        let open_now = |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.open_now).sum() };
        let mut sums = Sums::new(100);
        let svc = labels("svc");
        let delays =
            |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.pin_delays.count()).sum() };
        let now = sums.with([(&svc, seen)].into_iter());
        assert_eq!(delays(&now), 4);
        assert_eq!((ends(&now), open_now(&now)), (closed, open));
        assert!(now.iter().all(|one| one.processes == 1));
        sums.add(&svc, seen);
        let gone = sums.with(std::iter::empty());
        assert_eq!((ends(&gone), open_now(&gone)), (closed, 0));
        assert!(gone.iter().all(|one| one.processes == 0 && one.retained_granules.is_none()));
        assert_eq!(delays(&gone), 4);
        let both = sums.with([(&svc, seen)].into_iter());
        assert_eq!(delays(&both), 8);
        assert_eq!((ends(&both), open_now(&both)), (2 * closed, open));
        assert_eq!(both.len(), now.len());
        let hits: u64 = target.probes.iter().map(|probe| probe.entries + probe.returns).sum();
        assert_eq!(both.iter().map(|one| one.hits).sum::<u64>(), 2 * hits);
    }

    /// Beyond the bound there is one more set, and none moves: counters of no set ever fall.
    #[test]
    fn label_sets_are_bounded() {
        let snapshot = snapshot();
        let report = report(&snapshot);
        let seen = (&snapshot.targets[0], &report.targets[0]);
        let mut sums = Sums::new(2);
        let mut before: BTreeMap<Key, u64> = BTreeMap::new();
        for round in 0..3 {
            for exe in ["a", "b", "c", "d"] {
                if round == 1 {
                    sums.add(&labels(exe), seen);
                }
                let own = labels(exe);
                for counts in sums.with([(&own, seen)].into_iter().take(usize::from(round != 1))) {
                    let known =
                        before.entry((counts.labels.clone(), counts.profile.clone())).or_default();
                    // Of a set that does not run now, only what is over is told.
                    if counts.processes > 0 {
                        assert!(counts.opened >= *known, "{:?}", counts.labels);
                        *known = counts.opened;
                    }
                    assert!(["a", "b", OTHER].contains(&counts.labels.exe.as_str()));
                }
            }
        }
        assert_eq!(sums.with(std::iter::empty()).len() % 3, 0);
    }

    /// The site that pins most is told until the next window, with its label set alone.
    #[test]
    fn the_worst_site() {
        let snapshot = samples::stacks_snapshot();
        let mut report = report(&snapshot);
        let seen = (&snapshot.targets[0], &report.targets[0].clone());
        let profile = report.targets[0].allocators[0].profile.clone();
        let (svc, other) = (labels("svc"), labels("other"));
        let mut sums = Sums::new(100);
        let told = |sums: &mut Sums| {
            let all = sums.with([(&svc, seen), (&other, seen)].into_iter());
            let of = |exe: &str| {
                let own = |one: &&Counts| one.labels.exe == exe && one.profile == profile;
                all.iter().find(own).unwrap().worst_site.clone()
            };
            assert_eq!(of("other"), None);
            of("svc")
        };
        assert_eq!(told(&mut sums), None);
        let pins = [3, 900, 20];
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        sites.resize(pins.len(), sites[0].clone());
        for (site, pins) in sites.iter_mut().zip(pins) {
            (site.granules_pinned, site.id) = (pins, Some(format!("{pins:016x}")));
        }
        sums.blame(&svc, (7, 1_000), &report);
        let worst = WorstSite {
            site: format!("{:016x}", 900),
            window: 7,
            granules_pinned: 900,
            unix_ms: 1_000,
        };
        assert_eq!(told(&mut sums), Some(worst));
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        sites[1].id = None;
        sums.blame(&svc, (8, 2_000), &report);
        assert_eq!(
            told(&mut sums).map(|worst| (worst.window, worst.granules_pinned)),
            Some((8, 20))
        );
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        for site in sites {
            site.granules_pinned = 0;
        }
        sums.blame(&svc, (9, 3_000), &report);
        assert_eq!(told(&mut sums), None);
    }

    /// A delay of exactly a bound counts above it; the smallest and the largest have their buckets.
    #[test]
    fn bounds_of_delays() {
        let bucket_of = |delay: u64| {
            let (mut hist, mut delays) = (Hist::new(), PinDelays::default());
            hist.record(delay);
            add_delays(&mut delays, &hist);
            assert_eq!((delays.count(), delays.sum_nanoseconds), (1, delay));
            delays.buckets.iter().position(|count| *count == 1).unwrap()
        };
        for bucket in 0..PinDelays::BUCKETS - 1 {
            let bound = PinDelays::bound(bucket).unwrap();
            assert_eq!((bucket_of(bound - 1), bucket_of(bound)), (bucket, bucket + 1));
        }
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, PinDelays::BUCKETS - 1));
        let hour = 3_600_000_000_000;
        assert!((PinDelays::bound(0).unwrap() < 1_100) && bucket_of(hour) < PinDelays::BUCKETS - 1);
    }

    proptest! {
        /// Every delay is in the bucket that its bounds say, whatever there is beside it.
        #[test]
        fn no_delay_is_misplaced(all in prop::collection::vec(0..1_u64 << 45, 0..50)) {
            let (mut hist, mut delays) = (Hist::new(), PinDelays::default());
            for delay in &all {
                hist.record(*delay);
            }
            add_delays(&mut delays, &hist);
            for bucket in 0..PinDelays::BUCKETS {
                let below = |delay: &&u64| PinDelays::bound(bucket).is_none_or(|bound| **delay < bound);
                let seen: u64 = delays.buckets[..=bucket].iter().sum();
                prop_assert_eq!(seen, all.iter().filter(below).count() as u64);
            }
            prop_assert_eq!(delays.sum_nanoseconds, all.iter().sum::<u64>());
        }
    }
}
