//! Counters by label set and profile, over processes that have ended and processes that run.
//!
//! The number of label sets is bounded here and nowhere else. Each set holds only the labels that metrics show, so one
//! set is one group of series. A new set that finds no room evicts the set that was active least recently, of those in
//! which nothing runs. Counts of an evicted set move to [`other`], so that `other` and the sum over all sets never fall.
//! A set that returns starts at zero with a new [`LabelSet::since_unix_ms`]: a counter reset, and never a small step
//! back. A target keeps the set that it was given first, so that no count moves while the target runs.

use std::collections::{BTreeMap, HashMap, HashSet};

use drainprof_common::hist::{Hist, lower_bound};
use drainprof_process::memory::MemoryReading;
use drainprof_report::{Allocator, Kind, Report, Target, facts::TargetFacts, health};

use super::view::View;
use crate::{Counts, LabelSet, Labels, PinDelays, WorstSite, config::Label};

/// A target: its facts, and its part of the report.
pub(super) type Seen<'a> = (&'a TargetFacts, &'a Target);

/// Identifies an observed target: its kernel side, and its number there.
pub(super) type TargetId = (u64, u32);

/// Identifies a process: process id and start time.
pub(super) type ProcessId = (u32, u64);

/// Counts of one label set, by profile.
type ByProfile = BTreeMap<String, Counts>;

/// The counts of one label set.
#[derive(Clone, Debug, Default)]
struct Set {
    since_unix_ms: u64,
    /// When it was active last, by [`Counters::uses`].
    used: u64,
    /// The tick at which one of its processes ran last.
    running: u64,
    /// Observed targets that count here.
    targets: usize,
    /// Of targets that have ended.
    ended: ByProfile,
    worst: BTreeMap<String, WorstSite>,
    minor_faults: u64,
    major_faults: u64,
}

/// All counters of the node.
#[derive(Debug)]
pub(super) struct Counters {
    wanted: Vec<Label>,
    limit: usize,
    tick: u64,
    uses: u64,
    unix_ms: u64,
    sets: BTreeMap<Labels, Set>,
    other: Set,
    /// The set of each observed target.
    assigned: HashMap<TargetId, Labels>,
    /// Minor and major faults of each process, as of the last tick.
    faults: HashMap<ProcessId, [u64; 2]>,
    /// Losses of kernel sides that are gone, by name.
    lost: BTreeMap<String, u64>,
    /// Losses of each kernel side, as of the last view.
    losing: BTreeMap<u64, BTreeMap<String, u64>>,
}

/// All losses by name, each zero.
#[must_use]
pub(super) fn no_losses() -> BTreeMap<String, u64> {
    let all = health::by_name(&Default::default()).into_iter();
    all.map(|(name, count)| (name, count.unwrap_or_default())).collect()
}

/// The labels of the counts that have no set of their own.
#[must_use]
pub(crate) fn other() -> Labels {
    Labels { exe: "other".to_owned(), ..Labels::default() }
}

impl Counters {
    /// No counts yet. At most `limit` sets of the labels in `wanted` are counted apart; the rest counts as [`other`].
    #[must_use]
    pub(super) fn new(wanted: Vec<Label>, limit: usize, unix_ms: u64) -> Self {
        Self {
            wanted,
            limit,
            tick: 0,
            uses: 0,
            unix_ms,
            sets: BTreeMap::new(),
            other: Set { since_unix_ms: unix_ms, ..Set::default() },
            assigned: HashMap::new(),
            faults: HashMap::new(),
            lost: no_losses(),
            losing: BTreeMap::new(),
        }
    }

    /// Begins a tick with the processes that run now, and counts their page faults since the tick before.
    pub(super) fn begin<'a>(
        &mut self,
        unix_ms: u64,
        processes: impl Iterator<Item = (ProcessId, &'a Labels, Option<MemoryReading>)>,
    ) {
        self.tick += 1;
        self.unix_ms = unix_ms;
        let running: Vec<_> =
            processes.map(|(id, labels, memory)| (id, labels.only(&self.wanted), memory)).collect();
        // Sets that are known first: a new one may evict none of them.
        for (_, labels, _) in &running {
            if let Some(set) = self.sets.get_mut(labels) {
                set.running = self.tick;
            }
        }
        let mut faults = HashMap::with_capacity(running.len());
        for (id, labels, memory) in running {
            let key = self.place(labels);
            let tick = self.tick;
            let before = self.faults.get(&id).copied();
            let set = self.set(&key);
            set.running = tick;
            let now = memory.map(|memory| [memory.minor_faults, memory.major_faults]).or(before);
            let Some(now) = now else { continue };
            let before = before.unwrap_or(now);
            set.minor_faults += now[0].saturating_sub(before[0]);
            set.major_faults += now[1].saturating_sub(before[1]);
            faults.insert(id, now);
        }
        self.faults = faults;
    }

    /// Adds what a target has counted that is observed no more.
    pub(super) fn add(&mut self, id: TargetId, labels: &Labels, seen: Seen<'_>) {
        let key = self.assign(id, labels);
        self.assigned.remove(&id);
        let set = self.set(&key);
        set.targets -= 1;
        add(&mut set.ended, &key, seen, false);
    }

    /// Adds what the ended targets of a view have counted, and its losses. Returns the ended targets.
    pub(super) fn count_ended(
        &mut self,
        view: &View,
        labels: impl Fn(&Target) -> Labels,
    ) -> HashSet<TargetId> {
        for (kernel, report) in view.reports() {
            let losses = self.losing.entry(kernel).or_default();
            for (name, count) in &report.losses {
                losses.insert(name.clone(), count.unwrap_or_default());
            }
        }
        let mut ended = HashSet::new();
        for (id, seen) in view.targets().filter(|(_, (_, target))| target.ended.is_some()) {
            self.add(id, &labels(seen.1), seen);
            ended.insert(id);
        }
        ended
    }

    /// Kernel sides are gone: keeps what they have lost.
    pub(super) fn kernels_gone(&mut self, gone: &[u64]) {
        for losses in gone.iter().filter_map(|kernel| self.losing.remove(kernel)) {
            for (name, count) in losses {
                *self.lost.entry(name).or_default() += count;
            }
        }
    }

    /// The losses of all kernel sides, those that are gone included.
    #[must_use]
    pub(super) fn losses(&self) -> BTreeMap<String, u64> {
        let mut all = self.lost.clone();
        for (name, count) in self.losing.values().flatten() {
            *all.entry(name.clone()).or_default() += count;
        }
        all
    }

    /// All counts: of targets that have ended, and of those that are observed `now`.
    #[must_use]
    pub(super) fn counts<'a>(
        &mut self,
        now: impl Iterator<Item = (TargetId, &'a Labels, Seen<'a>)>,
    ) -> Vec<Counts> {
        let mut running: BTreeMap<Labels, Vec<Seen<'_>>> = BTreeMap::new();
        for (id, labels, seen) in now {
            running.entry(self.assign(id, labels)).or_default().push(seen);
        }
        let other = (other(), &self.other);
        let sets = self.sets.iter().map(|(labels, set)| (labels.clone(), set)).chain([other]);
        let mut all = Vec::new();
        for (labels, set) in sets {
            let mut counts = set.ended.clone();
            for seen in running.remove(&labels).unwrap_or_default() {
                add(&mut counts, &labels, seen, true);
            }
            all.extend(counts.into_iter().map(|(profile, counts)| Counts {
                worst_site: set.worst.get(&profile).cloned(),
                ..counts
            }));
        }
        all
    }

    /// The label sets that are counted apart, and [`other`].
    #[must_use]
    pub(super) fn label_sets(&self) -> Vec<LabelSet> {
        let other = (other(), &self.other);
        let sets = self.sets.iter().map(|(labels, set)| (labels.clone(), set)).chain([other]);
        sets.map(|(labels, set)| LabelSet {
            labels,
            since_unix_ms: set.since_unix_ms,
            minor_faults: set.minor_faults,
            major_faults: set.major_faults,
        })
        .collect()
    }

    /// Records the site that pins most, from the report of a window that has ended.
    pub(super) fn blame(
        &mut self,
        labels: &Labels,
        (window, unix_ms): (u64, u64),
        report: &Report,
    ) {
        let labels = labels.only(&self.wanted);
        let set = self.sets.get_mut(&labels).unwrap_or(&mut self.other);
        for allocator in report.targets.iter().flat_map(|target| &target.allocators) {
            // A newer window replaces an older one, whatever it shows.
            if set.worst.get(&allocator.profile).is_some_and(|known| known.window != window) {
                set.worst.remove(&allocator.profile);
            }
            let pinning = allocator.sites.iter().flatten().filter(|site| site.granules_pinned > 0);
            for site in pinning {
                let known = set.worst.get(&allocator.profile);
                let known = known.map_or(0, |known| known.granules_pinned);
                if let Some(id) = site.id.clone().filter(|_| site.granules_pinned > known) {
                    let granules_pinned = site.granules_pinned;
                    let worst = WorstSite { site: id, window, granules_pinned, unix_ms };
                    set.worst.insert(allocator.profile.clone(), worst);
                }
            }
        }
    }

    /// The set that a target counts in, for as long as it is observed.
    fn assign(&mut self, id: TargetId, labels: &Labels) -> Labels {
        if let Some(key) = self.assigned.get(&id) {
            return key.clone();
        }
        let key = self.place(labels.only(&self.wanted));
        self.set(&key).targets += 1;
        self.assigned.insert(id, key.clone());
        key
    }

    /// The set of these labels, or [`other`] where it finds no room.
    fn place(&mut self, labels: Labels) -> Labels {
        let room = self.sets.contains_key(&labels) || (labels != other() && self.make_room());
        let key = if room { labels } else { other() };
        if room {
            let since_unix_ms = self.unix_ms;
            self.sets.entry(key.clone()).or_insert_with(|| Set { since_unix_ms, ..Set::default() });
        }
        self.uses += 1;
        self.set(&key).used = self.uses;
        key
    }

    /// Makes room for one more set, by evicting one if need be.
    fn make_room(&mut self) -> bool {
        if self.sets.len() < self.limit {
            return true;
        }
        let idle = self.sets.iter().filter(|(_, set)| set.targets == 0 && set.running < self.tick);
        let oldest = idle.min_by_key(|(_, set)| set.used).map(|(labels, _)| labels.clone());
        let Some(evicted) = oldest.and_then(|labels| self.sets.remove(&labels)) else {
            return false;
        };
        self.other.minor_faults += evicted.minor_faults;
        self.other.major_faults += evicted.major_faults;
        for counts in evicted.ended.values() {
            fold(entry(&mut self.other.ended, &other(), &counts.profile, &counts.kind), counts);
        }
        true
    }

    fn set(&mut self, key: &Labels) -> &mut Set {
        self.sets.get_mut(key).unwrap_or(&mut self.other)
    }
}

fn add(sums: &mut ByProfile, labels: &Labels, (facts, target): Seen<'_>, runs: bool) {
    let mut profiles: Vec<(&str, Kind)> = Vec::new();
    for allocator in &target.allocators {
        let sum = entry(sums, labels, &allocator.profile, allocator.kind.name());
        add_allocator(sum, allocator, runs);
        if !profiles.iter().any(|(known, _)| *known == allocator.profile) {
            profiles.push((&allocator.profile, allocator.kind));
        }
    }
    for one in &facts.allocators {
        let sum = entry(sums, labels, &one.profile.name, one.profile.kind.name());
        add_delays(&mut sum.pin_delays, &one.pin_delays);
    }
    for probe in &target.probes {
        let kind = profiles.iter().find(|(known, _)| *known == probe.profile);
        let kind = kind.map_or(Kind::Drain, |(_, kind)| *kind);
        let sum = entry(sums, labels, &probe.profile, kind.name());
        sum.hits += probe.entries + probe.returns;
        // Whole parts of two: their sum is exact in any order, and so never falls by a rounding.
        sum.cost_seconds += (probe.cost_seconds * COST_PARTS).round() / COST_PARTS;
    }
    if runs {
        for (profile, kind) in profiles {
            entry(sums, labels, profile, kind.name()).processes += 1;
        }
    }
}

/// Parts of a second in which costs are added up: about a microsecond each.
const COST_PARTS: f64 = 1_048_576.0;

fn entry<'a>(
    sums: &'a mut ByProfile,
    labels: &Labels,
    profile: &str,
    kind: &str,
) -> &'a mut Counts {
    sums.entry(profile.to_owned()).or_insert_with(|| Counts {
        labels: labels.clone(),
        profile: profile.to_owned(),
        kind: kind.to_owned(),
        ..Counts::default()
    })
}

/// Adds counters to counters; gauges of what has ended are zero.
fn fold(sum: &mut Counts, more: &Counts) {
    for (sum, more) in [
        (&mut sum.opened, more.opened),
        (&mut sum.drainable, more.drainable),
        (&mut sum.pinned, more.pinned),
        (&mut sum.unknown, more.unknown),
        (&mut sum.allocated, more.allocated),
        (&mut sum.freed, more.freed),
        (&mut sum.hits, more.hits),
    ] {
        *sum += more;
    }
    sum.cost_seconds += more.cost_seconds;
    for (sum, more) in sum.pin_delays.buckets.iter_mut().zip(more.pin_delays.buckets) {
        *sum += more;
    }
    let nanoseconds = &mut sum.pin_delays.sum_nanoseconds;
    *nanoseconds = nanoseconds.saturating_add(more.pin_delays.sum_nanoseconds);
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
    use drainprof_report::{Options, Report, facts::Snapshot, samples};
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

    /// A reading of memory with so many minor faults.
    fn faults(minor_faults: u64) -> MemoryReading {
        MemoryReading { minor_faults, ..MemoryReading::default() }
    }

    fn counters(limit: usize) -> Counters {
        Counters::new(vec![Label::Exe, Label::Unit], limit, 1)
    }

    /// What has ended and what runs is added up; gauges are of what runs alone; nothing is counted twice.
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
        let mut sums = counters(100);
        let svc = labels("svc");
        let delays =
            |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.pin_delays.count()).sum() };
        let now = sums.counts([((1, 1), &svc, seen)].into_iter());
        assert_eq!(delays(&now), 4);
        assert_eq!((ends(&now), open_now(&now)), (closed, open));
        assert!(now.iter().all(|one| one.processes == 1));
        sums.add((1, 1), &svc, seen);
        let gone = sums.counts(std::iter::empty());
        assert_eq!((ends(&gone), open_now(&gone)), (closed, 0));
        assert!(gone.iter().all(|one| one.processes == 0 && one.retained_granules.is_none()));
        assert_eq!(delays(&gone), 4);
        let both = sums.counts([((1, 2), &svc, seen)].into_iter());
        assert_eq!(delays(&both), 8);
        assert_eq!((ends(&both), open_now(&both)), (2 * closed, open));
        assert_eq!(both.len(), now.len());
        let hits: u64 = target.probes.iter().map(|probe| probe.entries + probe.returns).sum();
        assert_eq!(both.iter().map(|one| one.hits).sum::<u64>(), 2 * hits);
    }

    /// However many short-lived label sets come and go, the newest is named, the number of sets is bounded, and
    /// neither `other` nor the sum over all sets falls. A set that returns starts at zero, later than it did before.
    #[test]
    fn the_newest_label_sets_are_named() {
        const LIMIT: usize = 500;
        const ROUNDS: u32 = 5_000;
        let snapshot = snapshot();
        let report = report(&snapshot);
        let seen = (&snapshot.targets[0], &report.targets[0]);
        let opened = |counts: &[Counts], exe: Option<&str>| -> u64 {
            let own = |one: &&Counts| exe.is_none_or(|exe| one.labels.exe == exe);
            counts.iter().filter(own).map(|one| one.opened).sum()
        };
        let each: u64 = report.targets[0].allocators.iter().map(|one| one.granules.opened).sum();
        let mut sums = counters(LIMIT);
        let daemon = labels("long-lived");
        let mut other_before = 0;
        for round in 1..=ROUNDS {
            let pod = labels(&format!("pod{round}"));
            let processes = [
                ((1, 1), &daemon, Some(faults(u64::from(round) * 10))),
                ((round + 1, 1), &pod, Some(faults(3))),
            ];
            sums.begin(u64::from(round), processes.into_iter());
            let both = [((1, 0), &daemon, seen), ((1, round), &pod, seen)];
            let counts = sums.counts(both.into_iter());
            assert_eq!(opened(&counts, Some(&pod.exe)), each, "round {round}");
            assert_eq!(opened(&counts, Some("long-lived")), each, "round {round}");
            assert_eq!(opened(&counts, None), (u64::from(round) + 1) * each);
            let rest = opened(&counts, Some("other"));
            assert!(rest >= other_before, "round {round}");
            other_before = rest;
            assert!(sums.label_sets().len() <= LIMIT + 1);
            sums.add((1, round), &pod, seen);
        }
        assert_eq!(sums.assigned.len(), 1);
        let since = |sums: &Counters, exe: &str| {
            sums.label_sets().iter().find(|set| set.labels.exe == exe).map(|set| set.since_unix_ms)
        };
        assert_eq!((since(&sums, "pod1"), since(&sums, "long-lived")), (None, Some(1)));
        let rounds = u64::from(ROUNDS);
        let long_lived = sums.label_sets().into_iter().find(|set| set.labels == daemon).unwrap();
        assert_eq!(long_lived.minor_faults, (rounds - 1) * 10);
        let first = labels("pod1");
        sums.begin(rounds + 1, [((2, 1), &first, None)].into_iter());
        let counts = sums.counts([((2, 1), &first, seen)].into_iter());
        assert_eq!((opened(&counts, Some("pod1")), since(&sums, "pod1")), (each, Some(rounds + 1)));
        assert_eq!(opened(&counts, None), (rounds + 1) * each);
    }

    /// A set in which something runs is not evicted, and a target that counts as `other` stays there while it runs.
    #[test]
    fn running_sets_stay() {
        let snapshot = snapshot();
        let report = report(&snapshot);
        let seen = (&snapshot.targets[0], &report.targets[0]);
        let names = |counts: Vec<Counts>| -> Vec<String> {
            let mut names: Vec<_> = counts.into_iter().map(|one| one.labels.exe).collect();
            names.dedup();
            names
        };
        let (a, b, c) = (labels("a"), labels("b"), labels("c"));
        let mut sums = counters(1);
        sums.begin(1, [((1, 1), &a, None), ((2, 1), &b, None)].into_iter());
        let both = [((1, 1), &a, seen), ((1, 2), &b, seen)];
        assert_eq!(names(sums.counts(both.into_iter())), ["a", "other"]);
        sums.add((1, 1), &a, seen);
        sums.begin(2, [((2, 1), &b, None)].into_iter());
        assert_eq!(names(sums.counts([both[1]].into_iter())), ["other"]);
        // Now `b` has a set, for what comes later.
        sums.begin(3, [((2, 1), &b, None), ((3, 1), &c, None)].into_iter());
        let three = [both[1], ((1, 3), &b, seen), ((1, 4), &c, seen)];
        assert_eq!(names(sums.counts(three.into_iter())), ["b", "other"]);
        // A process that is called `other` counts there, too.
        assert_eq!(sums.place(labels("other")), other());
    }

    /// Labels that metrics do not show tell no sets apart.
    #[test]
    fn sets_have_the_wanted_labels_alone() {
        let mut sums = counters(10);
        let of = |pod: &str| Labels { pod: Some(pod.into()), ..labels("svc") };
        assert_eq!(sums.place(of("1").only(&sums.wanted)), sums.place(of("2").only(&sums.wanted)));
        assert_eq!(sums.label_sets().len(), 2);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// Targets come, run and end in any order: no set falls while it is there, `other` and the sum never do, and
        /// there are never more sets than the bound.
        #[test]
        fn counts_never_fall(rounds in prop::collection::vec(
            prop::collection::vec((0_u32..12, any::<bool>()), 0..8), 1..40,
        )) {
            let snapshot = snapshot();
            let report = report(&snapshot);
            let seen = (&snapshot.targets[0], &report.targets[0]);
            let each: u64 = report.targets[0].allocators.iter().map(|one| one.granules.opened).sum();
            let mut sums = counters(3);
            let mut running: BTreeMap<TargetId, Labels> = BTreeMap::new();
            let mut before: BTreeMap<Labels, (u64, u64)> = BTreeMap::new();
            let (mut next, mut all) = (0_u32, 0_u64);
            for (tick, round) in rounds.into_iter().enumerate() {
                let mut ended = Vec::new();
                for (set, ends) in round {
                    let found = running.iter().find(|(_, own)| own.exe == set.to_string());
                    if let (true, Some((id, _))) = (ends, found) {
                        ended.push(*id);
                    } else {
                        next += 1;
                        all += 1;
                        running.insert((1, next), labels(&set.to_string()));
                    }
                }
                let processes = running.iter().filter(|(id, _)| !ended.contains(id));
                sums.begin(tick as u64 + 1, processes.map(|(id, own)| ((id.1, 1), own, None)));
                for id in ended {
                    if let Some(own) = running.remove(&id) {
                        sums.add(id, &own, seen);
                    }
                }
                let counts = sums.counts(running.iter().map(|(id, own)| (*id, own, seen)));
                let mut now: BTreeMap<Labels, (u64, u64)> = BTreeMap::new();
                for set in sums.label_sets() {
                    now.insert(set.labels, (set.since_unix_ms, 0));
                }
                prop_assert!(now.len() <= 4);
                for one in &counts {
                    now.get_mut(&one.labels).unwrap().1 += one.opened;
                }
                prop_assert_eq!(now.values().map(|(_, opened)| opened).sum::<u64>(), all * each);
                for (own, (since, opened)) in &before {
                    let same = now.get(own).filter(|(now, _)| now == since);
                    prop_assert!(same.is_none_or(|(_, now)| now >= opened), "{:?}", own);
                    prop_assert!(*own != other() || same.is_some());
                }
                before = now;
            }
        }
    }

    /// The site that pins most is shown until the next window, with its label set alone.
    #[test]
    fn the_worst_site() {
        let snapshot = samples::stacks_snapshot();
        let mut report = report(&snapshot);
        let seen = (&snapshot.targets[0], &report.targets[0].clone());
        let profile = report.targets[0].allocators[0].profile.clone();
        let (svc, quiet) = (labels("svc"), labels("quiet"));
        let mut sums = counters(100);
        let shown = |sums: &mut Counters| {
            let all = sums.counts([((1, 1), &svc, seen), ((1, 2), &quiet, seen)].into_iter());
            let of = |exe: &str| {
                let own = |one: &&Counts| one.labels.exe == exe && one.profile == profile;
                all.iter().find(own).unwrap().worst_site.clone()
            };
            assert_eq!(of("quiet"), None);
            of("svc")
        };
        assert_eq!(shown(&mut sums), None);
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
        assert_eq!(shown(&mut sums), Some(worst));
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        sites[1].id = None;
        sums.blame(&svc, (8, 2_000), &report);
        assert_eq!(
            shown(&mut sums).map(|worst| (worst.window, worst.granules_pinned)),
            Some((8, 20))
        );
        let sites = report.targets[0].allocators[0].sites.as_mut().unwrap();
        for site in sites {
            site.granules_pinned = 0;
        }
        sums.blame(&svc, (9, 3_000), &report);
        assert_eq!(shown(&mut sums), None);
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
