//! A naive ledger, for the property that any history keeps the conservation rules.

use std::{collections::BTreeMap, sync::Arc};

use drainprof_common::maps::Totals;
use drainprof_profile::{Kind, Level};

use super::{
    MS, NOW_NS,
    facts::{drain, granule, profile},
};
use crate::{
    facts::{AllocatorFacts, GranuleFacts},
    series::{HeldSeries, LiveSeries},
};

/// One id of the naive ledger below.
#[derive(Clone, Copy, Default)]
struct Cell {
    known: bool,
    before: bool,
    closed: bool,
    pinned: bool,
    live: u64,
}

/// What a naive ledger counts over a history of `(action, id, n)`.
///
/// It follows the words of `drainprof_common::maps::Totals`, one event after the other, and knows
/// nothing of how reports are built.
pub(crate) fn history(kind: Kind, level: Level, steps: &[(u8, u64, u64)]) -> AllocatorFacts {
    let mut facts = AllocatorFacts {
        profile: Arc::new(profile("history", kind)),
        level,
        totals: Totals::default(),
        open_peak: 0,
        retained_granules: 0,
        retained_bytes: 0,
        lifetimes: BTreeMap::new(),
        granules: Vec::new(),
        over_time: HeldSeries::default(),
        live_over_time: LiveSeries::default(),
        ..drain()
    };
    let mut cells = [Cell::default(); 8];
    for &(action, id, n) in steps {
        let cell = &mut cells[id as usize % 8];
        match (action, level) {
            (0, _) => open(&mut facts, cell),
            (1 | 2, _) => close(&mut facts, cell, n % 3),
            (3 | 4, Level::Objects) => alloc(&mut facts, cell, n),
            (5 | 6, Level::Objects) => free(&mut facts, cell),
            (7, _) if kind == Kind::Drain && cell.known && !cell.closed => {
                facts.totals.resets += 1;
                close(&mut facts, cell, n % 3);
                open(&mut facts, cell);
            }
            (7, Level::Objects) if kind == Kind::Bulk => {
                facts.totals.resets += 1;
                facts.totals.freed_in_bulk += cell.live;
                cell.live = 0;
            }
            (8, _) if kind != Kind::Slab && cell.known && !cell.closed => migrate(&mut facts, cell),
            (9, _) if kind == Kind::Bulk && cell.known && !cell.closed => {
                // A granule that it was nested in has ended.
                facts.totals.ended_with_parent += 1;
                facts.totals.freed_in_bulk += cell.live;
                facts.open_now -= 1;
                (cell.live, cell.closed) = (0, true);
            }
            _ => {}
        }
    }
    facts.granules = cells
        .iter()
        .zip(0..)
        .filter(|(cell, _)| cell.known && (!cell.closed || (cell.pinned && cell.live > 0)))
        .map(|(cell, id)| GranuleFacts {
            closed: cell.closed,
            before: cell.before,
            live: cell.live,
            opened_ns: if cell.before { 0 } else { NOW_NS - id },
            ..granule(id)
        })
        .collect();
    facts
}

fn appear(facts: &mut AllocatorFacts, cell: &mut Cell, before: bool) {
    *cell = Cell { known: true, before, ..Cell::default() };
    facts.open_now += 1;
    facts.open_peak = facts.open_peak.max(facts.open_now);
}

fn open(facts: &mut AllocatorFacts, cell: &mut Cell) {
    if cell.known && !cell.closed {
        facts.totals.reopened += 1;
        facts.open_now -= 1;
    }
    facts.totals.opened += 1;
    appear(facts, cell, false);
}

fn close(facts: &mut AllocatorFacts, cell: &mut Cell, read: u64) {
    if !cell.known {
        facts.totals.opened_before += 1;
        appear(facts, cell, true);
    }
    if cell.closed {
        facts.totals.unmatched_closes += 1;
        return;
    }
    if facts.profile.kind == Kind::Slab && cell.live > 0 {
        return;
    }
    cell.closed = true;
    facts.open_now -= 1;
    facts.totals.closed_bytes += 4096;
    let boundary = facts.level == Level::Boundary;
    let live = if boundary { read } else { cell.live };
    match facts.profile.kind {
        Kind::Drain if cell.before && !boundary => facts.totals.unknown += 1,
        Kind::Drain if live == 0 => facts.totals.drainable += 1,
        Kind::Drain => {
            facts.totals.pinned += 1;
            facts.totals.pinned_objects += live;
            facts.totals.pinned_bytes += 4096;
            cell.pinned = true;
            if !boundary {
                facts.retained_granules += 1;
                facts.retained_bytes += 4096;
            }
        }
        Kind::Bulk => {
            facts.totals.closed_plain += 1;
            facts.totals.freed_in_bulk += cell.live;
            cell.live = 0;
        }
        Kind::Slab => facts.totals.closed_plain += 1,
    }
    if !cell.before {
        facts.lifetimes.entry(0xa0).or_default().record(MS);
    }
}

/// What is still in it is freed like anything else, and pins nothing.
fn migrate(facts: &mut AllocatorFacts, cell: &mut Cell) {
    facts.totals.migrated += 1;
    facts.totals.migrated_objects += cell.live;
    facts.open_now -= 1;
    (cell.closed, cell.pinned) = (true, false);
}

fn alloc(facts: &mut AllocatorFacts, cell: &mut Cell, size: u64) {
    if !cell.known {
        facts.totals.opened_before += 1;
        appear(facts, cell, true);
    }
    facts.totals.allocs_after_close += u64::from(cell.closed);
    facts.totals.allocated += 1;
    facts.totals.allocated_bytes += size;
    cell.live += 1;
}

fn free(facts: &mut AllocatorFacts, cell: &mut Cell) {
    if cell.live == 0 {
        facts.totals.unmatched_frees += 1;
        return;
    }
    facts.totals.freed += 1;
    cell.live -= 1;
    if cell.live == 0 && cell.closed && cell.pinned {
        facts.totals.late_drained += 1;
        facts.retained_granules = facts.retained_granules.saturating_sub(1);
        facts.retained_bytes = facts.retained_bytes.saturating_sub(4096);
        facts.pin_delays.record(MS);
    }
}
