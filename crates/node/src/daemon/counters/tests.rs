//! Counts over sets that come, go and return.

use drainprof_common::hist::Hist;
use drainprof_report::{Options, Report, facts::Snapshot, samples};
use proptest::prelude::*;

use super::{sums::add_delays, *};
use crate::PinDelays;

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
    let ends = |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.granules.closed()).sum() };
    let open_now = |counts: &[Counts]| -> u64 { counts.iter().map(|one| one.held.open_now).sum() };
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
    assert!(gone.iter().all(|one| one.processes == 0 && one.held.retained_granules.is_none()));
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
        counts.iter().filter(own).map(|one| one.granules.opened).sum()
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
    assert_eq!(sums.place(labels("other")), Labels::other());
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
                now.get_mut(&one.labels).unwrap().1 += one.granules.opened;
            }
            prop_assert_eq!(now.values().map(|(_, opened)| opened).sum::<u64>(), all * each);
            for (own, (since, opened)) in &before {
                let same = now.get(own).filter(|(now, _)| now == since);
                prop_assert!(same.is_none_or(|(_, now)| now >= opened), "{:?}", own);
                prop_assert!(*own != Labels::other() || same.is_some());
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
    assert_eq!(shown(&mut sums).map(|worst| (worst.window, worst.granules_pinned)), Some((8, 20)));
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
