//! A process that grows: in pinned granules, in its heap and in mappings.

use std::{collections::BTreeMap, sync::Arc};

use drainprof_common::growth::member;
use drainprof_process::{PathEnd, memory::GranuleState};

use super::{MS, NOW_NS, drain_snapshot, facts::frames};
use crate::facts::{
    CallPath, FaultTotals, GrowthFacts, MapTotals, PathGrowth, Snapshot, Touched, TouchedMemory,
};
use crate::series::{AddedPoint, AddedSeries};

const MIB: u64 = 1 << 20;

/// A series of twenty points, the last half a second ago.
fn added(bytes: fn(u64) -> i64) -> AddedSeries {
    let mut series = AddedSeries::new();
    for tick in 1..=20 {
        let at_ns = NOW_NS - (21 - tick) * 500 * MS;
        series.add(AddedPoint { at_ns, bytes: bytes(tick) });
    }
    series
}

/// 412 MiB more, 371 of them in granules that are pinned.
pub(crate) fn growth_snapshot() -> Snapshot {
    let mut snapshot = drain_snapshot();
    let known = frames().keys().next().copied().unwrap_or_default();
    let path = |addresses: &[u64], end| Arc::new(CallPath { addresses: addresses.to_vec(), end });
    let memory = |faults: u64, anon: i64, file: i64| FaultTotals {
        faults,
        kernel_faults: faults / 100,
        writes: faults,
        present: 0,
        rss: [file, anon, 0, 0],
    };
    let paths = BTreeMap::from([
        (
            path(&[known, 0x40_2000], PathEnd::Start),
            PathGrowth {
                memory: memory(105_472, 412 * MIB.cast_signed(), 0),
                maps: MapTotals::default(),
                over_time: Some(added(|tick| 1 << tick.min(20))),
            },
        ),
        (
            path(&[0x7f00_1000], PathEnd::TooDeep),
            PathGrowth {
                memory: memory(3, 0, 3 * 65_536),
                maps: MapTotals {
                    calls: 40,
                    mapped: 96 * MIB,
                    outstanding: 64 * MIB,
                    outstanding_anon: 48 * MIB,
                    regions: 12,
                    given_back: 4096,
                    ..MapTotals::default()
                },
                over_time: Some(added(|_| 3 * 65_536)),
            },
        ),
        (
            Arc::default(),
            PathGrowth {
                memory: memory(0, -(8 * MIB.cast_signed()), 0),
                maps: MapTotals { calls: 21, heap: 21 * MIB.cast_signed(), ..MapTotals::default() },
                over_time: None,
            },
        ),
    ]);
    let mut last = [Some(0); member::COUNT];
    last[member::ANON] = Some(460 * MIB);
    snapshot.targets[0].growth = Some(GrowthFacts {
        paths,
        other: [0, 4096, 0, 0],
        outside: [-(MIB.cast_signed()), 0, 0, 0],
        last,
        peak: [0, 468 * MIB, 0, 0],
        touched: TouchedMemory {
            bytes: 412 * MIB,
            granules: BTreeMap::from([
                ((0, GranuleState::Open, known), Touched { bytes: 2 * MIB, granules: 512 }),
                ((0, GranuleState::Pinned, known), Touched { bytes: 326 * MIB, granules: 83_456 }),
                ((0, GranuleState::Pinned, 0), Touched { bytes: 45 * MIB, granules: 11_520 }),
                ((usize::MAX, GranuleState::Drained, known), Touched { bytes: MIB, granules: 256 }),
            ]),
        },
        unplaced: BTreeMap::new(),
        unmapped: 32 * MIB,
        unmapped_before: 4096,
        counted: Some((105_500, 2)),
    });
    snapshot
}
