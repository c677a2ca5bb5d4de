#![allow(clippy::float_cmp, reason = "whole numbers, and values that are passed on as they are")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{Flavour, METRICS, Metrics, Type, negotiate, pages, render, state_age};
use crate::{
    Outcome, PinDelays,
    config::Label,
    serve::tests::{state, window},
};

/// All labels.
const ALL: [Label; 6] =
    [Label::Exe, Label::Cgroup, Label::Container, Label::Unit, Label::Pod, Label::Namespace];

/// One sample of a text, by name and labels as they stand there.
type Samples = BTreeMap<String, f64>;

/// A label set, from after the brace; gives the pairs and what follows the closing brace.
fn labels(mut text: &str) -> (Vec<(String, String)>, &str) {
    let mut pairs = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return (pairs, rest);
        }
        let (name, rest) = text.split_once("=\"").expect("a label has a value in quotes");
        let name = name.strip_prefix(',').unwrap_or(name);
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase()), "{name}");
        let mut value = String::new();
        let mut chars = rest.char_indices();
        let end = loop {
            match chars.next().expect("a value ends") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().expect("an escape has a second half").1 {
                    'n' => value.push('\n'),
                    c @ ('\\' | '"') => value.push(c),
                    c => panic!("unknown escape {c}"),
                },
                (_, c) => value.push(c),
            }
        };
        pairs.push((name.to_owned(), value));
        text = &rest[end + 1..];
    }
}

/// Reads a text strictly: what OpenMetrics 1.0, or the older format, asks of these kinds of metrics.
fn parse(text: &str, flavour: Flavour) -> Samples {
    let open = flavour == Flavour::OpenMetrics;
    let body = if open { text.strip_suffix("# EOF\n").expect("the end mark") } else { text };
    let mut samples = Samples::new();
    let mut families = BTreeSet::new();
    let mut family = String::new();
    let mut kind = String::new();
    let mut unit = String::new();
    for line in body.lines() {
        assert!(!line.is_empty() && !line.contains("# EOF"));
        if let Some(meta) = line.strip_prefix("# ") {
            let mut words = meta.splitn(3, ' ');
            let (keyword, name) = (words.next().unwrap(), words.next().unwrap());
            let rest = words.next().unwrap();
            assert!(name.starts_with("drainprof_"));
            match keyword {
                "HELP" => {
                    name.clone_into(&mut family);
                    assert!(families.insert(family.clone()), "{name} comes twice");
                    kind.clear();
                    unit.clear();
                    assert!(!rest.is_empty() && !rest.contains('\\'));
                }
                "TYPE" => {
                    assert_eq!(name, family);
                    rest.clone_into(&mut kind);
                }
                "UNIT" if open => {
                    assert_eq!(name, family);
                    assert!(name.ends_with(&format!("_{rest}")));
                    rest.clone_into(&mut unit);
                }
                _ => panic!("{line}"),
            }
            continue;
        }
        let (name, rest) = line.split_at(line.find(['{', ' ']).unwrap());
        let expected = match (kind.as_str(), open) {
            ("counter", true) => format!("{family}_total"),
            ("info", true) => format!("{family}_info"),
            ("counter" | "gauge", _) => family.clone(),
            ("histogram", _) => {
                let suffix = name.strip_prefix(&family).expect("the family's name");
                assert!(["_bucket", "_sum", "_count"].contains(&suffix), "{line}");
                name.to_owned()
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(name, expected);
        let (pairs, rest) = rest.strip_prefix('{').map_or_else(|| (Vec::new(), rest), labels);
        let names: BTreeSet<_> = pairs.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), pairs.len(), "{line}");
        assert!(pairs.iter().all(|(_, value)| !value.is_empty()));
        let (rest, exemplar) =
            rest.split_once(" # ").map_or((rest, None), |(rest, exemplar)| (rest, Some(exemplar)));
        if let Some(exemplar) = exemplar {
            assert!(open && (name.ends_with("_total") || name.ends_with("_bucket")), "{line}");
            let (pairs, numbers) = labels(exemplar.strip_prefix('{').unwrap());
            let length = |(name, value): &(String, String)| (name.clone() + value).chars().count();
            assert!(pairs.iter().map(length).sum::<usize>() <= 128, "{line}");
            let numbers: Vec<f64> =
                numbers[1..].split(' ').map(|number| number.parse().unwrap()).collect();
            assert!((1..=2).contains(&numbers.len()) && numbers.iter().all(|n| n.is_finite()));
        }
        let value: f64 = rest.strip_prefix(' ').unwrap().parse().unwrap();
        assert!(value.is_finite() && (kind != "counter" || value >= 0.0));
        let twice = samples.insert(format!("{name}{pairs:?}"), value);
        assert!(twice.is_none(), "{line} comes twice");
    }
    samples
}

fn both(metrics: &Metrics) -> Samples {
    let (families, age) = (metrics.families(), state_age(Duration::from_secs(3)));
    let read = |flavour| parse(&render(families.iter().chain([&age]), flavour), flavour);
    let (open, classic) = (read(Flavour::OpenMetrics), read(Flavour::Prometheus));
    assert_eq!(open, classic);
    open
}

/// Both formats are strictly right, say the same, and show what the state says, hostile labels included.
#[test]
fn text_is_strict() {
    let mut metrics = Metrics::new(&ALL);
    metrics.observe(&Arc::new(state()));
    let samples = both(&metrics);
    let one = |start: &str| {
        let found: Vec<_> = samples.iter().filter(|(name, _)| name.starts_with(start)).collect();
        assert_eq!(found.len(), 1, "{start}: {found:?}");
        *found[0].1
    };
    assert_eq!(samples["drainprof_events_lost_total[(\"stage\", \"ring_full\")]"], 7.0);
    assert_eq!(samples["drainprof_windows_total[(\"outcome\", \"finished\")]"], 1.0);
    assert_eq!(samples["drainprof_windows_running[]"], 1.0);
    assert_eq!(
        samples["drainprof_memory_pressure_waited_seconds_total[(\"scope\", \"some\")]"],
        12.5
    );
    assert_eq!(one("drainprof_process_resident_bytes"), f64::from(10 << 20));
    assert_eq!(one("drainprof_governor_level"), 1.0);
    assert_eq!(one("drainprof_retained_granules"), 2_474.0);
    assert!(!samples.keys().any(|name| name.starts_with("drainprof_retained_bytes")));
    assert_eq!(one("drainprof_build_info"), 1.0);
    assert_eq!(samples.keys().filter(|name| name.contains("page_faults")).count(), 6);
    let hostile = samples.keys().filter(|name| name.contains("a\\\"b\\\\c\u{fffd}d\u{fffd}e"));
    assert!(hostile.count() >= 8);
    assert!(!samples.keys().any(|name| name.contains("4242") || name.contains("/usr/bin")));
    // Every metric of the table is shown here, but for what this state does not know.
    let absent = ["drainprof_retained_bytes", "drainprof_cgroup_limit_reached_seconds"];
    for of in METRICS {
        let shown = samples.keys().any(|name| name.starts_with(&of.sample()));
        let known = !absent.contains(&of.sample().as_str()) && of.stem != "drainprof_overhead";
        assert!(shown || !known, "{}", of.sample());
    }
}

/// A histogram's buckets are cumulative, in the order of their bounds, and end with all; count and sum agree with them.
#[test]
fn histograms_add_up() {
    let mut metrics = Metrics::new(&ALL);
    metrics.observe(&Arc::new(state()));
    for flavour in [Flavour::OpenMetrics, Flavour::Prometheus] {
        let text = render(&*metrics.families(), flavour);
        let of_one = |line: &&str| line.contains("pin_delay") && line.contains("exe=\"svc\"");
        let value = |line: &str| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap();
        let named = |suffix: &str| {
            let name = format!("drainprof_pin_delay_seconds_{suffix}{{");
            text.lines().filter(of_one).filter(|line| line.starts_with(&name)).collect::<Vec<_>>()
        };
        let (sums, counts, buckets) = (named("sum"), named("count"), named("bucket"));
        assert_eq!((sums.len(), counts.len(), buckets.len()), (1, 1, PinDelays::BUCKETS));
        assert_eq!((value(sums[0]), value(counts[0])), (7_200.004_000_9, 3.0));
        let mut before = (0.0, 0.0);
        for line in &buckets {
            let bound = line.split("le=\"").nth(1).unwrap().split('"').next().unwrap();
            let now = (bound.parse::<f64>().unwrap(), value(line));
            assert!(now.0 > before.0 && now.1 >= before.1, "{line}");
            before = now;
        }
        assert_eq!(before, (f64::INFINITY, 3.0));
        let below = |bound: f64| {
            let is = |line: &&&str| line.contains(&format!("le=\"{bound}\""));
            value(buckets.iter().find(is).unwrap_or_else(|| panic!("{bound}: {buckets:?}")))
        };
        assert_eq!([below(1.024e-6), below(0.001_048_576), below(0.004_194_304)], [1.0, 1.0, 2.0]);
    }
}

/// Pinned closes name the site that pins most, to who asks for OpenMetrics, and no other series does.
#[test]
fn pins_have_exemplars() {
    let mut metrics = Metrics::new(&ALL);
    let mut now = state();
    metrics.observe(&Arc::new(now.clone()));
    let with = |metrics: &Metrics, flavour| -> Vec<String> {
        let text = render(&*metrics.families(), flavour);
        text.lines().filter(|line| line.contains(" # {")).map(str::to_owned).collect()
    };
    let lines = with(&metrics, Flavour::OpenMetrics);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("drainprof_granule_closes_total{exe=\"svc\""), "{lines:?}");
    assert!(lines[0].contains("outcome=\"pinned\""), "{lines:?}");
    let pointer = " 2474 # {site=\"00f1e2d3c4b5a697\",window=\"7\"} 2400.0 ";
    let time = lines[0].split_once(pointer).unwrap_or_else(|| panic!("{lines:?}")).1;
    assert_eq!(time.parse::<f64>().unwrap(), 1_700_000_050.0);
    assert_eq!(with(&metrics, Flavour::Prometheus), [""; 0]);
    for counts in &mut now.counts {
        counts.worst_site = None;
    }
    metrics.observe(&Arc::new(now.clone()));
    assert_eq!(with(&metrics, Flavour::OpenMetrics), [""; 0]);
}

/// A histogram is absent until there is something to count, and then stays, whatever runs.
#[test]
fn histograms_need_data() {
    let mut metrics = Metrics::new(&ALL);
    let mut now = state();
    let has = |metrics: &Metrics| both(metrics).keys().any(|name| name.contains("pin_delay"));
    for counts in &mut now.counts {
        counts.pin_delays = PinDelays::default();
    }
    metrics.observe(&Arc::new(now.clone()));
    assert!(!has(&metrics));
    metrics.observe(&Arc::new(state()));
    assert!(has(&metrics));
}

/// No number is too large to be reported.
#[test]
fn largest_numbers_are_told() {
    let mut state = state();
    for counts in &mut state.counts {
        (counts.granules.opened, counts.held.open_now, counts.processes) =
            (u64::MAX, u64::MAX, u64::MAX);
        counts.cost_seconds = f64::INFINITY;
    }
    state.self_use.rss_bytes = u64::MAX;
    state.uptime_seconds = f64::NAN;
    let mut metrics = Metrics::new(&ALL);
    metrics.observe(&Arc::new(state));
    let samples = both(&metrics);
    assert_eq!(samples["drainprof_self_resident_bytes[]"], u64::MAX as f64);
    assert!(!samples.contains_key("drainprof_uptime_seconds[]"));
}

/// Only who names OpenMetrics gets it.
#[test]
fn accept_is_heeded() {
    for (accept, flavour) in [
        ("", Flavour::Prometheus),
        ("*/*", Flavour::Prometheus),
        ("text/plain", Flavour::Prometheus),
        ("application/openmetrics-text; version=1.0.0", Flavour::OpenMetrics),
        ("application/openmetrics-text;q=0.5,text/plain;q=0.4", Flavour::OpenMetrics),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.4", Flavour::Prometheus),
        ("application/openmetrics-text;q=0", Flavour::Prometheus),
        ("application/openmetrics-text;q=x,\u{1b}", Flavour::Prometheus),
    ] {
        assert_eq!(negotiate(accept), flavour, "{accept}");
    }
}

/// A window counts once, when it has ended, and not at all if an earlier daemon has opened it.
#[test]
fn windows_count_once() {
    let mut metrics = Metrics::new(&ALL);
    let mut now = state();
    let mut finished = |windows| -> f64 {
        now.windows = windows;
        metrics.observe(&Arc::new(now.clone()));
        metrics.observe(&Arc::new(now.clone()));
        both(&metrics)["drainprof_windows_total[(\"outcome\", \"finished\")]"]
    };
    let mut old = window(1, Outcome::Finished);
    old.began_unix_ms = 1_600_000_000_000;
    assert_eq!(finished(vec![old, window(2, Outcome::Running)]), 0.0);
    assert_eq!(finished(vec![window(2, Outcome::Finished)]), 1.0);
    assert_eq!(finished(vec![]), 1.0);
    assert_eq!(finished(vec![window(3, Outcome::Finished)]), 2.0);
}

/// Names follow the rules: base units, no suffix twice, one row each; the page of the documentation is fresh.
#[test]
fn table_is_documented() {
    let names: BTreeSet<_> = METRICS.iter().map(super::Definition::sample).collect();
    assert_eq!(names.len(), METRICS.len());
    for of in METRICS {
        assert!(!of.stem.ends_with("_total") && !of.stem.ends_with("_info"), "{}", of.stem);
        assert!(matches!(of.unit, None | Some("bytes" | "bytes_per_second" | "seconds" | "ratio")));
        assert!(of.kind != Type::Info || of.unit.is_none());
        assert!(!of.help.contains(['\n', '\\', '|']) && of.help.ends_with('.'), "{}", of.help);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, pages::page()).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap() == pages::page(),
        "docs/metrics.md is stale: run with UPDATE_DOCS=1"
    );
}

/// A process whose labels have no set of their own shows as `other`, and no series falls back to its own labels.
#[test]
fn unnamed_sets_are_other() {
    let mut metrics = Metrics::new(&[Label::Unit]);
    let mut state = state();
    for target in &mut state.targets {
        target.labels.unit = Some("new.service".to_owned());
    }
    metrics.observe(&Arc::new(state));
    let samples = both(&metrics);
    let resident = "drainprof_process_resident_bytes[(\"exe\", \"other\")]";
    assert_eq!(samples[resident], f64::from(10 << 20));
    assert_eq!(samples["drainprof_label_sets[(\"shown\", \"other\")]"], 1.0);
    assert!(!samples.keys().any(|name| name.contains("new.service")));
}

/// Heaps of all processes are added up; where one had no census, or its allocator says nothing, nothing is reported.
#[test]
fn heaps_need_all_processes() {
    let mut both_known = state();
    let mut other = both_known.targets[0].clone();
    other.pid += 1;
    other.heaps.as_mut().unwrap().summary.seconds = 0.5;
    both_known.targets.push(other);
    let tell = |state: &crate::NodeState| {
        let mut metrics = Metrics::new(&ALL);
        metrics.observe(&Arc::new(state.clone()));
        let mut samples = both(&metrics);
        samples.retain(|name, _| name.contains("_heap_"));
        samples
    };
    let samples = tell(&both_known);
    let one = |samples: &Samples, start: &str| {
        let found: Vec<_> = samples.iter().filter(|(name, _)| name.starts_with(start)).collect();
        assert!(
            found.len() == 1 && found[0].0.contains("(\"exe\", \"svc\")"),
            "{start}: {found:?}"
        );
        *found[0].1
    };
    for (name, mib) in [("mapped", 24), ("resident", 16), ("held", 12), ("live", 6), ("free", 10)] {
        let name = format!("drainprof_heap_{name}_bytes");
        assert_eq!(one(&samples, &name), f64::from(mib << 20), "{name}");
    }
    assert_eq!(one(&samples, "drainprof_heap_trimmable_bytes"), f64::from(4 << 20));
    assert_eq!(one(&samples, "drainprof_heap_census_seconds"), 0.5);
    assert_eq!(samples.len(), 10);
    both_known.targets[1].heaps.as_mut().unwrap().summary.heaps[0].trimmable_bytes = None;
    assert_eq!(tell(&both_known).len(), 9);
    both_known.targets[1].heaps.as_mut().unwrap().failure = Some("it is too large".to_owned());
    assert_eq!(tell(&both_known), Samples::new());
    both_known.targets[1].heaps = None;
    assert_eq!(tell(&both_known), Samples::new());
}
