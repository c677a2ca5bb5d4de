//! From facts on the growth of a process to its part of a report.

use std::cmp::Reverse;

use drainprof_common::growth::member;
use drainprof_process::{Frame, kernel, memory::GranuleState};

use crate::{
    facts::{CallPath, Frames, GrowthFacts, MapTotals, PathGrowth, Snapshot, TargetFacts},
    known::hex,
    model::{
        growth::{
            ByKind, Faults, GrowthPath, Heap, Mappings, MemoryGrowth, RssChange, TouchedPlace,
            TouchedReport,
        },
        site::{OpenedAt, SiteFrame},
    },
    trend,
};

/// What functions of the kernel are called that call our programs.
const TRACING: [&str; 6] =
    ["bpf_", "__bpf_", "perf_trace_", "__traceiter_", "trace_call_bpf", "do_trace_"];

/// The growth of a target's memory; `None` where that was not examined.
pub(super) fn of(target: &TargetFacts, snapshot: &Snapshot, top: usize) -> Option<MemoryGrowth> {
    let facts = target.growth.as_ref()?;
    let by_paths = facts
        .paths
        .values()
        .fold(ByKind::default(), |sum, path| sum.plus(&ByKind::of(&path.memory.rss)));
    let by_others = ByKind::of(&facts.other);
    let from_outside = ByKind::of(&facts.outside);
    let sum = |count: fn(&PathGrowth) -> u64| {
        facts.paths.values().map(count).fold(0, u64::saturating_add)
    };
    let mut ranked: Vec<_> = facts.paths.iter().filter(|(_, path)| has_done(path)).collect();
    let total = ranked.len() as u64;
    ranked.sort_by_key(|(path, growth)| (Reverse(weight(growth)), *path));
    ranked.truncate(top);
    Some(MemoryGrowth {
        rss: RssChange {
            change: by_paths.plus(&by_others).plus(&from_outside),
            by_paths,
            by_others,
            from_outside,
            now_bytes: [member::ANON, member::FILE, member::SHMEM]
                .into_iter()
                .try_fold(0u64, |sum, kind| Some(sum.saturating_add(facts.last[kind]?))),
            peak_anon_bytes: facts.peak[member::ANON],
        },
        faults: faults(facts, &by_paths),
        touched: touched(target, facts, top),
        heap: Heap {
            change_bytes: facts
                .paths
                .values()
                .fold(0i64, |sum, path| sum.saturating_add(path.maps.heap)),
        },
        mappings: Mappings {
            mapped_bytes: sum(|path| path.maps.mapped),
            outstanding_bytes: sum(|path| path.maps.outstanding),
            outstanding_anon_bytes: sum(|path| path.maps.outstanding_anon),
            outstanding: sum(|path| path.maps.regions),
            unmapped_bytes: facts.unmapped,
            unmapped_before_bytes: facts.unmapped_before,
            given_back_bytes: sum(|path| path.maps.given_back),
        },
        paths: ranked
            .into_iter()
            .map(|(path, own)| reported(path, own, snapshot, &target.frames))
            .collect(),
        paths_total: total,
    })
}

/// Calls that changed nothing are not listed.
fn has_done(path: &PathGrowth) -> bool {
    path.memory.faults + path.memory.kernel_faults > 0
        || path.memory.rss.iter().any(|bytes| *bytes != 0)
        || path.maps != MapTotals { calls: path.maps.calls, ..MapTotals::default() }
}

/// What has added most in any of the views.
fn weight(path: &PathGrowth) -> [u64; 2] {
    let rss = ByKind::of(&path.memory.rss).resident();
    let bytes = [rss.unsigned_abs(), path.maps.heap.unsigned_abs(), path.maps.outstanding];
    [bytes.into_iter().max().unwrap_or_default(), path.memory.faults]
}

fn faults(facts: &GrowthFacts, by_paths: &ByKind) -> Faults {
    let sum = |count: fn(&PathGrowth) -> u64| {
        facts.paths.values().map(count).fold(0, u64::saturating_add)
    };
    let (user, kernel) = (sum(|path| path.memory.faults), sum(|path| path.memory.kernel_faults));
    let added = by_paths.resident();
    Faults {
        user,
        kernel,
        writes: sum(|path| path.memory.writes),
        present: sum(|path| path.memory.present),
        minor: facts.counted.map(|(minor, _)| minor),
        major: facts.counted.map(|(_, major)| major),
        bytes_each: (user + kernel > 0 && added >= 0)
            .then(|| added as f64 / (user + kernel) as f64),
    }
}

fn touched(target: &TargetFacts, facts: &GrowthFacts, top: usize) -> TouchedReport {
    let sum = |state: GranuleState| {
        let own = facts.touched.granules.iter().filter(|((_, known, _), _)| *known == state);
        let sum = own.fold(0u64, |sum, (_, touched)| sum.saturating_add(touched.bytes));
        (!facts.unplaced.contains_key(&state)).then_some(sum)
    };
    let (open, pinned, drained) =
        (sum(GranuleState::Open), sum(GranuleState::Pinned), sum(GranuleState::Drained));
    let mut places: Vec<TouchedPlace> = facts
        .touched
        .granules
        .iter()
        .map(|((allocator, state, place), touched)| TouchedPlace {
            state: *state,
            profile: target.allocators.get(*allocator).map(|own| own.profile.name.clone()),
            bytes: touched.bytes,
            granules: touched.granules,
            opened_at: OpenedAt { place: hex(*place), frame: name(*place, &target.frames) },
        })
        .collect();
    places.sort_by_key(|place| Reverse(place.bytes));
    places.truncate(top);
    TouchedReport {
        bytes: facts.touched.bytes,
        open_bytes: open,
        pinned_bytes: pinned,
        drained_bytes: drained,
        elsewhere_bytes: [open, pinned, drained]
            .into_iter()
            .try_fold(facts.touched.bytes, |rest, own| Some(rest.saturating_sub(own?))),
        granules_unplaced: facts.unplaced.values().sum(),
        places,
    }
}

fn name(address: u64, frames: &Frames) -> Frame {
    frames.get(&address).cloned().unwrap_or_default()
}

fn reported(path: &CallPath, own: &PathGrowth, snapshot: &Snapshot, frames: &Frames) -> GrowthPath {
    let readings = own.over_time.iter().flat_map(|series| trend::thinned(series, snapshot));
    GrowthPath {
        faults: own.memory.faults + own.memory.kernel_faults,
        writes: own.memory.writes,
        rss: ByKind::of(&own.memory.rss),
        heap_bytes: own.maps.heap,
        mapped_bytes: own.maps.mapped,
        outstanding_bytes: own.maps.outstanding,
        outstanding: own.maps.regions,
        given_back_bytes: own.maps.given_back,
        over_time: readings.map(|(at, point)| (at, point.bytes)).collect(),
        selected: None,
        path_end: path.end,
        frames: path
            .addresses
            .iter()
            .map(|&address| {
                let shown = if kernel::is_address(address) { None } else { hex(address) };
                SiteFrame { address: shown, frame: name(address, frames) }
            })
            .skip_while(|own| is_of_tracing(&own.frame))
            .collect(),
    }
}

/// Whether code of the kernel is only there because it is watched.
fn is_of_tracing(frame: &Frame) -> bool {
    let is_one = |name: &str| TRACING.iter().any(|prefix| name.starts_with(prefix));
    frame.module.as_deref() == Some(kernel::MODULE) && frame.function.as_deref().is_some_and(is_one)
}
