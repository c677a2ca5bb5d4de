//! Tests of joining windows.

use std::{collections::BTreeMap, sync::Arc};

use drainprof_profile::{Finding, Kind};
use proptest::prelude::*;

use super::*;
use crate::{
    Options, Report,
    facts::{Began, CallPath},
    invariants, samples,
};

const LENGTH: Duration = Duration::from_secs(10);

fn joined(windows: &Windows) -> AllocatorFacts {
    let nothing = Snapshot { targets: Vec::new(), ..samples::drain_snapshot() };
    windows.join(nothing).targets[0].allocators[0].clone()
}

/// What a window leaves is reported as left, not as open or retained; its counts and delays stay.
#[test]
fn windows_leave_what_they_cannot_follow() {
    let mut windows = Windows::new(8);
    let mut snapshot = samples::drain_snapshot();
    let facts = &mut snapshot.targets[0].allocators[0];
    (facts.open_now, facts.totals.opened) = (2, 10_002);
    facts.pin_delays.record(7);
    windows.add(snapshot.clone(), LENGTH);
    windows.add(snapshot.clone(), LENGTH);
    assert_eq!((windows.count(), windows.observed()), (2, 2 * LENGTH));
    let ended = joined(&windows);
    assert_eq!((ended.open_now, ended.left_open, ended.open_peak), (0, 4, 16));
    assert_eq!((ended.retained_granules, ended.left_retained), (0, 2 * 2_474));
    assert_eq!(ended.left_retained_bytes, 2 * 10_133_504);
    assert_eq!((ended.totals.opened, ended.pin_delays.count), (2 * 10_002, 2));
    assert_eq!((ended.left_objects, ended.left_object_bytes), (2 * 2_474, 2 * 633_344));
    assert!(ended.granules.is_empty());
    // The window that runs is open, and lists its granules.
    let now = windows.join(snapshot);
    let facts = &now.targets[0].allocators[0];
    assert_eq!((facts.open_now, facts.left_open, facts.retained_granules), (2, 4, 2_474));
    assert_eq!((facts.totals.drainable, facts.granules.len()), (3 * 7_526, 3));
}

/// Losses and hits of probes add up, findings are reported once, the later state of the process is reported.
#[test]
fn processes_go_on() {
    let mut windows = Windows::new(8);
    let mut first = samples::incomplete_snapshot();
    let finding = Finding { code: "x".to_owned(), message: "y".to_owned() };
    first.targets[0].findings = vec![finding.clone()];
    // Two probes of one function stay two.
    let twin = first.targets[0].probes[0].clone();
    first.targets[0].probes.push(ProbeFacts { entries: 1, ..twin });
    let mut second = first.clone();
    second.targets[0].ended = Some(crate::facts::Ended::exit(None));
    second.targets[0].began = Began::Exec { from_target: 7 };
    windows.add(first, LENGTH);
    let all = windows.join(second);
    let target = &all.targets[0];
    assert_eq!((all.targets.len(), target.findings.as_slice()), (1, &[finding][..]));
    assert_eq!((target.began, target.ended.is_some()), (Began::Attached, true));
    assert_eq!(all.losses[Loss::GranuleMapFull as usize], 24);
    assert_eq!(target.probes.len(), 5);
    assert_eq!((target.probes[0].entries, target.probes[4].entries), (40_000, 2));
}

/// An instance that was destroyed stays what it was; another one at its address counts for itself. A
/// profile without an instance is reported only as long as none was seen.
#[test]
fn instances_are_kept_apart() {
    let mut windows = Windows::new(8);
    let live = samples::drain_snapshot().targets[0].allocators[0].clone();
    let gone = AllocatorFacts { destroyed: true, retained_granules: 0, ..live.clone() };
    let silent = AllocatorFacts { instance: 0, totals: Totals::default(), ..live.clone() };
    windows.add(samples::snapshot(vec![silent]), LENGTH);
    windows.add(samples::snapshot(vec![live.clone()]), LENGTH);
    windows.add(samples::snapshot(vec![gone, live.clone()]), LENGTH);
    let all = windows.join(samples::snapshot(vec![live]));
    let allocators = &all.targets[0].allocators;
    let seen: Vec<_> =
        allocators.iter().map(|facts| (facts.destroyed, facts.totals.opened)).collect();
    assert_eq!(seen, [(true, 20_000), (false, 20_000)]);
}

/// Instances and places are bounded: what does not fit is a counted loss, or an unknown place.
#[test]
fn memory_is_bounded() {
    let mut windows = Windows::new(3);
    for window in 0..10u64 {
        let mut facts = samples::drain_snapshot().targets[0].allocators[0].clone();
        facts.instance = window + 1;
        windows.add(samples::snapshot(vec![facts]), LENGTH);
    }
    let all = windows.join(samples::snapshot(Vec::new()));
    assert_eq!(all.targets[0].allocators.len(), 3);
    assert_eq!(all.losses[Loss::InstanceMapFull as usize], 7);

    let mut windows = Windows::new(3);
    for window in 0..3u64 {
        let mut facts = samples::drain_snapshot().targets[0].allocators[0].clone();
        let hist = facts.lifetimes.values().next().copied().unwrap();
        let places = (1..=PLACES as u64 / 2).map(|n| (window * 1_000_000 + n, hist));
        facts.lifetimes = places.collect::<BTreeMap<_, _>>();
        windows.add(samples::snapshot(vec![facts]), LENGTH);
    }
    let facts = joined(&windows);
    assert!(facts.lifetimes.len() <= PLACES + 1, "{}", facts.lifetimes.len());
    let all: u64 = facts.lifetimes.values().map(|hist| hist.count).sum();
    assert_eq!(all, 3 * PLACES as u64 / 2 * 10_000);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However a history is cut into windows, their sum keeps every conservation rule.
    #[test]
    fn any_windows_keep_the_rules(
        kind in prop_oneof![Just(Kind::Drain), Just(Kind::Bulk), Just(Kind::Slab)],
        level in prop_oneof![Just(Level::Boundary), Just(Level::Objects)],
        histories in prop::collection::vec(
            prop::collection::vec((0u8..8, 0u64..6, 0u64..20), 0..100), 1..6),
    ) {
        let mut windows = Windows::new(8);
        let mut seen = histories.iter().map(|steps| {
            let facts = samples::history(kind, level, steps);
            samples::snapshot(vec![AllocatorFacts { profile: Arc::clone(&facts.profile), ..facts }])
        });
        let last = seen.next_back().unwrap();
        seen.for_each(|snapshot| windows.add(snapshot, LENGTH));
        let report = Report::build(&windows.join(last), &Options::default());
        prop_assert_eq!(invariants(&report), Vec::<String>::new());
    }
}

/// A site is known by path and place of opening in every window; of sites that find no room the report says what they
/// have allocated.
#[test]
fn sites_keep_their_paths() {
    let site = |address: u64, opened_at: u64, allocated: u64| {
        let path = CallPath { addresses: vec![1, address], ..Default::default() };
        SiteFacts { allocated, ..SiteFacts::new(path.into(), opened_at) }
    };
    let mut sites = vec![site(2, 7, 1), site(3, 7, 10)];
    join_sites(&mut sites, vec![site(3, 7, 100), site(3, 8, 1_000), site(3, 8, 1)]);
    let allocated: Vec<u64> = sites.iter().map(|site| site.allocated).collect();
    assert_eq!(allocated, [1, 110, 1_001]);
    assert_eq!(cut_sites(&mut sites, 1), 1_111);
    assert_eq!((sites.len(), cut_sites(&mut sites, 1)), (1, 0));
}
