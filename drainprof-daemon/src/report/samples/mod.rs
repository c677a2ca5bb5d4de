//! Synthetic snapshots of every kind, level and corner, for the tests of `report` and `export`.

mod growth;
mod history;
mod saved;
mod sites;

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use drainprof_common::{
    hist::Hist,
    loss::{LOSS_COUNT, Loss},
    maps::Totals,
};

use crate::{
    account::{
        AllocatorFacts, Began, Curve, CurvePoint, Duty, DutyFacts, Ended, Frame, Frames,
        GranuleFacts, Inlined, Module, ProbeFacts, SelfUse, Snapshot, SymbolFacts, TargetFacts,
        Windows,
    },
    growth::{MemoryCourse, MemoryReading, Pressure, Waiting},
    plan,
    profile::{Address, Expr, Kind, Level, MatchRule, Probe, Profile, Role, Source},
};

pub(crate) use growth::growth_snapshot;
pub(crate) use history::history;
pub(crate) use saved::{after, before, saved};
pub(crate) use sites::{holders_snapshot, site, stacks_snapshot};

/// When all samples are taken.
pub(crate) const NOW_NS: u64 = 100_000_000_000;
const MS: u64 = 1_000_000;

/// All samples, by name.
pub(crate) fn all() -> Vec<(&'static str, Snapshot)> {
    vec![
        ("drain", drain_snapshot()),
        ("boundary", boundary_snapshot()),
        ("undecided", undecided_snapshot()),
        ("bulk", bulk_snapshot()),
        ("slab", slab_snapshot()),
        ("pages", pages_snapshot()),
        ("lifecycle", lifecycle_snapshot()),
        ("incomplete", incomplete_snapshot()),
        ("duty", duty_snapshot()),
        ("sampled", sampled_snapshot()),
        ("sampled_pages", sampled_pages_snapshot()),
        ("stacks", stacks_snapshot()),
        ("holders", holders_snapshot()),
        ("memory", memory_snapshot()),
        ("growth", growth_snapshot()),
        ("empty", Snapshot { targets: Vec::new(), window: Duration::ZERO, ..drain_snapshot() }),
    ]
}

/// The example of the documentation: 2474 of 10 000 closes pinned.
pub(crate) fn drain_snapshot() -> Snapshot {
    snapshot(vec![drain()])
}

/// The level that counts no objects.
pub(crate) fn boundary_snapshot() -> Snapshot {
    let mut facts = drain();
    facts.level = Level::Boundary;
    facts.totals = Totals {
        opened: 100,
        opened_before: 2,
        drainable: 90,
        pinned: 10,
        pinned_objects: 25,
        pinned_bytes: 40_960,
        closed_bytes: 409_600,
        ..Totals::default()
    };
    (facts.open_now, facts.open_peak) = (2, 3);
    (facts.retained_granules, facts.retained_bytes) = (0, 0);
    facts.lifetimes = BTreeMap::from([(0x40_1234, hist(98, 10 * MS))]);
    facts.granules = vec![
        GranuleFacts { opened_ns: 0, before: true, ..granule(0) },
        GranuleFacts { opened_ns: NOW_NS - 3 * MS, place: 0x40_1234, ..granule(7) },
    ];
    snapshot(vec![facts])
}

/// No close was decided, and the profile knows neither bytes nor sizes.
pub(crate) fn undecided_snapshot() -> Snapshot {
    let mut facts = drain();
    let mut profile = profile("bare", Kind::Drain);
    profile.granule_bytes = None;
    for probe in &mut profile.probes {
        probe.size = None;
    }
    facts.profile = Arc::new(profile);
    facts.instance = 0;
    facts.totals = Totals {
        opened: 1,
        opened_before: 3,
        unknown: 3,
        allocated: 4,
        freed: 1,
        ..Totals::default()
    };
    (facts.open_now, facts.open_peak) = (1, 1);
    (facts.retained_granules, facts.retained_bytes) = (0, 0);
    facts.curve = curve(|_| 0);
    facts.lifetimes = BTreeMap::new();
    facts.granules = vec![GranuleFacts { bytes: 0, live_bytes: 0, live: 3, ..granule(9) }];
    snapshot(vec![facts])
}

/// Pools that are closed with all their members; one is forgotten.
pub(crate) fn bulk_snapshot() -> Snapshot {
    snapshot(vec![bulk()])
}

/// Spans that close when they are empty.
pub(crate) fn slab_snapshot() -> Snapshot {
    snapshot(vec![slab()])
}

/// Pages of a heap, nearly all of them held by little.
pub(crate) fn pages_snapshot() -> Snapshot {
    let mut snapshot = snapshot(vec![pages()]);
    sites::hold_pages(&mut snapshot);
    snapshot
}

/// The same, where they are one of eight.
pub(crate) fn sampled_pages_snapshot() -> Snapshot {
    Snapshot { sample: 8, ..pages_snapshot() }
}

/// Fork, exec, exit by code and by signal, a destroyed instance, names that a terminal must not see.
pub(crate) fn lifecycle_snapshot() -> Snapshot {
    let mut destroyed = drain();
    destroyed.destroyed = true;
    destroyed.instance = 0x7f00_0000_2000;
    destroyed.destroyed_open = 2;
    destroyed.totals.opened += 2;
    destroyed.totals.reopened = 1;
    destroyed.totals.opened_before = 1;
    let mut snapshot = snapshot(vec![drain(), destroyed]);
    let parent = snapshot.targets[0].clone();
    let bulk = bulk();
    let child = |index: u32, began, ended| TargetFacts {
        target: index,
        pid: 4242 + index,
        comm: "wor\u{1b}[31mker\u{202e}\n".to_owned(),
        began,
        ended: Some(ended),
        rss_bytes: None,
        memory: None,
        allocators: vec![bulk.clone()],
        ..parent.clone()
    };
    snapshot.targets[0].began = Began::FromStart;
    snapshot.targets[0].findings = vec![plan::Finding {
        code: "clone_only".to_owned(),
        message: "free_obj exists only as free_obj.part.0".to_owned(),
    }];
    snapshot.targets.push(child(1, Began::Forked(0), Ended::Exit(Some(Ok(3)))));
    snapshot.targets.push(child(2, Began::Forked(0), Ended::Exit(Some(Err(9)))));
    snapshot.targets.push(child(3, Began::Forked(0), Ended::Exec));
    snapshot.targets.push(child(4, Began::Exec(3), Ended::Exit(None)));
    snapshot
}

/// Two windows of a duty cycle have ended, a third runs.
pub(crate) fn duty_snapshot() -> Snapshot {
    let mut windows = Windows::new(16);
    for _ in 0..2 {
        let mut facts = drain();
        facts.open_now = 3;
        facts.totals.opened += 3;
        windows.add(snapshot(vec![facts]), Duration::from_secs(10));
    }
    let now = Snapshot { window: Duration::from_secs(1_205), ..drain_snapshot() };
    let duty = Duty { on: Duration::from_secs(10), period: Duration::from_mins(10) };
    let facts = DutyFacts { duty, windows: 3, observed: Duration::from_secs(25) };
    Snapshot { duty: Some(facts), ..windows.join(now) }
}

/// A process that leaks 100 KB/s towards the limit of its control group, on a machine under some pressure, and one of which
/// too little was seen.
pub(crate) fn memory_snapshot() -> Snapshot {
    let reading = |second: u32| MemoryReading {
        rss_bytes: 40_000_000 + u64::from(second) * 100_000,
        anon_bytes: 30_000_000 + u64::from(second) * 100_000,
        file_bytes: 10_000_000,
        shmem_bytes: 0,
        swap_bytes: 4096,
        vsz_bytes: 200_000_000,
        pss_bytes: None,
        uss_bytes: None,
        minor_faults: 9_000 + u64::from(second) * 25,
        major_faults: 3,
        cgroup_bytes: Some(60_000_000 + u64::from(second) * 100_000),
        cgroup_limit_bytes: Some(1 << 30),
        cgroup_room_bytes: Some((1 << 30) - 60_000_000 - u64::from(second) * 100_000),
    };
    let course = |seconds: u32| {
        let mut course = MemoryCourse::new();
        (0..=seconds).for_each(|second| course.add(f64::from(second), &reading(second)));
        course
    };
    let mut snapshot = drain_snapshot();
    snapshot.targets[0].memory = Some(course(120));
    let second = snapshot.targets[0].clone();
    snapshot.targets.push(TargetFacts { target: 1, memory: Some(course(7)), ..second });
    let waiting = |avg10| Waiting { avg10, avg60: 0.01, avg300: 0.0, total_seconds: 12.5 };
    snapshot.pressure = Some(Pressure { some: waiting(0.125), full: waiting(0.05) });
    snapshot
}

/// One of 16 granules was looked at.
pub(crate) fn sampled_snapshot() -> Snapshot {
    let mut facts = drain();
    facts.sampled_out = 150_127;
    Snapshot { sample: 16, ..snapshot(vec![facts]) }
}

/// Slots ran out.
pub(crate) fn incomplete_snapshot() -> Snapshot {
    let mut snapshot = drain_snapshot();
    snapshot.losses[Loss::GranuleMapFull as usize] = 12;
    snapshot.losses[Loss::UnmatchedFree as usize] = 1;
    snapshot.targets[0].allocators[0].totals.opened += 12;
    snapshot
}

/// A snapshot of one process with these allocators.
pub(crate) fn snapshot(allocators: Vec<AllocatorFacts>) -> Snapshot {
    let mut losses = [0; LOSS_COUNT];
    for facts in &allocators {
        losses[Loss::UnmatchedFree as usize] += facts.totals.unmatched_frees;
        losses[Loss::UnmatchedClose as usize] += facts.totals.unmatched_closes;
        losses[Loss::AllocAfterClose as usize] += facts.totals.allocs_after_close;
    }
    let profile = allocators.first().map_or("epoch-demo", |facts| facts.profile.name.as_str());
    let probes = [("open", true), ("close", false), ("alloc", true), ("free", false)]
        .map(|(role, at_return)| probe(profile, role, at_return));
    Snapshot {
        now_ns: NOW_NS,
        window: Duration::from_secs(10),
        duty: None,
        sample: 1,
        losses,
        halfway: None,
        self_use: SelfUse {
            cpu: Duration::from_millis(125),
            rss_bytes: 12 << 20,
            peak_rss_bytes: 13 << 20,
            map_bytes: 34 << 20,
        },
        prices_measured: true,
        pressure: None,
        symbols: Some(SymbolFacts { places: 2, named: 1, ..SymbolFacts::default() }),
        targets: vec![TargetFacts {
            target: 0,
            pid: 4242,
            start_time: 123_456,
            comm: "svc".to_owned(),
            exe: "/usr/bin/svc".to_owned(),
            began: Began::Attached,
            ended: None,
            rss_bytes: Some(48 << 20),
            memory: None,
            allocators,
            probes: probes.to_vec(),
            findings: Vec::new(),
            frames: frames(),
            modules: vec![Module {
                name: "svc".to_owned(),
                path: "/usr/bin/svc".to_owned(),
                build_id: Some("0011223344556677".to_owned()),
            }],
            growth: None,
        }],
    }
}

fn probe(profile: &str, role: &'static str, at_return: bool) -> ProbeFacts {
    ProbeFacts {
        profile: profile.to_owned(),
        role,
        symbol: format!("{role}_it"),
        object: "/usr/bin/svc".to_owned(),
        at_return,
        entries: 20_000,
        returns: if at_return { 20_000 } else { 0 },
        rejected: 0,
        faults: 0,
        entry_ns: 550.0,
        return_ns: 290.0,
    }
}

/// An open granule of 4 KiB with one object in it.
pub(crate) fn granule(id: u64) -> GranuleFacts {
    GranuleFacts {
        id,
        generation: 0,
        closed: false,
        before: false,
        live: 1,
        live_bytes: 256,
        bytes: 4096,
        opened_ns: NOW_NS - MS,
        closed_ns: 0,
        place: 0,
        parent: 0,
        label: String::new(),
    }
}

/// A place with everything that can be known of it; other places have no name.
fn frames() -> Frames {
    let inlined = Inlined {
        function: "epoch_open".to_owned(),
        file: Some("/src/epoch.h".to_owned()),
        line: Some(12),
    };
    let frame = Frame {
        function: Some("handle_request".to_owned()),
        offset: Some(0x3c),
        file: Some("/src/server.c".to_owned()),
        line: Some(84),
        module: Some("svc".to_owned()),
        module_offset: Some(0x1234),
        inlined: vec![inlined],
    };
    Frames::from([(0x40_1234, frame)])
}

fn hist(count: u64, value: u64) -> Hist {
    let mut hist = Hist::new();
    (0..count).for_each(|_| hist.record(value));
    hist
}

fn profile(name: &str, kind: Kind) -> Profile {
    let probe = |role| Probe {
        granule: Some(Expr::Arg(0)),
        size: (role == Role::Alloc).then_some(Expr::Arg(1)),
        ..Probe::bare(role, Address::Symbol(format!("{role:?}")))
    };
    Profile {
        name: name.to_owned(),
        kind,
        summary: String::new(),
        rule: MatchRule::default(),
        granule_bytes: Some(4096),
        implicit: false,
        on_request: false,
        nested: false,
        versions: Vec::new(),
        probes: [Role::Open, Role::Close, Role::Alloc, Role::Free].map(probe).to_vec(),
        source: Source::File(PathBuf::from("test.toml")),
    }
}

/// What was held back in the ten seconds before the samples are taken, by twentieths of a second.
fn curve(granules: impl Fn(u64) -> u64) -> Curve {
    let mut curve = Curve::default();
    for tick in 0..=200 {
        let granules = granules(tick);
        let at_ns = NOW_NS - (200 - tick) * 50 * MS;
        curve.add(CurvePoint { at_ns, granules, bytes: 4096 * granules, appeared: 0 });
    }
    curve
}

fn drain() -> AllocatorFacts {
    let retained = |id: u64, generation| GranuleFacts {
        generation,
        closed: true,
        opened_ns: NOW_NS - 9_016 * MS,
        closed_ns: NOW_NS - 9_000 * MS + id * MS,
        place: 0x40_1234,
        ..granule(id)
    };
    AllocatorFacts {
        profile: Arc::new(profile("epoch-demo", Kind::Drain)),
        level: Level::Objects,
        instance: 0x7f00_0000_1000,
        destroyed: false,
        totals: Totals {
            opened: 10_000,
            drainable: 7_526,
            pinned: 2_474,
            allocated: 20_000,
            freed: 17_526,
            allocated_bytes: 5_120_000,
            freed_bytes: 4_486_656,
            pinned_objects: 2_474,
            pinned_bytes: 10_133_504,
            closed_bytes: 40_960_000,
            ..Totals::default()
        },
        sampled_out: 0,
        open_now: 0,
        open_peak: 16,
        destroyed_open: 0,
        left_open: 0,
        left_objects: 0,
        left_object_bytes: 0,
        left_retained: 0,
        left_retained_bytes: 0,
        retained_granules: 2_474,
        retained_bytes: 10_133_504,
        pin_delays: Hist::new(),
        lifetimes: BTreeMap::from([(0x40_1234, hist(10_000, 16 * MS))]),
        granules: vec![retained(3, 1), retained(11, 0), retained(3, 0)],
        curve: curve(|tick| 2_474 * tick / 200),
        sites: Vec::new(),
    }
}

/// Two granules are open, one of them overdue.
pub(crate) fn bulk() -> AllocatorFacts {
    AllocatorFacts {
        profile: Arc::new(profile("request-pool", Kind::Bulk)),
        totals: Totals {
            opened: 32,
            closed_plain: 30,
            resets: 5,
            allocated: 3_200,
            freed: 190,
            replaced: 10,
            freed_in_bulk: 2_800,
            allocated_bytes: 320_000,
            freed_bytes: 300_000,
            closed_bytes: 30 * 8192,
            ..Totals::default()
        },
        open_now: 2,
        open_peak: 4,
        retained_granules: 0,
        retained_bytes: 0,
        lifetimes: BTreeMap::from([(0xa0, hist(25, 2 * MS)), (0xb0, hist(5, 700 * MS))]),
        curve: curve(|tick| tick % 3),
        granules: vec![
            GranuleFacts { bytes: 8192, place: 0xa0, live: 3, ..granule(0x5000) },
            GranuleFacts {
                bytes: 8192,
                place: 0xa0,
                live: 197,
                live_bytes: 19_700,
                opened_ns: NOW_NS - 9_000 * MS,
                parent: 0x5000,
                label: "request\u{7}".to_owned(),
                ..granule(0x6000)
            },
        ],
        ..drain()
    }
}

/// A hundred pages of 4096 bytes are held, each by one object or two, and one object is larger than a page.
pub(crate) fn pages() -> AllocatorFacts {
    let mut profile = profile("malloc", Kind::Slab);
    profile.implicit = true;
    profile.probes.retain(|probe| matches!(probe.role, Role::Alloc | Role::Free));
    for probe in &mut profile.probes {
        probe.object = Some(Expr::Ret);
    }
    let page = |id: u64| {
        let live = 1 + id % 2;
        GranuleFacts { live, live_bytes: 100 * live, ..granule(0x7f00_0000_0000 + 4096 * id) }
    };
    AllocatorFacts {
        profile: Arc::new(profile),
        level: Level::Stacks,
        totals: Totals {
            opened: 120,
            closed_plain: 20,
            allocated: 4_000,
            freed: 3_849,
            allocated_bytes: 1_400_000,
            freed_bytes: 385_000,
            closed_bytes: 20 * 4096,
            ..Totals::default()
        },
        open_now: 100,
        open_peak: 110,
        lifetimes: BTreeMap::from([(0, hist(20, 50 * MS))]),
        curve: curve(|tick| 100.min(tick)),
        granules: (0..100).map(page).collect(),
        ..slab()
    }
}

/// Four granules are open: empty, nearly empty, fuller, and older than the attach.
pub(crate) fn slab() -> AllocatorFacts {
    AllocatorFacts {
        profile: Arc::new(profile("span", Kind::Slab)),
        instance: 0,
        totals: Totals {
            opened: 6,
            opened_before: 1,
            closed_plain: 3,
            allocated: 20,
            freed: 14,
            allocated_bytes: 2_000,
            freed_bytes: 1_400,
            closed_bytes: 3 * 4096,
            ..Totals::default()
        },
        open_now: 4,
        open_peak: 5,
        retained_granules: 0,
        retained_bytes: 0,
        lifetimes: BTreeMap::from([(0, hist(3, 50 * MS))]),
        curve: curve(|tick| 4.min(tick)),
        granules: vec![
            GranuleFacts { live: 0, live_bytes: 0, ..granule(0x10) },
            GranuleFacts { live: 1, ..granule(0x20) },
            GranuleFacts { live: 5, ..granule(0x30) },
            GranuleFacts { live: 0, before: true, opened_ns: 0, ..granule(0x40) },
        ],
        ..drain()
    }
}
