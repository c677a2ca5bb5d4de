//! The history under load, at its bounds, damaged and killed.

mod bounds;
mod hostile;
mod kept;
mod killed;
mod past;
mod replayed;

use std::path::Path;

use drainprof_process::memory::MemoryReading;
use drainprof_profile::Level;
use drainprof_report::{Counts, Held, Host, Report, SCHEMA, SelfUse, Tool, Window};

use super::{Moment, Options, ProcessMoment, ProfileCounts, ProfileMoment};
use crate::{Labels, Outcome, WindowRecord};

/// The time of the first reading, in milliseconds since 1970.
const BEGIN: u64 = 1_700_000_000_000;

fn options(directory: &Path) -> Options {
    Options {
        path: directory.join("history.db"),
        boot: Some("a boot".to_owned()),
        ..Options::default()
    }
}

/// A process that has opened `opened` granules, of which a tenth was pinned.
fn process(pid: u32, opened: u64) -> ProcessMoment {
    let pinned = opened / 10;
    let counts = ProfileCounts {
        granules: Counts { opened, drainable: opened - pinned, pinned, unknown: 0 },
        held: Held {
            open_now: 3,
            retained_granules: Some(pinned),
            retained_bytes: Some(pinned * 4096),
        },
    };
    ProcessMoment {
        pid,
        start_time: 1000 + u64::from(pid),
        comm: "svc".to_owned(),
        exe: "/usr/bin/svc".to_owned(),
        labels: Labels { exe: "svc".to_owned(), ..Labels::default() },
        level: Some(Level::Boundary),
        reason: "as configured".to_owned(),
        memory: Some(MemoryReading {
            rss_bytes: (100 << 20) + opened,
            vsz_bytes: 1 << 30,
            cgroup_limit_bytes: Some(4 << 30),
            ..MemoryReading::default()
        }),
        hits: opened * 2,
        cost_seconds: opened as f64 * 1e-6,
        profiles: vec![ProfileMoment {
            profile: "epoch-demo".to_owned(),
            kind: "drain".to_owned(),
            counts,
        }],
        ..ProcessMoment::default()
    }
}

fn moment(unix_ms: u64, processes: Vec<ProcessMoment>) -> Moment {
    Moment {
        unix_ms,
        complete: true,
        self_cpu_seconds: 0.5,
        self_rss_bytes: 20 << 20,
        processes,
        ..Moment::default()
    }
}

fn window(id: u64, began_unix_ms: u64, outcome: Outcome) -> WindowRecord {
    WindowRecord {
        id,
        pid: 42,
        comm: "svc".to_owned(),
        exe: "/usr/bin/svc".to_owned(),
        asked_by: "user".to_owned(),
        why: "it was asked for".to_owned(),
        began_unix_ms,
        seconds: 60.0,
        outcome,
        has_report: false,
    }
}

/// A report without targets, whose kernel is `padding`.
fn report(padding: &str) -> Report {
    Report {
        schema: SCHEMA.to_owned(),
        tool: Tool { name: "drainprof".to_owned(), version: "0".to_owned() },
        host: Host { kernel: padding.to_owned() },
        complete: true,
        losses: std::collections::BTreeMap::new(),
        window: Window { seconds: 60.0, duty: None },
        pressure: None,
        self_use: SelfUse {
            cpu_seconds: 0.0,
            cpu_ratio: None,
            rss_bytes: 0,
            peak_rss_bytes: 0,
            map_bytes: 0,
        },
        symbols: None,
        findings: Vec::new(),
        system: false,
        targets: Vec::new(),
    }
}

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}
