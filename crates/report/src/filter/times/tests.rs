//! What a filter by time selects is compared with single lives, which the report does not have.

use drainprof_common::hist::{BUCKETS, Hist, lower_bound};

use super::{super::*, *};
use crate::{Bucket, Cohort, LiveOverTime, samples};

const END: f64 = 10.0;
const BYTES: u64 = 16;

/// Came, and went; infinity: still there.
type Life = (f64, f64);

/// A site of these lives, read at these times, with survivors in parts of 0.5 s.
fn site(lives: &[Life], readings: &[f64]) -> Site {
    let count =
        |is_it: &dyn Fn(&Life) -> bool| lives.iter().filter(|life| is_it(life)).count() as u64;
    let live = |at: f64| count(&|&(came, went)| came <= at && went > at);
    let series = readings
        .iter()
        .map(|&at| (at, live(at), Some(BYTES * live(at)), count(&|&(came, _)| came <= at)))
        .collect();
    let survivors = (0..20).map(|part| {
        let from = f64::from(part) / 2.0;
        let objects = count(&|&(came, went)| went > END && came >= from && came < from + 0.5);
        Cohort { from_seconds: from, to_seconds: from + 0.5, objects, bytes: Some(BYTES * objects) }
    });
    let mut hist = Hist::new();
    #[allow(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "not negative")]
    let ns = |seconds: f64| (seconds * 1e9) as u64;
    lives.iter().filter(|life| life.1 <= END).for_each(|life| hist.record(ns(life.1 - life.0)));
    let buckets = hist.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
    let life_histogram = buckets.map(|(index, &count)| Bucket {
        le_seconds: seconds(lower_bound((index + 1).min(BUCKETS - 1)) - 1),
        count: u64::from(count),
    });
    Site {
        live: Some(live(END)),
        allocated: lives.len() as u64,
        first_seen_seconds: lives.iter().map(|life| life.0).fold(END, f64::min),
        live_over_time: Some(LiveOverTime { series, ..LiveOverTime::default() }),
        survivors: survivors.filter(|part| part.objects > 0).collect(),
        life_histogram: life_histogram.collect(),
        ..Site::default()
    }
}

fn readings(every: f64) -> Vec<f64> {
    let mut all: Vec<f64> =
        (1..1_000).map(|at| f64::from(at) * every).take_while(|at| *at < END).collect();
    all.push(END);
    all
}

/// Lives of many lengths, some without an end.
fn lives() -> Vec<Life> {
    let came = |index: u32| 0.3 + f64::from(index) * 0.009;
    (0..1_000)
        .map(|index| {
            let length = f64::from(index * 37 % 101) * 0.04;
            let went = came(index) + length;
            (came(index), if index % 10 == 0 || went > END { f64::INFINITY } else { went })
        })
        .collect()
}

fn second(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

fn selected(times: &Times, site: &Site) -> Selected {
    times.question().unwrap().unwrap().of(site, Kind::Slab).unwrap()
}

/// Each answer is exact for the borders that it carries, and these enclose what was asked for.
#[test]
fn exact_between_the_borders() {
    let all = lives();
    let site = site(&all, &readings(0.25));
    let count =
        |is_it: &dyn Fn(&Life) -> bool| all.iter().filter(|life| is_it(life)).count() as u64;
    for asked in [[0.0, 10.0], [0.1, 0.2], [1.1, 1.2], [2.0, 7.3], [9.9, 9.99]] {
        let range = Some(asked.map(second));
        let came = selected(&Times { allocated_between: range, ..Times::default() }, &site);
        let (from, to) = (came.from_seconds, came.to_seconds.unwrap());
        assert!(from <= asked[0] && to >= asked[1] && to - from <= asked[1] - asked[0] + 0.5);
        assert_eq!(came.objects, count(&|life| life.0 > from && life.0 <= to), "{asked:?}");
        assert_eq!(came.bytes, None);

        let gone = selected(&Times { freed_between: range, ..Times::default() }, &site);
        assert_eq!(gone.objects, count(&|life| life.1 > from && life.1 <= to), "{asked:?}");

        let stayed = Times { allocated_between: range, until_end: true, ..Times::default() };
        let stayed = selected(&stayed, &site);
        let (from, to) = (stayed.from_seconds, stayed.to_seconds.unwrap());
        assert!(from <= asked[0] && to >= asked[1] && from > asked[0] - 0.6 && to < asked[1] + 0.6);
        let truth = count(&|life| life.1 > END && life.0 >= from && life.0 < to);
        assert_eq!((stayed.objects, stayed.bytes), (truth, Some(BYTES * truth)), "{asked:?}");
    }
    for at in [0.0, 0.3, 1.1, 5.0, 9.95] {
        let alive = selected(&Times { alive_at: Some(second(at)), ..Times::default() }, &site);
        let read = alive.from_seconds;
        assert!((read - at).abs() <= 0.125, "{at}: read at {read}");
        let truth = count(&|&(came, went)| came <= read && went > read);
        assert_eq!((alive.objects, alive.bytes), (truth, Some(BYTES * truth)), "{at}");
    }
}

/// Lives are counted by buckets; what is live counts with its age only where there is no upper end.
#[test]
fn lives_by_buckets() {
    let all = lives();
    let site = site(&all, &readings(0.25));
    for least in [0.0, 0.5, 1.0, 3.0] {
        let times = Times { alive_at_least: Some(second(least)), ..Times::default() };
        let long = selected(&times, &site);
        let from = long.from_seconds;
        assert!(from <= least && from >= least / 1.25 - 1e-9 && long.to_seconds.is_none());
        let exact = |from: f64| {
            let length = |&&(came, went): &&Life| went.min(END) - came >= from;
            all.iter().filter(length).count() as u64
        };
        // Of those that are live a part of the time, half a second long, may be too many.
        assert!((exact(least)..=exact(from) + 60).contains(&long.objects), "{least}: {long:?}");
    }
    let times = Times { alive_at_most: Some(second(1.0)), ..Times::default() };
    let short = selected(&times, &site);
    let most = short.to_seconds.unwrap();
    assert!((1.0..1.25).contains(&most));
    let truth = all.iter().filter(|(came, went)| *went <= END && went - came <= most).count();
    assert_eq!(short.objects, truth as u64, "what is live has no length yet");
    let both = Times { alive_at_least: Some(second(0.0)), ..times };
    assert_eq!(selected(&both, &site).objects, truth as u64);
    let old = Times { alive_at_least: Some(second(5.0)), until_end: true, ..Times::default() };
    let old = selected(&old, &site);
    let to = old.to_seconds.unwrap();
    let truth = all.iter().filter(|(came, went)| *went > END && *came < to).count();
    assert_eq!((old.objects, old.bytes), (truth as u64, Some(BYTES * truth as u64)));
    assert!((5.0..5.6).contains(&to));
}

/// What is not known is not answered: no series, no ages of survivors, no lengths of lives.
#[test]
fn unknown() {
    let known = site(&lives(), &readings(1.0));
    let of = |times: &Times, site: &Site, kind| times.question().unwrap().unwrap().of(site, kind);
    let at = Times { alive_at: Some(second(1.0)), ..Times::default() };
    assert!(of(&at, &Site { live_over_time: None, ..known.clone() }, Kind::Slab).is_none());
    let end = Times { until_end: true, ..Times::default() };
    assert!(of(&end, &Site { survivors: Vec::new(), ..known.clone() }, Kind::Slab).is_none());
    let long = Times { alive_at_least: Some(second(1.0)), ..Times::default() };
    assert!(of(&long, &known, Kind::Drain).is_none() && of(&long, &known, Kind::Bulk).is_none());
    let spread = Some(crate::Spread::default());
    let older = Site { life_histogram: Vec::new(), life_seconds: spread, ..known };
    assert!(of(&long, &older, Kind::Slab).is_none());
}

/// A report of two sites: one had its objects in the first half, the other's stay.
fn report() -> Report {
    let mut report = samples::before();
    report.window.seconds = END;
    let allocator = &mut report.targets[0].allocators[0];
    allocator.kind = Kind::Slab;
    let sites = allocator.sites.as_mut().unwrap();
    sites.truncate(3);
    let early: Vec<Life> = (0..40).map(|at| (f64::from(at) * 0.1, 4.5)).collect();
    let late: Vec<Life> = (0..30).map(|at| (5.0 + f64::from(at) * 0.1, f64::INFINITY)).collect();
    for (own, lives) in sites.iter_mut().zip([&early, &late]) {
        let times = site(lives, &readings(0.25));
        own.live_over_time = times.live_over_time;
        own.survivors = times.survivors;
        own.life_histogram = times.life_histogram;
        (own.live, own.allocated) = (times.live, times.allocated);
        own.first_seen_seconds = times.first_seen_seconds;
    }
    report
}

/// Sites without such objects are left out, those with most come first, and the note says at which borders was read.
#[test]
fn sites_are_chosen() {
    let chosen = |times: Times| {
        let mut report = report();
        Filter::new(Wanted { times, ..Wanted::default() }).apply(&mut report);
        let sites = report.targets[0].allocators[0].sites.clone().unwrap();
        let objects: Vec<u64> = sites.iter().map(|site| site.selected.unwrap().objects).collect();
        let said = report.findings.last().map(|note| note.message.clone()).unwrap_or_default();
        (objects, said)
    };
    let at = |seconds| Times { alive_at: Some(second(seconds)), ..Times::default() };
    assert_eq!(chosen(at(4.0)).0, [40]);
    assert_eq!(chosen(at(9.1)).0, [30]);
    let (objects, said) = chosen(Times { until_end: true, ..Times::default() });
    assert_eq!(objects, [30]);
    assert!(said.starts_with("1 of 3 sites are shown (--until-end)"), "{said}");
    let freed = Some([1.0, 4.6].map(second));
    let (objects, said) = chosen(Times { freed_between: freed, ..Times::default() });
    assert_eq!(objects, [40]);
    for part in ["--freed-between 1s,4.6s", "read from 1.00 s to 4.75 s", "1 sites are left out"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let came = Some([3.0, 6.0].map(second));
    assert_eq!(chosen(Times { allocated_between: came, ..Times::default() }).0, [11, 9]);
}

/// Questions that counts cannot answer are refused with the reason, and a report made live says why nothing was chosen.
#[test]
fn refused() {
    let range = Some([1.0, 2.0].map(second));
    let both = Times { alive_at: Some(second(1.0)), freed_between: range, ..Times::default() };
    let error = both.check(false, false).unwrap_err().to_string();
    assert!(error.contains("--alive-at and --freed-between go together only"), "{error}");
    let never = Times { until_end: true, freed_between: range, ..Times::default() };
    assert_eq!(never.check(false, false), Err(Untold::FreedAndLive));
    let freed = Times { freed_between: range, ..Times::default() };
    assert_eq!(freed.check(true, false), Err(Untold::Sampled("--freed-between")));
    assert_eq!(freed.check(false, true), Err(Untold::Duty));
    assert_eq!(freed.check(false, false), Ok(()));
    let end = Times { until_end: true, alive_at: Some(second(1.0)), ..Times::default() };
    assert_eq!((end.check(true, false), Times::default().check(true, true)), (Ok(()), Ok(())));
    let late = Times { alive_at: Some(second(99.0)), ..Times::default() };
    let error = late.check_report(&report()).unwrap_err().to_string();
    assert_eq!(error, "--alive-at 1 min 39 s: the report covers 10.0 s");
    let mut bare = report();
    bare.targets[0].allocators[0].sites = None;
    assert_eq!(end.check_report(&bare), Err(Untold::NoStacks));
    let mut live = report();
    Filter::new(Wanted { times: late, ..Wanted::default() }).apply(&mut live);
    assert_eq!(live.targets[0].allocators[0].sites.as_ref().unwrap().len(), 3);
    let said = &live.findings.last().unwrap().message;
    assert!(said.starts_with("not filtered by time, because --alive-at"), "{said}");
}

/// A picture of a filtered report has what was asked for as widths.
#[test]
fn widths() {
    let mut report = report();
    let times = Times { until_end: true, ..Times::default() };
    Filter::new(Wanted { times, ..Wanted::default() }).apply(&mut report);
    let written = |name: &str| {
        let mut out = Vec::new();
        let format = crate::export::format(name).unwrap();
        format.exporter.report(&report, &crate::export::Style::default(), &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let folded = written("folded");
    assert!(folded.lines().count() == 1 && folded.ends_with(" 480\n"), "{folded}");
    assert!(written("flamegraph").contains("Chosen by time: bytes of the objects asked for"));
    let text = written("text");
    let row = text.lines().skip_while(|line| !line.contains("asked for")).nth(1).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..4], ["30", "480", "B"], "{text}");
}
