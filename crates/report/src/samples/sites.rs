//! Samples of the level `stacks`: who pins, and who holds where nothing can be pinned.

use std::sync::Arc;

use drainprof_common::hist::Hist;
use drainprof_process::{Frame, Inlined, PathEnd};
use drainprof_profile::{Expr, Key, Level};

use super::{
    MS, NOW_NS,
    facts::{bulk, curve, drain, hist},
    snapshot,
};
use crate::{
    facts::{CallPath, HeldSum, Lateness, SiteFacts, Snapshot, Survivors},
    series::SiteSeries,
};

/// Return addresses of the sample program.
mod at {
    pub(super) const SESSION: u64 = 0x40_2010;
    /// Where granules are opened; the samples of all levels have it.
    pub(super) const OPEN: u64 = 0x40_1234;
    pub(super) const HANDLE: u64 = 0x40_1288;
    pub(super) const CACHE: u64 = 0x40_3abc;
    pub(super) const BUFFER: u64 = 0x40_6001;
    pub(super) const SERVE: u64 = 0x40_5120;
    pub(super) const MAIN: u64 = 0x40_60fe;
    pub(super) const LIBC: u64 = 0x7f00_1002_724a;
    pub(super) const LIBC_OUTER: u64 = 0x7f00_1002_7305;
    pub(super) const START: u64 = 0x40_1101;
    pub(super) const PLUGIN: u64 = 0x7f00_2000_0777;
}

/// A site whose objects pin so many granules, one object of 256 bytes each, and whose pins are all live.
#[must_use]
pub fn site(granules_pinned: u64) -> SiteFacts {
    SiteFacts {
        path: Arc::default(),
        opened_at: at::OPEN,
        allocated: 2 * granules_pinned,
        allocated_bytes: 512 * granules_pinned,
        live: Some(granules_pinned),
        live_bytes: 256 * granules_pinned,
        granules_pinned,
        granules_unsure: 0,
        pins: granules_pinned,
        pin_bytes: 256 * granules_pinned,
        pins_live: granules_pinned,
        pins_live_bytes: 256 * granules_pinned,
        granules_retained: granules_pinned,
        retained_bytes: 4096 * granules_pinned,
        granules_held: 0,
        granules_held_alone: 0,
        held_objects: HeldSum::default(),
        held_bytes: HeldSum::default(),
        delays: Hist::new(),
        lateness: Lateness { undecided: granules_pinned, ..Lateness::default() },
        oldest_close_ns: NOW_NS - 9_000 * MS,
        first_ns: NOW_NS - 9_900 * MS,
        last_ns: NOW_NS - 20 * MS,
        threads: vec!["worker-1".to_owned(), "worker-2".to_owned()],
        more_threads: false,
        lives: Hist::new(),
        survivors: Survivors::default(),
        retained_since: Survivors::default(),
        oldest: Vec::new(),
        over_time: None,
    }
}

/// A site all of whose pins were freed after this time.
fn drained(granules: u64, delay_ns: u64, lateness: Lateness) -> SiteFacts {
    SiteFacts {
        live: Some(0),
        live_bytes: 0,
        pins_live: 0,
        pins_live_bytes: 0,
        granules_retained: 0,
        retained_bytes: 0,
        delays: hist(granules, delay_ns),
        lateness,
        oldest_close_ns: 0,
        ..site(granules)
    }
}

fn path(inner: &[u64]) -> Arc<CallPath> {
    let outer = [at::HANDLE, at::SERVE, at::MAIN, at::LIBC, at::LIBC_OUTER, at::START];
    Arc::new(CallPath { addresses: [inner, &outer].concat(), end: PathEnd::Start })
}

/// Four paths allocate; three of them pin, one of which could not be followed to its start.
#[must_use]
pub fn stacks_snapshot() -> Snapshot {
    let mut facts = drain();
    facts.level = Level::Stacks;
    let mut profile = (*facts.profile).clone();
    for probe in &mut profile.probes {
        probe.expressions.insert(Key::Object, Expr::Arg(2));
    }
    facts.profile = Arc::new(profile);
    let totals = &mut facts.totals;
    (totals.late_drained, totals.freed, totals.freed_bytes) = (474, 18_000, 4_608_000);
    (facts.retained_granules, facts.retained_bytes) = (2_000, 8_192_000);
    facts.over_time = curve(|tick| 10 * tick);
    facts.pin_delays = hist(424, 50 * MS);
    facts.pin_delays.merge(&hist(50, MS));
    let lateness = Lateness { fundamental: 1_800, undecided: 200, ..Lateness::default() };
    let series = |granules: fn(u64) -> u64| {
        let [came, went] = [0; 2];
        Some(SiteSeries { held: curve(granules), came, went, ..SiteSeries::default() })
    };
    let sessions = SiteFacts {
        path: path(&[at::SESSION]),
        lateness,
        over_time: series(|tick| 10 * tick),
        ..site(2_000)
    };
    let lateness = Lateness { moderate: 424, ..Lateness::default() };
    let cache = SiteFacts {
        path: path(&[at::CACHE]),
        over_time: series(|tick| if tick < 200 { 2 } else { 0 }),
        ..drained(424, 50 * MS, lateness)
    };
    let lateness = Lateness { near: 50, ..Lateness::default() };
    let cut = CallPath { addresses: vec![at::PLUGIN], end: PathEnd::NoUnwindInfo };
    let plugin = SiteFacts { path: Arc::new(cut), more_threads: true, ..drained(50, MS, lateness) };
    let buffers = SiteFacts {
        path: path(&[at::BUFFER]),
        allocated: 15_052,
        allocated_bytes: 15_052 * 256,
        ..drained(0, 0, Lateness::default())
    };
    facts.sites = vec![buffers, plugin, cache, sessions];
    named(snapshot(vec![facts]))
}

/// Objects of a pool go with it, so nothing is pinned: two paths hold what is live.
#[must_use]
pub fn holders_snapshot() -> Snapshot {
    let mut facts = bulk();
    facts.level = Level::Stacks;
    let held = |inner, live, live_bytes, allocated| SiteFacts {
        path: path(&[inner]),
        opened_at: 0xa0,
        live: Some(live),
        live_bytes,
        allocated,
        allocated_bytes: 100 * allocated,
        ..drained(0, 0, Lateness::default())
    };
    facts.sites = vec![held(at::BUFFER, 3, 300, 3_000), held(at::SESSION, 197, 19_700, 200)];
    named(snapshot(vec![facts]))
}

/// Who holds the pages: one path all of them, the other every second one beside it.
pub(super) fn hold_pages(of: &mut Snapshot) {
    let held = |inner, granules_held, granules_held_alone, allocated| SiteFacts {
        path: path(&[inner]),
        opened_at: 0,
        live: Some(granules_held),
        live_bytes: 100 * granules_held,
        granules_held,
        granules_held_alone,
        held_objects: even(granules_held, 1),
        held_bytes: even(granules_held, 100),
        allocated,
        allocated_bytes: 100 * allocated,
        ..drained(0, 0, Lateness::default())
    };
    of.targets[0].allocators[0].sites =
        vec![held(at::BUFFER, 50, 0, 1_000), held(at::SESSION, 100, 50, 2_999)];
    *of = named(of.clone());
}

/// So many granules hold the same each.
fn even(granules: u64, held: u64) -> HeldSum {
    let mut sum = HeldSum::default();
    (0..granules).for_each(|_| sum.add(held));
    sum
}

fn named(mut snapshot: Snapshot) -> Snapshot {
    let plain = |function: &str, file: &str, line, module: &str, module_offset| Frame {
        function: Some(function.to_owned()),
        offset: Some(0x21),
        file: (!file.is_empty()).then(|| format!("/src/{file}")),
        line: (line > 0).then_some(line),
        module: Some(module.to_owned()),
        module_offset: Some(format!("{module_offset:#x}")),
        inlined: Vec::new(),
    };
    let inlined = |function: &str, line| Inlined {
        function: function.to_owned(),
        file: Some("/src/server.c".to_owned()),
        line: Some(line),
    };
    let handle = Frame {
        inlined: vec![inlined("dispatch", 84), inlined("log_in", 131)],
        ..plain("handle_request", "server.c", 201, "svc", 0x1288)
    };
    let plugin = Frame { function: None, offset: None, ..plain("", "", 0, "libplugin.so", 0x777) };
    let frames = &mut snapshot.targets[0].frames;
    frames.extend([
        (at::SESSION, plain("make_session", "session.c", 31, "svc", 0x2010)),
        (at::HANDLE, handle),
        (
            at::CACHE,
            plain("store::Cache<std::string, int>::put(int)", "cache.cc", 77, "svc", 0x3abc),
        ),
        (at::BUFFER, plain("make_buffer", "buffer.c", 12, "svc", 0x6001)),
        (at::SERVE, plain("serve", "server.c", 240, "svc", 0x5120)),
        (at::MAIN, plain("main", "main.c", 19, "svc", 0x60fe)),
        (at::LIBC, plain("__libc_start_call_main", "", 0, "libc.so.6", 0x2_724a)),
        (at::LIBC_OUTER, plain("__libc_start_main", "", 0, "libc.so.6", 0x2_7305)),
        (at::START, plain("_start", "", 0, "svc", 0x1101)),
        (at::PLUGIN, plugin),
    ]);
    snapshot
}
