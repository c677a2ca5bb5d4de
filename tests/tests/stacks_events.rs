//! Events at level `stacks`: who pins each granule, from the stream alone.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    paths::Sites,
    target::Target,
    tracer::{self, Outcome, Traced, Tracer},
};
use serde_json::Value;

/// What a call path pins in granules of one class: granules, pins, pins that were freed.
type Counts = [u64; 3];

/// A call path as the stream and the report tell it: target, addresses, place of opening.
type Key = (u64, Vec<String>, Option<String>);

/// Runs a target under `attach --events`; the report is the stream's last record.
fn streamed(
    name: &str,
    args: &[&str],
    profile: &str,
    more: &[&str],
) -> Result<(Traced, Vec<Value>)> {
    let mut target = Target::start(name, args)?;
    let mut command = tracer::command()?;
    command.args(["attach", "-p", &target.pid().to_string(), "--top", "2000"]);
    command.args(["--profile", &environment::profile(profile), "-o", "ndjson", "--events"]);
    command.args(["--ring-bytes", "33554432"]).args(more);
    let mut tracer = Tracer::spawn(command)?;
    tracer.attached()?;
    target.go()?;
    let truths = target.finish()?.truths;
    let mut outcome = tracer.finish()?;
    let records = records(&outcome)?;
    let last = records.last().context("the stream has a last record")?;
    outcome.report = Some(last["report"].clone());
    Ok((Traced { truths, outcome }, records))
}

fn records(outcome: &Outcome) -> Result<Vec<Value>> {
    let record = |line: &String| serde_json::from_str(line).with_context(|| line.clone());
    outcome.stdout.iter().map(record).collect()
}

fn number(record: &Value, key: &str) -> u64 {
    record[key].as_u64().unwrap_or(u64::MAX / 4)
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(text).collect()
}

/// What the records of events say of call paths. Each pinned close names as many pins as were live at it, each number
/// of a path is told once, and before it is used.
fn told(records: &[Value]) -> Result<BTreeMap<Key, Counts>> {
    let mut paths: BTreeMap<u64, (u64, Vec<String>)> = BTreeMap::new();
    let mut places = BTreeMap::new();
    let mut counts: BTreeMap<Key, Counts> = BTreeMap::new();
    let mut freed = Vec::new();
    for record in records {
        let granule = [&record["instance"], &record["granule"], &record["generation"]];
        let granule = (number(record, "target"), granule.map(ToString::to_string));
        match record["record"].as_str() {
            Some("path") => {
                let path = (number(record, "target"), strings(&record["frames"]));
                let known = paths.insert(number(record, "path"), path);
                ensure!(known.is_none(), "told twice: {record}");
            }
            Some("close") if record["verdict"] == "pinned" => {
                let all = record["pinned_by"].as_array().with_context(|| record.to_string())?;
                let pins: u64 = all.iter().map(|path| number(path, "pins")).sum();
                ensure!(pins == number(record, "live"), "{pins} pins are named: {record}");
                let mut seen = BTreeSet::new();
                for by in all {
                    ensure!(seen.insert(number(by, "path")), "named twice: {record}");
                    let (target, frames) = paths.get(&number(by, "path")).context("not told")?;
                    let key = (*target, frames.clone(), text(&record["place"]));
                    let sum = counts.entry(key).or_default();
                    sum[0] += 1;
                    sum[1] += number(by, "pins");
                }
                places.insert(granule, text(&record["place"]));
            }
            Some("close") => ensure!(record.get("pinned_by").is_none(), "{record}"),
            Some("pin_freed") => {
                ensure!(record["pin_delay_seconds"].is_number(), "{record}");
                freed.push((granule, number(record, "path")));
            }
            _ => {}
        }
    }
    for (granule, path) in freed {
        let (target, frames) = paths.get(&path).context("not told")?;
        let place = places.get(&granule).with_context(|| format!("no close of {granule:?}"))?;
        counts.entry((*target, frames.clone(), place.clone())).or_default()[2] += 1;
    }
    Ok(counts)
}

/// The same of the sites of a report, as far as they pin.
fn reported(report: &Value) -> BTreeMap<Key, Counts> {
    let mut counts = BTreeMap::new();
    for target in report["targets"].as_array().into_iter().flatten() {
        for allocator in target["allocators"].as_array().into_iter().flatten() {
            for site in allocator["sites"].as_array().into_iter().flatten() {
                let frames = site["frames"].as_array().into_iter().flatten();
                let frames = frames.filter_map(|frame| text(&frame["address"])).collect();
                let key = (number(target, "target"), frames, text(&site["opened_at"]["place"]));
                let pins = number(site, "objects");
                let freed = pins - number(site, "objects_live");
                if pins > 0 {
                    counts.insert(key, [number(site, "granules_pinned"), pins, freed]);
                }
            }
        }
    }
    counts
}

/// Sixteen kinds of call paths, told at once and in some twenty parts: the granules and pins of each, and the pins
/// that were freed, are in the stream what they are in truth.
#[test]
fn who_pins_is_in_the_stream() -> Result<()> {
    if requires_root() {
        for interval in ["60s", "20ms"] {
            let (traced, records) = streamed(
                "paths",
                &["rounds=300"],
                "paths",
                &["--level", "stacks", "--interval", interval],
            )?;
            Sites::default().check(&traced);
            let (told, reported) = (told(&records)?, reported(traced.outcome.report()));
            assert_eq!(told, reported, "{interval}");
            assert!(told.len() >= 16 && told.values().any(|counts| counts[2] > 0), "{told:?}");
        }
    }
    Ok(())
}

/// Children that are followed have paths of their own, with numbers of the same stream.
#[test]
fn children() -> Result<()> {
    if requires_root() {
        let args = ["fork=1", "rounds=50"];
        let (traced, records) =
            streamed("paths", &args, "paths", &["--level", "stacks", "--follow-forks"])?;
        ensure!(traced.truths.len() == 2, "parent and child");
        Sites::default().check(&traced);
        assert_eq!(told(&records)?, reported(traced.outcome.report()));
    }
    Ok(())
}

/// Eight threads free pins of granules that others close, while sweeps are under way: no pin is missed, none is told
/// twice. (Objects that come after the close, of which this program has some, are named beside its pins.)
#[test]
fn threads() -> Result<()> {
    if requires_root() {
        let args = ["events=80000"];
        let (traced, records) =
            streamed("threads", &args, "arena", &["--level", "stacks", "--interval", "10ms"])?;
        let report = traced.outcome.report();
        assert_eq!(report["losses"]["ring_full"], 0);
        let (mut closes, mut more) = (0, 0);
        for record in &records {
            if record["record"] == "close" && record["verdict"] == "pinned" {
                closes += 1;
                let all = record["pinned_by"].as_array().with_context(|| record.to_string())?;
                let pins: u64 = all.iter().map(|path| number(path, "pins")).sum();
                ensure!(pins >= number(record, "live"), "a pin is missing: {record}");
                more += pins - number(record, "live");
            }
        }
        assert_eq!(report["targets"][0]["allocators"][0]["granules"]["pinned"], closes);
        let late = number(&report["losses"], "allocs_after_close");
        assert!(more <= late, "{more} too many at {closes} closes; {late} came late");
    }
    Ok(())
}

/// At other levels nobody is named.
#[test]
fn other_levels_name_nobody() -> Result<()> {
    if requires_root() {
        let (_, records) = streamed("paths", &["rounds=20"], "paths", &["--level", "objects"])?;
        let kinds = ["path", "pin_freed"].map(Value::from);
        assert!(records.iter().all(|record| !kinds.contains(&record["record"])));
        assert!(records.iter().any(|record| record["verdict"] == "pinned"));
        assert!(records.iter().all(|record| record.get("pinned_by").is_none()));
    }
    Ok(())
}
