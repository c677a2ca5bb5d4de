use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read as _,
};

use flate2::read::GzDecoder;

use super::*;
use crate::{Options, export::escape, facts::Snapshot, samples};

fn decoded(report: &Report) -> Profile {
    let mut out = Vec::new();
    Pprof.report(report, &Style::default(), &mut out).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(&out[..]).read_to_end(&mut bytes).unwrap();
    Profile::decode(&bytes[..]).unwrap()
}

fn built(snapshot: &Snapshot) -> Report {
    Report::build(snapshot, &Options::default())
}

/// Ids are unique and not 0, everything that is referred to is there, and every sample has a value per type.
fn check(profile: &Profile) {
    assert_eq!(profile.string_table[0], "");
    let unique: BTreeSet<&String> = profile.string_table.iter().collect();
    assert_eq!(unique.len(), profile.string_table.len());
    let is_string = |number: i64| {
        let found = usize::try_from(number).ok().and_then(|at| profile.string_table.get(at));
        assert!(found.is_some(), "no string {number}");
    };
    let ids = |ids: Vec<u64>| {
        let set: BTreeSet<u64> = ids.iter().copied().collect();
        assert!(set.len() == ids.len() && !set.contains(&0));
        set
    };
    let mappings = ids(profile.mapping.iter().map(|mapping| mapping.id).collect());
    let functions = ids(profile.function.iter().map(|function| function.id).collect());
    let locations = ids(profile.location.iter().map(|location| location.id).collect());
    for value in &profile.sample_type {
        is_string(value.kind);
        is_string(value.unit);
    }
    for mapping in &profile.mapping {
        is_string(mapping.filename);
        is_string(mapping.build_id);
    }
    for function in &profile.function {
        [function.name, function.system_name, function.filename].into_iter().for_each(is_string);
    }
    for location in &profile.location {
        assert!(!location.line.is_empty());
        assert!(location.line.iter().all(|line| functions.contains(&line.function_id)));
        if location.mapping_id == 0 {
            continue;
        }
        assert!(mappings.contains(&location.mapping_id));
        let mapping = &profile.mapping[location.mapping_id as usize - 1];
        assert!((mapping.memory_start..mapping.memory_limit).contains(&location.address));
    }
    for sample in &profile.sample {
        assert_eq!(sample.value.len(), profile.sample_type.len());
        assert!(!sample.location_id.is_empty());
        assert!(sample.location_id.iter().all(|id| locations.contains(id)));
        for label in &sample.label {
            is_string(label.key);
            is_string(label.str);
        }
    }
    profile.comment.iter().copied().chain([profile.default_sample_type]).for_each(is_string);
}

fn text(profile: &Profile, number: i64) -> &str {
    &profile.string_table[usize::try_from(number).unwrap()]
}

fn types(profile: &Profile) -> Vec<(&str, &str)> {
    let types = profile.sample_type.iter();
    types.map(|value| (text(profile, value.kind), text(profile, value.unit))).collect()
}

fn sums(profile: &Profile) -> Vec<i64> {
    (0..profile.sample_type.len())
        .map(|at| profile.sample.iter().map(|sample| sample.value[at]).sum())
        .collect()
}

/// Functions of a sample, the innermost first, inlined ones at their place.
fn functions<'a>(profile: &'a Profile, sample: &Sample) -> Vec<&'a str> {
    let lines = sample.location_id.iter().flat_map(|id| &profile.location[*id as usize - 1].line);
    lines.map(|line| text(profile, profile.function[line.function_id as usize - 1].name)).collect()
}

/// The file is consistent, its sums are the report's, and its paths are the sites'.
#[test]
fn pins_of_a_report() {
    let report = built(&samples::stacks_snapshot());
    let profile = decoded(&report);
    check(&profile);
    assert_eq!(types(&profile), PINS);
    assert_eq!(text(&profile, profile.default_sample_type), "pinned_granules");
    let delays = 424 * 50_000_000 + 50 * 1_000_000;
    assert_eq!(sums(&profile), [2_474, 2_474, 2_474 * 256, delays]);
    assert_eq!(profile.duration_nanos, 10_000_000_000);
    // The path that pins nothing is not in it.
    assert_eq!(profile.sample.len(), 3);
    assert_eq!(
        functions(&profile, &profile.sample[0]),
        [
            "make_session",
            "log_in",
            "dispatch",
            "handle_request",
            "serve",
            "main",
            "__libc_start_call_main",
            "__libc_start_main",
            "_start"
        ]
    );
    let cut = functions(&profile, &profile.sample[2]);
    assert_eq!(cut, ["libplugin.so+0x777", "[cut: no unwind information]"]);
    let lines: Vec<i64> = profile.location[1].line.iter().map(|line| line.line).collect();
    assert_eq!(lines, [131, 84, 201]);
    let first = &profile.mapping[0];
    assert_eq!((text(&profile, first.filename), first.memory_start), ("svc", 0x40_0000));
}

/// A sample says which process, profile, place of opening, class and threads it belongs to.
#[test]
fn labels_of_a_sample() {
    let profile = decoded(&built(&samples::stacks_snapshot()));
    let mut labels: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for label in &profile.sample[0].label {
        labels.entry(text(&profile, label.key)).or_default().push(text(&profile, label.str));
    }
    assert_eq!(labels["process"], ["svc (4242)"]);
    assert_eq!(labels["profile"], ["epoch-demo"]);
    assert_eq!(labels["instance"], ["0x7f0000001000"]);
    assert_eq!(labels["opened_at"], ["epoch_open"]);
    assert_eq!(labels["class"], ["fundamental"]);
    assert_eq!(labels["thread"], ["worker-1", "worker-2"]);
}

/// Where nothing can be pinned, it shows what is live and what is allocated.
#[test]
fn holders_of_a_report() {
    let profile = decoded(&built(&samples::holders_snapshot()));
    check(&profile);
    assert_eq!(types(&profile), HOLDS);
    assert_eq!(sums(&profile), [200, 20_000, 3_200, 320_000]);
}

/// An address means something in one process only: another process has locations and mappings of its own.
#[test]
fn processes_share_no_addresses() {
    let mut snapshot = samples::stacks_snapshot();
    let mut other = snapshot.targets[0].clone();
    (other.target, other.pid) = (1, 4243);
    snapshot.targets.push(other);
    let (one, both) = (decoded(&built(&samples::stacks_snapshot())), decoded(&built(&snapshot)));
    check(&both);
    assert_eq!(both.location.len(), 2 * one.location.len());
    assert_eq!(both.mapping.len(), 2 * one.mapping.len());
    assert_eq!(both.function.len(), one.function.len());
    let doubled: Vec<i64> = sums(&one).iter().map(|sum| 2 * sum).collect();
    assert_eq!(sums(&both), doubled);
}

/// Reports of every kind and level give consistent files, also without call paths; an incomplete one says so.
#[test]
fn every_sample_is_consistent() {
    for (name, snapshot) in samples::all() {
        let report = built(&snapshot);
        let profile = decoded(&report);
        check(&profile);
        let told = text(&profile, profile.comment[1]);
        assert_eq!(told.starts_with("INCOMPLETE"), !report.complete, "{name}: {told}");
    }
}

/// No name acts on the terminal that a viewer prints it to, and no number overflows.
#[test]
fn hostile_reports() {
    let mut snapshot = samples::stacks_snapshot();
    let evil = "f;\u{1b}[2J\n<b>\u{202e}".repeat(1_000);
    for frame in snapshot.targets[0].frames.values_mut() {
        (frame.function, frame.file) = (Some(evil.clone()), Some(evil.clone()));
        (frame.module, frame.module_offset) =
            (Some(evil.clone()), Some("0xffffffffffffffff".to_owned()));
    }
    let mut report = built(&snapshot);
    report.window.seconds = f64::MAX;
    for site in report.targets[0].allocators[0].sites.iter_mut().flatten() {
        site.granules_pinned = u64::MAX;
        site.pin_delay_total_seconds = f64::INFINITY;
        site.threads.push(evil.clone());
    }
    report.targets[0].allocators[0].sites.as_mut().unwrap()[0].frames[0].address =
        Some("0xffffffffffffffff".to_owned());
    let profile = decoded(&report);
    check(&profile);
    assert_eq!(profile.sample[0].value[0], i64::MAX);
    for text in &profile.string_table {
        assert!(!text.chars().any(escape::is_hostile), "{text:?}");
        assert!(text.len() < 20_000);
    }
}

/// A module has its build id, unless another of the same name makes it ambiguous, or there is none.
#[test]
fn build_ids() {
    let ids = |report: &Report| -> BTreeMap<String, String> {
        let profile = decoded(report);
        check(&profile);
        let told = |mapping: &proto::Mapping| {
            let of = |number| text(&profile, number).to_owned();
            (of(mapping.filename), of(mapping.build_id))
        };
        profile.mapping.iter().map(told).collect()
    };
    let mut report = built(&samples::stacks_snapshot());
    let module = report.targets[0].modules[0].clone();
    assert_eq!(module.name, "svc");
    let told = ids(&report);
    assert_eq!(told["svc"], module.build_id.clone().unwrap());
    assert!(told.iter().any(|(name, id)| name != "svc" && id.is_empty()), "{told:?}");
    report.targets[0].modules.push(module);
    assert_eq!(ids(&report)["svc"], "");
}
