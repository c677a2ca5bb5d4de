//! A recording, on the road of live data.

use std::collections::BTreeMap;

use drainprof_process::memory::{MemoryReading, Pressure};
use drainprof_profile::Level;
use drainprof_report::Cost;
use tempfile::tempdir;

use super::{BEGIN, options, report, window};
use crate::{
    Alert, AlertState, Labels, NodeState, NodeTarget, Outcome, SCHEMA,
    store::{History, Moment, StoreError, Who, Writer, replay},
};

fn state(step: u64) -> NodeState {
    let base = report("");
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: base.tool,
        unix_ms: BEGIN + step * 5000,
        uptime_seconds: step as f64 * 5.0,
        ready: true,
        killed: false,
        degraded: Vec::new(),
        complete: step != 3,
        incomplete: Vec::new(),
        losses: BTreeMap::new(),
        self_use: base.self_use,
        pressure: Some(Pressure::default()),
        targets: vec![NodeTarget {
            pid: 42,
            start_time: 4242,
            comm: "svc".to_owned(),
            exe: "/usr/bin/svc".to_owned(),
            labels: Labels { exe: "svc".to_owned(), ..Labels::default() },
            matched: true,
            level: Some(if step < 5 { Level::Boundary } else { Level::Stacks }),
            observed_ratio: None,
            reason: "as configured".to_owned(),
            since_unix_ms: BEGIN,
            memory: Some(MemoryReading { rss_bytes: step << 20, ..MemoryReading::default() }),
            rss_slope_bytes_per_second: None,
            rss_slope_interval: None,
            rss_r_squared: None,
            seconds_to_limit: None,
            faults_per_second: None,
            shares: None,
            heaps: None,
            cgroup_pressure: None,
            cost: Cost { hits: step, cpu_seconds: 0.0, cpu_ratio: None, measured: true },
            allocators: Vec::new(),
            findings: Vec::new(),
            alerts: vec![Alert {
                rule: "dsr_low".to_owned(),
                state: if step < 7 { AlertState::Pending } else { AlertState::Firing },
                since_unix_ms: BEGIN,
                message: "DSR 0.4".to_owned(),
            }],
        }],
        processes_late: 0,
        processes_given_up: 0,
        probes_put_off: 0,
        label_sets: Vec::new(),
        counts: Vec::new(),
        pushed: None,
        windows: if step < 5 {
            Vec::new()
        } else {
            let outcome = if step < 8 { Outcome::Running } else { Outcome::Finished };
            vec![window(1, BEGIN + 25_000, outcome)]
        },
    }
}

/// The same states give the same answers, live and replayed.
#[test]
fn same_as_live() {
    let directories = [tempdir().unwrap(), tempdir().unwrap()];
    let [live, replayed] = directories.each_ref().map(|directory| options(directory.path()));
    let mut writer = Writer::open(&live).unwrap();
    let mut recording = Vec::new();
    for step in 0..10 {
        let state = state(step);
        writer.append(&Moment::of(&state)).unwrap();
        for record in &state.windows {
            writer.window(record, None).unwrap();
        }
        serde_json::to_writer(&mut recording, &state).unwrap();
        recording.extend_from_slice(b"\n\n");
    }
    let mut other = Writer::open(&replayed).unwrap();
    assert_eq!(replay(&mut recording.as_slice(), &mut other).unwrap(), 10);
    let [live, replayed] = [live, replayed].map(|options| History::open(&options.path).unwrap());
    assert_eq!(live.processes(0).unwrap(), replayed.processes(0).unwrap());
    assert_eq!(live.series(Who::Pid(42), 0).unwrap(), replayed.series(Who::Pid(42), 0).unwrap());
    assert_eq!(live.events(None, 0).unwrap(), replayed.events(None, 0).unwrap());
    assert_eq!(live.windows(9).unwrap(), replayed.windows(9).unwrap());
    assert_eq!(replayed.events(None, 0).unwrap().len(), 3);
    assert_eq!(replayed.windows(9).unwrap()[0].outcome, Outcome::Finished);
    assert!(!replayed.processes(0).unwrap()[0].complete);
}

/// The picture of a process has a curve of resident memory with a point per moment, named with process and last value.
#[test]
fn picture() {
    let directory = tempdir().unwrap();
    let options = options(directory.path());
    let mut writer = Writer::open(&options).unwrap();
    for step in 0..10 {
        writer.append(&Moment::of(&state(step))).unwrap();
    }
    let series = History::open(&options.path).unwrap().series(Who::Pid(42), 0).unwrap();
    let course = crate::history::Course { since_unix_ms: 0, series, events: Vec::new() };
    let mut out = Vec::new();
    crate::history::course_svg(&course, &|unix_ms| unix_ms.to_string(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let points = text.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
    assert_eq!(points.split(' ').count(), 10);
    assert!(text.contains("resident memory of svc (42): "), "{text}");
    assert!(text.contains(&format!("{BEGIN} to {}", BEGIN + 45_000)), "{text}");
}

/// A line that is no state is reported with its number; what came before it is kept.
#[test]
fn lines_that_are_no_states() {
    let good = serde_json::to_string(&state(1)).unwrap();
    let other = good.replacen(SCHEMA, "drainprof.node/9", 1);
    for bad in ["{", "[]", "\u{0}", &other, &good[..good.len() / 2]] {
        let directory = tempdir().unwrap();
        let options = options(directory.path());
        let mut writer = Writer::open(&options).unwrap();
        let recording = format!("{good}\n{bad}\n{good}\n");
        let refused = replay(&mut recording.as_bytes(), &mut writer);
        assert!(matches!(refused, Err(StoreError::Line { line: 2, .. })), "{bad}: {refused:?}");
        assert_eq!(History::open(&options.path).unwrap().processes(0).unwrap().len(), 1);
    }
}
