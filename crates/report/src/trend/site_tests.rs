//! The verdicts on sites of generated programs, of which it is known what each call path does.

use drainprof_common::loss::Loss;
use drainprof_profile::Level;

use super::{
    generated_tests::{Run, Stay, Stream, report, snapshot},
    *,
};
use crate::{
    Options, Report, Site, samples,
    series::{SiteNow, SiteSeriesSet},
};

const LENGTH: f64 = 60.0;

/// One of each textbook pattern, and what is to be said of it.
fn patterns() -> [(Vec<(f64, Stay)>, Growth); 4] {
    [
        (vec![(15.0, Stay::ForEver)], Growth::LinearLeak),
        (vec![(40.0, Stay::Evicted(300))], Growth::Bounded),
        (vec![(60.0, Stay::About(0.5)), (8.0, Stay::ForEver)], Growth::Mixed),
        (vec![(20.0, Stay::UntilTheEnd)], Growth::FreedAtShutdown),
    ]
}

fn run(streams: &[(f64, Stay)]) -> Run {
    let streams = streams.iter().map(|&(rate, stay)| Stream { rate, stay }).collect();
    Run { length: LENGTH, step: 0.2, before: 0.0, ended: true, streams }
}

/// A program with one call path per pattern: what is known of it.
fn mixture(seed: u64) -> Snapshot {
    let all: Vec<_> = patterns().into_iter().flat_map(|(streams, _)| streams).collect();
    let mut facts = run(&all).facts(seed);
    facts.level = Level::Stacks;
    let sites = patterns().into_iter().zip(1..);
    facts.sites = sites.map(|((streams, _), path)| run(&streams).site(seed, path)).collect();
    snapshot(facts, LENGTH, true)
}

fn sites(report: &Report) -> &[Site] {
    report.targets[0].allocators[0].sites.as_deref().unwrap_or_default()
}

/// The site of the pattern with this number, from 1 on.
fn site(report: &Report, number: usize) -> &Site {
    let place = format!("{number:#x}");
    let is_it = |site: &&Site| site.frames[0].address.as_deref() == Some(&place);
    sites(report).iter().find(is_it).unwrap()
}

/// A program whose four call paths have the four patterns: each is judged for itself, and right in at least 95 (a
/// bounded one: 90) of 100 runs.
#[test]
fn each_site_for_itself() {
    let mut right = [0; 4];
    for seed in 0..100 {
        let report = report(&mixture(seed));
        for (index, (_, growth)) in patterns().into_iter().enumerate() {
            right[index] += u32::from(site(&report, index + 1).verdict == Some(growth));
        }
    }
    for (right, (streams, growth)) in right.into_iter().zip(patterns()) {
        let least = if growth == Growth::Bounded { 90 } else { 95 };
        assert!(right >= least, "{growth:?} {streams:?}: {right}");
    }
    let report = report(&mixture(1));
    let reason = site(&report, 1).verdict_reason.as_deref().unwrap_or_default();
    assert!(
        reason.starts_with("+79.") || reason.contains("GiB/day at the present rate"),
        "{reason}"
    );
    assert!(reason.contains("none of them went"), "{reason}");
}

fn first(snapshot: &mut Snapshot) -> &mut SiteFacts {
    &mut snapshot.targets[0].allocators[0].sites[0]
}

/// What is not known is null: no course, objects without ids, a loss. What never pinned anything is known without a
/// time series; of windows nothing but that is said.
#[test]
fn unknown_is_null() {
    let change = |change: &dyn Fn(&mut Snapshot)| {
        let mut snapshot = mixture(1);
        change(&mut snapshot);
        let report = report(&snapshot);
        let leak = site(&report, 1);
        assert_eq!(leak.verdict.is_some(), leak.verdict_reason.is_some());
        leak.verdict
    };
    assert_eq!(change(&|_| ()), Some(Growth::LinearLeak));
    assert_eq!(change(&|snapshot| first(snapshot).over_time = None), None);
    assert_eq!(change(&|snapshot| first(snapshot).live = None), None);
    assert_eq!(change(&|snapshot| snapshot.losses[Loss::ObjectMapFull as usize] = 1), None);
    let nothing = |snapshot: &mut Snapshot| {
        let site = first(snapshot);
        (site.granules_pinned, site.granules_retained, site.over_time) = (0, 0, None);
    };
    assert_eq!(change(&nothing), Some(Growth::None));
    let windows = |snapshot: &mut Snapshot| snapshot.duty = samples::duty_snapshot().duty;
    assert_eq!(change(&windows), Some(Growth::TooEarly));
}

/// Of kind `bulk`, where only sweeps know which granules a path holds open: one that never lets go, one of whose
/// granules most go, and one that holds a granule while it works in it.
#[test]
fn held_open() {
    let mut facts = samples::bulk_snapshot().targets[0].allocators[0].clone();
    facts.level = Level::Stacks;
    facts.lifetimes.clear();
    let (mut courses, ms) = (SiteSeriesSet::default(), 1_000_000);
    let begin = 1_000_000 * ms;
    for tick in 0..=200u64 {
        let now = |granules, fresh| SiteNow {
            first_ns: begin,
            granules,
            fresh,
            ever: true,
            ..SiteNow::default()
        };
        let sites = [(1, now(tick, 1)), (2, now(10 + tick, 6)), (3, now(tick % 2, 1))];
        courses.add(begin + tick * 50 * ms, sites);
    }
    facts.sites = [1, 2, 3]
        .map(|number| SiteFacts {
            path: run(&[]).site(1, number).path,
            over_time: courses.of(number as u32).cloned(),
            ..samples::site(0)
        })
        .into();
    let report = Report::build(&samples::snapshot(vec![facts]), &Options::default());
    let verdicts = [1, 2, 3].map(|number| site(&report, number).verdict);
    let expected = [Growth::LinearLeak, Growth::Mixed, Growth::Bounded].map(Some);
    assert_eq!(verdicts, expected);
    let reason = site(&report, 1).verdict_reason.as_deref().unwrap_or_default();
    assert!(reason.contains("granules/s that stay open with its objects"), "{reason}");
}
