//! What the samples are made of: allocators of each kind, probes, granules, places.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use drainprof_common::{hist::Hist, maps::Totals};
use drainprof_process::{Frame, Inlined};
use drainprof_profile::{Address, Expr, Key, Kind, Level, MatchRule, Probe, Profile, Role, Source};

use super::{MS, NOW_NS};
use crate::{
    facts::{AllocatorFacts, Frames, GranuleFacts, ProbeFacts},
    series::{HeldPoint, HeldSeries, LiveSeries},
};

pub(super) fn probe(profile: &str, role: &'static str, at_return: bool) -> ProbeFacts {
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
        pages: None,
        opened_ns: NOW_NS - MS,
        closed_ns: 0,
        place: 0,
        parent: 0,
        label: String::new(),
    }
}

/// A place with everything that can be known of it; other places have no name.
pub(super) fn frames() -> Frames {
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
        module_offset: Some("0x1234".to_owned()),
        inlined: vec![inlined],
    };
    Frames::from([(0x40_1234, frame)])
}

pub(super) fn hist(count: u64, value: u64) -> Hist {
    let mut hist = Hist::new();
    (0..count).for_each(|_| hist.record(value));
    hist
}

pub(super) fn profile(name: &str, kind: Kind) -> Profile {
    let probe = |role| {
        let probe = Probe::bare(role, Address::Symbol(format!("{role:?}")))
            .with(Key::Granule, Expr::Arg(0));
        if role == Role::Alloc { probe.with(Key::Size, Expr::Arg(1)) } else { probe }
    };
    Profile {
        name: name.to_owned(),
        kind,
        summary: String::new(),
        rule: MatchRule::default(),
        granule_bytes: Some(4096),
        granule_pages: None,
        structures: Vec::new(),
        implicit: false,
        on_request: false,
        nested: false,
        versions: Vec::new(),
        not_measurable: Vec::new(),
        probes: [Role::Open, Role::Close, Role::Alloc, Role::Free].map(probe).to_vec(),
        source: Source::File(PathBuf::from("test.toml")),
    }
}

/// What was held back in the ten seconds before the samples are taken, by twentieths of a second.
pub(super) fn curve(granules: impl Fn(u64) -> u64) -> HeldSeries {
    let mut curve = HeldSeries::default();
    for tick in 0..=200 {
        let granules = granules(tick);
        let at_ns = NOW_NS - (200 - tick) * 50 * MS;
        curve.add(HeldPoint { at_ns, granules, bytes: 4096 * granules, appeared: 0 });
    }
    curve
}

pub(super) fn drain() -> AllocatorFacts {
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
        not_measurable: None,
        pages_known: false,
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
        over_time: curve(|tick| 2_474 * tick / 200),
        live_over_time: LiveSeries::default(),
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
        over_time: curve(|tick| tick % 3),
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
        probe.expressions.insert(Key::Object, Expr::Ret);
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
        over_time: curve(|tick| 100.min(tick)),
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
        over_time: curve(|tick| 4.min(tick)),
        granules: vec![
            GranuleFacts { live: 0, live_bytes: 0, ..granule(0x10) },
            GranuleFacts { live: 1, ..granule(0x20) },
            GranuleFacts { live: 5, ..granule(0x30) },
            GranuleFacts { live: 0, before: true, opened_ns: 0, ..granule(0x40) },
        ],
        ..drain()
    }
}
