use std::sync::Arc;

use super::*;
use crate::{Options, PathEnd, PinClass, Report, samples};

const MS: u64 = 1_000_000;

fn site(addresses: &[u64], opened_at: u64, granules_pinned: u64) -> SiteFacts {
    let path = CallPath { addresses: addresses.to_vec(), end: PathEnd::Start };
    SiteFacts { path: Arc::new(path), opened_at, ..samples::site(granules_pinned) }
}

/// The allocator's part of the report on these sites, `top` of them listed.
fn shown(sites: Vec<SiteFacts>, top: usize) -> Allocator {
    let mut snapshot = samples::stacks_snapshot();
    snapshot.targets[0].allocators[0].sites = sites;
    let options = Options { top, ..Options::default() };
    Report::build(&snapshot, &options).targets[0].allocators[0].clone()
}

fn pinned(allocator: &Allocator) -> Vec<u64> {
    allocator.sites.iter().flatten().map(|site| site.granules_pinned).collect()
}

/// One path under several ids is one site whose counts are their sums; another place, another end or another
/// path is another site.
#[test]
fn equal_paths_are_joined() {
    let mut late = site(&[1, 2], 7, 5);
    late.delays.record(30 * MS);
    late.threads = vec!["b".to_owned(), "c".to_owned()];
    (late.first_ns, late.last_ns) = (samples::NOW_NS - 2_000 * MS, samples::NOW_NS - MS);
    let mut early = site(&[1, 2], 7, 3);
    early.delays.record(10 * MS);
    early.threads = vec!["a".to_owned(), "b".to_owned()];
    (early.first_ns, early.last_ns) = (samples::NOW_NS - 9_000 * MS, samples::NOW_NS - 8_000 * MS);
    let mut cut = site(&[1, 2], 7, 1);
    Arc::make_mut(&mut cut.path).end = PathEnd::TooDeep;
    let allocator = shown(vec![late, site(&[1, 2], 8, 2), early, cut, site(&[1], 7, 4)], 10);
    assert_eq!(allocator.sites_total, Some(4));
    assert_eq!(pinned(&allocator), [8, 4, 2, 1]);
    let joined = &allocator.sites.as_ref().unwrap()[0];
    assert_eq!((joined.pins, joined.allocated), (8, 16));
    assert_eq!((joined.first_seen_seconds, joined.last_seen_seconds), (1.0, 9.999));
    assert_eq!(joined.threads, ["b", "c", "a"]);
    assert_eq!(joined.pin_delay_seconds.max, Some(0.03));
    assert!((joined.pin_delay_total_seconds - 0.04).abs() < 1e-12);
    assert_eq!(joined.frames.len(), 2);
    assert_eq!(joined.frames[1].address.as_deref(), Some("0x2"));
}

/// Joined parts may have pinned the same granule; their sum is never more than all pinned closes.
#[test]
fn joined_granules_are_bounded() {
    let allocator = shown(vec![site(&[1], 7, 2_000), site(&[1], 7, 2_000)], 10);
    let joined = &allocator.sites.as_ref().unwrap()[0];
    assert_eq!((joined.granules_pinned, joined.share), (2_474, Some(1.0)));
}

/// Most pinned granules first, then pins, retained bytes, allocated bytes, and at last the path; all are
/// counted, the first are listed.
#[test]
fn ranking() {
    let mut more_pins = site(&[6], 0, 3);
    more_pins.pins = 9;
    let mut retains = site(&[5], 0, 3);
    retains.retained_bytes = 1 << 20;
    let mut allocates = site(&[4], 0, 3);
    allocates.allocated_bytes = 1 << 20;
    let all =
        vec![site(&[3], 0, 3), site(&[2], 0, 3), allocates, retains, more_pins, site(&[7], 0, 4)];
    let paths = |top| {
        let allocator = shown(all.clone(), top);
        assert_eq!(allocator.sites_total, Some(6));
        let sites = allocator.sites.unwrap();
        sites.iter().map(|site| site.frames[0].address.clone().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(paths(10), ["0x7", "0x6", "0x5", "0x4", "0x2", "0x3"]);
    assert_eq!(paths(5), paths(10)[..5]);
    assert!(paths(0).is_empty());
}

/// Where nothing can be pinned, who holds most comes first, however much others allocate.
#[test]
fn holders_come_first() {
    let snapshot = samples::holders_snapshot();
    let report = Report::build(&snapshot, &Options::default());
    let sites = report.targets[0].allocators[0].sites.as_ref().unwrap();
    assert!(sites[0].live_bytes > sites[1].live_bytes);
    assert!(sites[0].allocated_bytes < sites[1].allocated_bytes);
    assert_eq!(sites[0].share, None);
}

/// The class is what most decided pins are, in doubt the later one; undecided pins decide nothing.
#[test]
fn classes() {
    let class = |near_miss, moderate, fundamental, undecided| {
        PinClasses { near_miss, moderate, fundamental, undecided }.class()
    };
    assert_eq!(class(0, 0, 0, 9), None);
    assert_eq!(class(3, 2, 2, 9), Some(PinClass::NearMiss));
    assert_eq!(class(3, 3, 2, 0), Some(PinClass::Moderate));
    assert_eq!(class(3, 3, 3, 0), Some(PinClass::Fundamental));
}

/// What the profile does not tell is null, and levels without call paths have no sites.
#[test]
fn unknown_is_null() {
    let mut snapshot = samples::stacks_snapshot();
    let facts = &mut snapshot.targets[0].allocators[0];
    let mut profile = (*facts.profile).clone();
    profile.granule_bytes = None;
    for probe in &mut profile.probes {
        probe.expressions.remove(&drainprof_profile::Key::Size);
    }
    facts.profile = Arc::new(profile);
    for site in &mut facts.sites {
        site.live = None;
    }
    let report = Report::build(&snapshot, &Options::default());
    let site = &report.targets[0].allocators[0].sites.as_ref().unwrap()[0];
    assert_eq!((site.pin_bytes, site.pin_bytes_live, site.retained_bytes), (None, None, None));
    assert_eq!((site.live, site.live_bytes, site.allocated_bytes), (None, None, None));
    snapshot.targets[0].allocators[0].level = Level::Objects;
    let report = Report::build(&snapshot, &Options::default());
    let allocator = &report.targets[0].allocators[0];
    assert!(allocator.sites.is_none() && allocator.sites_total.is_none());
}

/// Frames and the place of opening have the names that are known of their addresses.
#[test]
fn names() {
    let report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let site = &report.targets[0].allocators[0].sites.as_ref().unwrap()[0];
    assert_eq!(site.frames[0].frame.function.as_deref(), Some("make_session"));
    assert_eq!(site.frames[1].frame.inlined.len(), 2);
    assert_eq!(site.opened_at.frame.function.as_deref(), Some("handle_request"));
}
