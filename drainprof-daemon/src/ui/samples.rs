//! States for tests: a small node in which everything occurs, hostile names included.

use std::collections::BTreeMap;

use drainprof_node::{
    Alert, AlertState, Labels, NodeState, NodeTarget, Outcome, SCHEMA, WindowRecord,
};
use drainprof_process::memory::{MemoryReading, Pressure, Waiting};
use drainprof_profile::Level;
use drainprof_report::{
    Allocator, Bucket, Cost, Finding, Frame, Granules, Growth, Kind, Lifetimes, OpenGranule,
    PathEnd, PinClass, PinnedGranule, Report, Retention, SelfUse, Severity, Site, SiteFrame, Tool,
};

/// When the first state is taken.
pub(super) const BEGAN: u64 = 1_700_000_000_000;

pub(super) fn allocator(profile: &str) -> Allocator {
    Allocator::unknown(profile, Kind::Drain, Level::Boundary)
}

pub(super) fn open(age_seconds: Option<f64>) -> OpenGranule {
    OpenGranule {
        id: "0x1".to_owned(),
        generation: 0,
        age_seconds,
        live: None,
        live_bytes: None,
        bytes: None,
        label: None,
        parent: None,
        place: None,
        opened_by: None,
        overdue: false,
    }
}

pub(super) fn pinned(closed_for_seconds: Option<f64>) -> PinnedGranule {
    PinnedGranule {
        id: "0x1".to_owned(),
        generation: 0,
        closed_for_seconds,
        live: 1,
        live_bytes: None,
        bytes: None,
        label: None,
        parent: None,
        place: None,
        opened_by: None,
    }
}

pub(super) fn target(pid: u32, comm: &str, allocators: Vec<Allocator>) -> NodeTarget {
    NodeTarget {
        pid,
        start_time: 7,
        comm: comm.to_owned(),
        exe: format!("/usr/bin/{comm}"),
        labels: Labels { exe: comm.to_owned(), ..Labels::default() },
        matched: true,
        level: allocators.iter().map(|allocator| allocator.level).max(),
        observed_ratio: None,
        reason: "the default".to_owned(),
        since_unix_ms: BEGAN,
        memory: Some(MemoryReading {
            rss_bytes: u64::from(pid) << 16,
            anon_bytes: u64::from(pid) << 15,
            file_bytes: u64::from(pid) << 15,
            vsz_bytes: u64::from(pid) << 20,
            ..MemoryReading::default()
        }),
        rss_slope_bytes_per_second: None,
        rss_slope_interval: None,
        rss_r_squared: None,
        seconds_to_limit: None,
        faults_per_second: Some(12.0),
        shares: None,
        heaps: None,
        cgroup_pressure: None,
        cost: Cost { hits: 20_000, cpu_seconds: 0.02, cpu_ratio: Some(0.002), measured: true },
        allocators,
        findings: Vec::new(),
        alerts: Vec::new(),
    }
}

/// Four processes: one that leaks and is examined in depth, a slab allocator, one without probes whose name is an
/// escape sequence, and one with two instances.
pub(crate) fn state() -> NodeState {
    let slab = Allocator { kind: Kind::Slab, ..allocator("slab-heap") };
    let twin = |instance: &str, dsr| Allocator {
        instance: Some(instance.to_owned()),
        dsr: Some(dsr),
        retention: Retention { granules: Some(1), bytes: Some(4096), ..Retention::default() },
        granules: Granules { closed: 100, drainable: 99, pinned: 1, ..Granules::default() },
        ..allocator("arena")
    };
    let mut service = target(4242, "svc", vec![leaking()]);
    service.rss_slope_bytes_per_second = Some(103_424.0);
    service.seconds_to_limit = Some(11_220.0);
    service.labels.unit = Some("svc.service".to_owned());
    service.alerts = vec![Alert {
        rule: "dsr_dropping".to_owned(),
        state: AlertState::Firing,
        since_unix_ms: BEGAN,
        message: "DSR fell from 0.98 to 0.75 in 2 min".to_owned(),
    }];
    service.findings = vec![Finding {
        code: "leak".to_owned(),
        severity: Severity::Warning,
        profile: Some("epoch-demo".to_owned()),
        instance: None,
        message: "retention grows by 990.0 KiB/s and does not stop".to_owned(),
    }];
    let mut hostile = target(99, "a\u{1b}[2Jb", Vec::new());
    hostile.memory = None;
    hostile.faults_per_second = None;
    hostile.reason = "the governor has taken its probes out".to_owned();
    NodeState {
        schema: SCHEMA.to_owned(),
        tool: Tool { name: "drainprof".to_owned(), version: "0.1.0".to_owned() },
        unix_ms: BEGAN,
        uptime_seconds: 11_220.0,
        ready: true,
        killed: false,
        degraded: Vec::new(),
        complete: true,
        incomplete: Vec::new(),
        losses: BTreeMap::new(),
        self_use: SelfUse {
            cpu_seconds: 1.0,
            cpu_ratio: Some(0.001),
            rss_bytes: 20 << 20,
            peak_rss_bytes: 21 << 20,
            map_bytes: 1 << 20,
        },
        pressure: Some(Pressure {
            some: Waiting { avg10: 0.012, ..Waiting::default() },
            full: Waiting::default(),
        }),
        targets: vec![
            hostile,
            target(512, "pool", vec![twin("0x7f0000001000", 0.99), twin("0x7f0000002000", 0.5)]),
            target(900, "heap", vec![slab]),
            service,
        ],
        processes_late: 0,
        processes_given_up: 0,
        probes_put_off: 0,
        label_sets: Vec::new(),
        counts: Vec::new(),
        windows: vec![
            window(1, Outcome::Finished, BEGAN - 100_000),
            window(2, Outcome::Running, BEGAN - 12_000),
        ],
        pushed: None,
    }
}

pub(super) fn window(id: u64, outcome: Outcome, began_unix_ms: u64) -> WindowRecord {
    WindowRecord {
        id,
        pid: 4242,
        comm: "svc".to_owned(),
        exe: "/usr/bin/svc".to_owned(),
        asked_by: if id == 1 { "dsr_dropping" } else { "user" }.to_owned(),
        why: "DSR fell from 0.98 to 0.75 in 2 min".to_owned(),
        began_unix_ms,
        seconds: 60.0,
        outcome,
        has_report: outcome != Outcome::Running,
    }
}

/// The same node two seconds later: the service has closed 2000 granules, 500 of them pinned.
pub(super) fn later() -> NodeState {
    let mut later = state();
    later.unix_ms += 2_000;
    later.uptime_seconds += 2.0;
    let granules = &mut later.targets[3].allocators[0].granules;
    granules.opened += 2_000;
    granules.closed += 2_000;
    granules.drainable += 1_500;
    granules.pinned += 500;
    later
}

fn leaking() -> Allocator {
    let frame = |function: &str, line| SiteFrame {
        address: Some("0x401000".to_owned()),
        frame: Frame {
            function: Some(function.to_owned()),
            file: Some("/src/svc.c".to_owned()),
            line: Some(line),
            module: Some("svc".to_owned()),
            ..Frame::default()
        },
    };
    let site = Site {
        granules_pinned: 2_474,
        share: Some(1.0),
        pins: 2_474,
        granules_retained: 2_474,
        retained_bytes: Some(10_133_504),
        class: Some(PinClass::Fundamental),
        verdict: Some(Growth::LinearLeak),
        path_end: PathEnd::Start,
        frames: vec![frame("make_session", 84), frame("handle_request", 120), frame("main", 200)],
        ..Site::default()
    };
    Allocator {
        level: Level::Stacks,
        dsr: Some(0.7526),
        granules: Granules {
            opened: 10_000,
            closed: 10_000,
            drainable: 7_526,
            pinned: 2_474,
            open_now: 1,
            open_peak: 16,
            ..Granules::default()
        },
        retention: Retention {
            granules: Some(2_474),
            bytes: Some(10_133_504),
            late_drained: Some(0),
            slope_bytes_per_second: Some(1_013_760.0),
            verdict: Some(Growth::LinearLeak),
            verdict_reason: Some("240 granules per second, hardly any goes again".to_owned()),
            forecast_bytes_per_day: Some(87.6e9),
            ..Retention::default()
        },
        lifetimes: Lifetimes {
            count: 10_000,
            histogram: vec![
                Bucket { le_seconds: 0.000_5, count: 9_000 },
                Bucket { le_seconds: 0.005, count: 990 },
                Bucket { le_seconds: 0.5, count: 10 },
            ],
            ..Lifetimes::default()
        },
        open_granules: vec![open(Some(30.0))],
        pinned_granules: vec![pinned(Some(9.0)), pinned(Some(8.0)), pinned(Some(0.5))],
        sites: Some(vec![site]),
        sites_total: Some(3),
        ..allocator("epoch-demo")
    }
}

/// A report without a process.
pub(super) fn report() -> Report {
    let text = serde_json::json!({
        "schema": "drainprof.report/1",
        "tool": { "name": "drainprof", "version": "0.1.0" },
        "host": { "kernel": "" },
        "complete": true,
        "losses": {},
        "window": { "seconds": 60.0 },
        "self": { "cpu_seconds": 0.0, "cpu_ratio": null, "rss_bytes": 0, "peak_rss_bytes": 0, "map_bytes": 0 },
        "symbols": null,
        "findings": [],
        "targets": [],
    });
    serde_json::from_value(text).unwrap()
}
