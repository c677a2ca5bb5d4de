//! Two reports of level `stacks`, as they are saved before and after a change of the program: most of what
//! leaked is mended, something else leaks now, and the build lies elsewhere.

use std::time::Duration;

use drainprof_common::maps::Totals;
use drainprof_profile::Level;

use super::{
    MS, NOW_NS,
    facts::{curve, drain, hist},
    snapshot,
};
use crate::{
    Frame, Inlined, OpenedAt, Options, PathEnd, PinClass, PinClasses, Report, Site, SiteFrame,
    Spread, facts::AllocatorFacts,
};

/// Both, by name.
pub(crate) fn saved() -> [(&'static str, Report); 2] {
    [("before", before()), ("after", after())]
}

/// Ten seconds; three sites pin.
pub(crate) fn before() -> Report {
    let mut report = report(10, 10_000, [2_474, 2_074], "/usr/bin/svc");
    sites(
        &mut report,
        vec![
            leak(&session(0x40_1000), 2_000, 2_000),
            near_miss(&cache(0x40_2000), 400),
            leak(&stripped(0x7f00_0000), 74, 74),
        ],
    );
    report
}

/// Twenty seconds of another build in another place.
pub(crate) fn after() -> Report {
    let mut report = report(20, 20_000, [1_400, 600], "/opt/svc-2/svc");
    sites(
        &mut report,
        vec![
            near_miss(&cache(0x50_2000), 800),
            leak(&retry(0x50_3000), 500, 500),
            leak(&session(0x50_1000), 100, 100),
        ],
    );
    report
}

fn report(seconds: u64, closes: u64, [pinned, retained]: [u64; 2], exe: &str) -> Report {
    let late = pinned - retained;
    let facts = AllocatorFacts {
        level: Level::Stacks,
        totals: Totals {
            opened: closes,
            drainable: closes - pinned,
            pinned,
            allocated: 2 * closes,
            freed: 2 * closes - retained,
            allocated_bytes: 512 * closes,
            freed_bytes: 512 * closes - 256 * retained,
            pinned_objects: pinned,
            pinned_bytes: 4096 * pinned,
            late_drained: late,
            closed_bytes: 4096 * closes,
            ..Totals::default()
        },
        retained_granules: retained,
        retained_bytes: 4096 * retained,
        pin_delays: hist(late, 1_200_000),
        lifetimes: [(0x40_1234, hist(closes, 16 * MS))].into(),
        over_time: curve(|tick| retained * tick / 200),
        ..drain()
    };
    let mut snapshot = snapshot(vec![facts]);
    snapshot.window = Duration::from_secs(seconds);
    snapshot.now_ns = NOW_NS;
    exe.clone_into(&mut snapshot.targets[0].exe);
    let options = Options { kernel: "6.18.5".to_owned(), ..Options::default() };
    let mut report = Report::build(&snapshot, &options);
    "0.1.0".clone_into(&mut report.tool.version);
    report
}

/// Shares and the total follow from the sites.
fn sites(report: &mut Report, mut sites: Vec<Site>) {
    let allocator = &mut report.targets[0].allocators[0];
    for site in &mut sites {
        site.share = Some(site.granules_pinned as f64 / allocator.granules.pinned as f64);
        site.last_seen_seconds = report.window.seconds - 0.25;
    }
    allocator.sites_total = Some(sites.len() as u64);
    allocator.sites = Some(sites);
}

/// A site whose pins are never freed.
fn leak(frames: &[SiteFrame], pinned: u64, live: u64) -> Site {
    Site {
        granules_pinned: pinned,
        pins: pinned,
        pin_bytes: Some(256 * pinned),
        pins_live: live,
        pin_bytes_live: Some(256 * live),
        granules_retained: live,
        retained_bytes: Some(4096 * live),
        class: Some(PinClass::Fundamental),
        classes: PinClasses { fundamental: pinned, ..PinClasses::default() },
        allocated: pinned,
        allocated_bytes: Some(256 * pinned),
        live: Some(live),
        live_bytes: Some(256 * live),
        first_seen_seconds: 0.25,
        threads: vec!["worker-1".to_owned(), "worker-2".to_owned()],
        opened_at: opened_at(),
        path_end: PathEnd::Start,
        frames: frames.to_vec(),
        ..Site::default()
    }
}

/// A site whose pins are freed shortly after the close.
fn near_miss(frames: &[SiteFrame], pinned: u64) -> Site {
    Site {
        pins_live: 0,
        pin_bytes_live: Some(0),
        granules_retained: 0,
        retained_bytes: Some(0),
        pin_delay_seconds: Spread { p50: Some(0.001_2), p99: Some(0.001_2), max: Some(0.001_2) },
        class: Some(PinClass::NearMiss),
        classes: PinClasses { near_miss: pinned, ..PinClasses::default() },
        live: Some(0),
        live_bytes: Some(0),
        ..leak(frames, pinned, 0)
    }
}

fn opened_at() -> OpenedAt {
    OpenedAt {
        place: Some("0x401234".to_owned()),
        frame: frame("epoch_turn", "epoch.c", 31, "svc"),
    }
}

fn frame(function: &str, file: &str, line: u64, module: &str) -> Frame {
    Frame {
        function: Some(function.to_owned()),
        offset: Some(0x1c),
        file: Some(format!("/src/{file}")),
        line: Some(line),
        module: Some(module.to_owned()),
        module_offset: Some("0x101c".to_owned()),
        inlined: Vec::new(),
    }
}

fn at(address: u64, frame: Frame) -> SiteFrame {
    SiteFrame { address: Some(format!("{address:#x}")), frame }
}

fn main(base: u64) -> [SiteFrame; 2] {
    [
        at(base + 0x300, frame("handle_request", "server.c", 84, "svc")),
        at(base + 0x400, frame("main", "server.c", 140, "svc")),
    ]
}

/// A function that was inlined into another.
fn session(base: u64) -> Vec<SiteFrame> {
    let mut made = frame("make_session", "session.c", 41, "svc");
    made.inlined = vec![Inlined {
        function: "session_alloc".to_owned(),
        file: Some("/src/session.h".to_owned()),
        line: Some(12),
    }];
    [vec![at(base, made)], main(base).to_vec()].concat()
}

fn cache(base: u64) -> Vec<SiteFrame> {
    let put = frame("cache_put", "cache.c", 19, "libcache.so.1");
    [vec![at(base, put)], main(base).to_vec()].concat()
}

fn retry(base: u64) -> Vec<SiteFrame> {
    [vec![at(base, frame("retry_push", "retry.c", 58, "svc"))], main(base).to_vec()].concat()
}

/// Frames of a library without symbols.
fn stripped(base: u64) -> Vec<SiteFrame> {
    let nameless = |offset: u64| Frame {
        module: Some("libplugin.so".to_owned()),
        module_offset: Some(format!("{offset:#x}")),
        ..Frame::default()
    };
    vec![at(base + 0x4f0, nameless(0x4f0)), at(base + 0x9a0, nameless(0x9a0))]
}
