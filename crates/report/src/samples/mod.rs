//! Synthetic snapshots of every kind, level and corner, for the tests of `report` and `export`.

mod facts;
mod growth;
mod history;
mod saved;
mod sites;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use drainprof_common::{
    loss::{LOSS_COUNT, Loss},
    maps::Totals,
};
use drainprof_process::{
    Module,
    memory::{MemoryReading, Pressure, Waiting},
};
use drainprof_profile::{Finding as PlanFinding, Key, Kind, Level};
pub(crate) use growth::growth_snapshot;
pub(crate) use history::history;
pub(crate) use saved::{after, before, saved};
pub use sites::{holders_snapshot, site, stacks_snapshot};

pub(crate) use self::facts::{bulk, granule, pages, slab};
use self::facts::{curve, drain, frames, hist, probe, profile};
use crate::{
    facts::{
        AllocatorFacts, Began, Duty, Ended, GranuleFacts, SelfUse, Snapshot, SymbolFacts,
        TargetFacts, Windows,
    },
    series::MemorySeries,
};

/// When all samples are taken.
pub(crate) const NOW_NS: u64 = 100_000_000_000;
const MS: u64 = 1_000_000;

/// All samples, by name.
#[must_use]
pub fn all() -> Vec<(&'static str, Snapshot)> {
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
        ("sampled_pages", sampled_pages_snapshot()),
        ("stacks", stacks_snapshot()),
        ("holders", holders_snapshot()),
        ("memory", memory_snapshot()),
        ("growth", growth_snapshot()),
        ("empty", Snapshot { targets: Vec::new(), window: Duration::ZERO, ..drain_snapshot() }),
    ]
}

/// The example of the documentation: 2474 of 10 000 closes pinned.
#[must_use]
pub fn drain_snapshot() -> Snapshot {
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
        probe.expressions.remove(&Key::Size);
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
    facts.over_time = curve(|_| 0);
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
    snapshot.targets[0].findings = vec![PlanFinding {
        code: "clone_only".to_owned(),
        message: "free_obj exists only as free_obj.part.0".to_owned(),
    }];
    snapshot.targets.push(child(1, Began::Forked { from_target: 0 }, Ended::exit(Some(Ok(3)))));
    snapshot.targets.push(child(2, Began::Forked { from_target: 0 }, Ended::exit(Some(Err(9)))));
    snapshot.targets.push(child(3, Began::Forked { from_target: 0 }, Ended::Exec));
    snapshot.targets.push(child(4, Began::Exec { from_target: 3 }, Ended::exit(None)));
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
    let duty = Duty { on: Duration::from_secs(10), period: Duration::from_secs(600) };
    let facts = duty.after(3, Duration::from_secs(25));
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
    let series = |seconds: u32| {
        let mut series = MemorySeries::new();
        (0..=seconds).for_each(|second| series.add(f64::from(second), &reading(second)));
        series
    };
    let mut snapshot = drain_snapshot();
    snapshot.targets[0].memory = Some(series(120));
    let second = snapshot.targets[0].clone();
    snapshot.targets.push(TargetFacts { target: 1, memory: Some(series(7)), ..second });
    let waiting = |avg10| Waiting { avg10, avg60: 0.01, avg300: 0.0, total_seconds: 12.5 };
    snapshot.pressure = Some(Pressure { some: waiting(0.125), full: waiting(0.05) });
    snapshot
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
            cpu_seconds: 0.125,
            cpu_ratio: None,
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
            container: None,
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
