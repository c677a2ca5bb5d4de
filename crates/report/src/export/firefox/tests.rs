use std::collections::BTreeMap;

use drainprof_common::{
    event::{Event, EventKind},
    state::Verdict,
};
use serde_json::Value;

use super::*;
use crate::{Options, export::format, facts::PathPins, samples};

const SECOND: u64 = 1_000_000_000;
/// When the observation of these tests began.
const BEGAN: u64 = 70 * SECOND;

/// Profile and instance of the series 5.
struct Known(String, u64);

impl Names for Known {
    fn pid(&self, _: u32) -> Option<u32> {
        Some(4242)
    }
    fn series(&self, series: u32) -> Option<(&str, u64)> {
        (series == 5).then_some((self.0.as_str(), self.1))
    }
    fn began_ns(&self) -> u64 {
        BEGAN
    }
}

fn written(exporter: &dyn Exporter, report: &Report) -> Value {
    let mut out = Vec::new();
    exporter.report(report, &Style::default(), &mut out).unwrap();
    serde_json::from_slice(&out).unwrap()
}

/// What the viewer shows as retained of a thread in a range of seconds, by the innermost function: an allocation in the
/// range counts unless a later free in the range has its address.
fn retained(thread: &Value, range: std::ops::RangeInclusive<f64>) -> BTreeMap<String, i64> {
    let table = &thread["nativeAllocations"];
    let column = |name: &str| table[name].as_array().cloned().unwrap_or_default();
    let index = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
    let mut kept: BTreeMap<u64, (String, i64)> = BTreeMap::new();
    let mut last = 0.0;
    for (row, at) in column("time").iter().enumerate() {
        let at = at.as_f64().unwrap();
        assert!(at >= last, "in the order of time");
        last = at;
        if !range.contains(&(at / 1e3)) {
            continue;
        }
        let address = column("memoryAddress")[row].as_u64().unwrap();
        let weight = column("weight")[row].as_i64().unwrap();
        if weight < 0 {
            kept.remove(&address);
            continue;
        }
        let frame = index(&thread["stackTable"]["frame"][index(&column("stack")[row])]);
        let function = index(&thread["frameTable"]["func"][frame]);
        let name = index(&thread["funcTable"]["name"][function]);
        let name = thread["stringArray"][name].as_str().unwrap().to_owned();
        assert!(kept.insert(address, (name, weight)).is_none(), "each address once");
    }
    let mut sums = BTreeMap::new();
    for (name, bytes) in kept.into_values() {
        *sums.entry(name).or_default() += bytes;
    }
    sums
}

fn always() -> std::ops::RangeInclusive<f64> {
    0.0..=f64::INFINITY
}

/// The threads of allocators, in the order of the report.
fn allocators(profile: &Value) -> Vec<&Value> {
    let threads = profile["threads"].as_array().unwrap();
    threads.iter().filter(|thread| thread["name"].as_str().unwrap().contains(" in ")).collect()
}

/// An exporter that has recorded what the sample of the level `stacks` counts: 2000 granules of 4096 bytes are closed
/// and stay, one each millisecond; from second 3 on 474 are closed, each drains a millisecond later, all at the same
/// address. `lost` of these late drains are not recorded.
fn recorded(report: &Report, lost: u32) -> Box<dyn Exporter> {
    let exporter = format("firefox").unwrap().exporter.recorder().unwrap();
    let own = &report.targets[0].allocators[0];
    let hex = |text: &str| u64::from_str_radix(&text[2..], 16).unwrap();
    let names = Known(own.profile.clone(), own.instance.as_deref().map_or(0, hex));
    for (number, site) in own.sites.iter().flatten().take(2).enumerate() {
        let addresses = site.frames.iter().map(|frame| hex(frame.address.as_ref().unwrap()));
        let path = CallPath { addresses: addresses.collect(), end: site.path_end };
        exporter.path(number as u64, 0, &path, &names, &mut io::sink()).unwrap();
    }
    let show = |kind: EventKind, event: Event, pinned_by: Option<&[PathPins]>| {
        let event = Event { kind: kind as u32, series: 5, ..event };
        let facts = EventFacts { kind, event: &event, pinned_by };
        exporter.event(&facts, &names, &mut io::sink()).unwrap();
    };
    let verdict = Verdict::Pinned as u32;
    let close = Event { verdict, live: 1, bytes: 4096, ..Event::default() };
    for number in 0..2_000 {
        let ns = BEGAN + u64::from(number) * 1_000_000;
        let granule = 0x10_0000 + 4096 * u64::from(number);
        let by = [PathPins { path: 1, pins: 1 }, PathPins { path: 0, pins: 2 }];
        show(EventKind::Close, Event { ns, granule, generation: number, ..close }, Some(&by));
    }
    for number in 0..474 {
        let ns = BEGAN + 3 * SECOND + u64::from(number) * 2_000_000;
        let by = [PathPins { path: 1, pins: 1 }];
        let close = Event { ns, granule: 0x9000, generation: number, ..close };
        show(EventKind::Close, close, Some(&by));
        if number >= lost {
            let drain = Event { ns: ns + 1_000_000, verdict: 0, ..close };
            show(EventKind::LateDrain, drain, None);
        }
    }
    exporter
}

/// With events each pinned close is an allocation by the stack with most pins, at the granule's address, and goes with
/// its late drain: any range shows what came in it and stayed.
#[test]
fn events_are_exact() {
    let report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let held = report.targets[0].allocators[0].retention.bytes;
    let profile = written(&*recorded(&report, 0), &report);
    let thread = allocators(&profile)[0];
    let of = |range| retained(thread, range);
    assert_eq!(of(always()), [("make_session".to_owned(), 8_192_000)].into());
    assert_eq!(held, Some(8_192_000));
    assert_eq!(of(0.0..=0.999), [("make_session".to_owned(), 1_000 * 4096)].into());
    assert_eq!(of(1.5..=2.5).values().sum::<i64>(), 500 * 4096);
    // A granule that is closed in the range and drains after it.
    let put = "store::Cache<std::string, int>::put(int)";
    assert_eq!(of(3.0..=3.0005), [(put.to_owned(), 4096)].into());
    assert_eq!(of(3.0..=3.9015), [].into());
    let address = &thread["nativeAllocations"]["memoryAddress"];
    assert_eq!((&address[0], &address[2_001]), (&0x10_0000.into(), &0x9000.into()));
    let kinds: Vec<&str> = thread["markers"]["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|marker| marker["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "pinned granule").count(), 2_474);
}

/// Where events were lost, the report's own list and total count, and nothing is made up.
#[test]
fn lost_events_do_not_count() {
    let mut report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let own = &mut report.targets[0].allocators[0];
    own.pinned_granules[0].closed_for_seconds = Some(1.0);
    let listed: u64 = own.pinned_granules.iter().filter_map(|granule| granule.bytes).sum();
    assert!(listed > 0 && listed < 8_192_000);
    let profile = written(&*recorded(&report, 1), &report);
    let sums = retained(allocators(&profile)[0], always());
    assert_eq!(sums.values().sum::<i64>(), 8_192_000);
    let rest = sums["[granules without times in the report]"].unsigned_abs();
    assert_eq!(rest, 8_192_000 - listed);
    assert_eq!(profile, written(&Firefox, &report), "as of a saved report");
}

/// Of every sample the whole range retains what the report says, to the byte: pinned granules, or live objects.
#[test]
fn whole_range_is_the_report() {
    for (name, snapshot) in samples::all() {
        let report = Report::build(&snapshot, &Options::default());
        let profile = written(&Firefox, &report);
        let own = report.targets.iter().flat_map(|target| &target.allocators);
        let threads = allocators(&profile);
        assert_eq!(own.clone().count(), threads.len());
        for (own, thread) in own.zip(threads) {
            let shown: i64 = retained(thread, always()).values().sum();
            let held = match own.kind {
                Kind::Drain => own.retention.bytes,
                // The readings of a sample are estimates, of the sites that have any.
                _ if own.sampling.is_some() => continue,
                _ => own.objects.and_then(|objects| objects.live_bytes),
            };
            assert_eq!(shown.unsigned_abs(), held.unwrap_or_default(), "{name}: {}", own.profile);
        }
    }
}

/// Intervals give resident memory and the DSR over time; the curve of retention ends with what is retained.
#[test]
fn counters() {
    let report = Report::build(&samples::stacks_snapshot(), &Options::default());
    let exporter = recorded(&report, 0);
    for (second, rss) in [(1.0, 5_000_000), (2.0, 4_000_000)] {
        let mut now = report.clone();
        now.window.seconds = second;
        now.targets[0].rss_bytes = Some(rss);
        let interval = Interval { before: None, now: &now, clock: "" };
        exporter.interval(&interval, &Style::default(), &mut io::sink()).unwrap();
    }
    let profile = written(&*exporter, &report);
    let counter = |name: &str| {
        let all = profile["counters"].as_array().unwrap();
        all.iter().find(|counter| counter["name"] == name).unwrap()["samples"].clone()
    };
    let rss = counter("RSS");
    let end = report.targets[0].rss_bytes.unwrap() as f64;
    let deltas = [5_000_000.0, -1_000_000.0, end - 4_000_000.0];
    assert_eq!(rss["count"], serde_json::json!(deltas));
    let values = counter("retained");
    let values = values["count"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
    assert!((values.sum::<f64>() - 8_192_000.0).abs() < 0.5);
    let thread = allocators(&profile)[0];
    let data = thread["markers"]["data"].as_array().unwrap();
    let rates: Vec<_> = data.iter().filter(|marker| marker["type"] == "DSR").collect();
    assert_eq!(rates.len(), 3);
    assert_eq!(rates[2]["dsr"].as_f64(), report.targets[0].allocators[0].dsr);
}

/// What call stacks added to resident memory is a track of its own.
#[test]
fn growth() {
    let report = Report::build(&samples::growth_snapshot(), &Options::default());
    let profile = written(&Firefox, &report);
    let sums = retained(&profile["threads"][0], always());
    assert_eq!(sums.values().sum::<i64>(), (1 << 20) + 3 * 65_536, "{sums:?}");
}
