use drainprof_census::{Census, Heap, Part as CensusPart, PartKind, SCHEMA as CENSUS};

use super::*;
use crate::{
    Kind, Options,
    export::{Style, write_why},
    samples,
};

pub(super) const MIB: u64 = 1 << 20;

pub(super) fn part(kind: PartKind, allocator: Option<&str>, bytes: u64) -> CensusPart {
    CensusPart { kind, known_by: kind.known_by(), allocator: allocator.map(str::to_owned), bytes }
}

/// A census of one heap of glibc: live, resident, what could be trimmed, and anonymous memory beside it.
fn census(live: u64, resident: u64, trimmable: u64, other: u64) -> Census {
    let heap = Heap {
        allocator: "glibc".to_owned(),
        resident_bytes: resident,
        live_bytes: live,
        trimmable_bytes: Some(trimmable),
        ..Heap::default()
    };
    Census {
        schema: CENSUS.to_owned(),
        rss_bytes: resident + other,
        parts: vec![
            part(PartKind::HeapHeld, Some("glibc"), resident - trimmable),
            part(PartKind::HeapFree, Some("glibc"), trimmable),
            part(PartKind::Anonymous, None, other),
        ],
        heaps: vec![heap],
        ..Census::default()
    }
}

/// A report of growth in which the memory of the first process looks like this.
pub(super) fn growth(verdict: MemoryVerdict, rss: u64) -> Report {
    let snapshot = samples::memory_snapshot();
    let mut report = Report::build(&snapshot, &Options::default());
    report.targets.truncate(1);
    let target = &mut report.targets[0];
    target.ended = None;
    let memory = target.memory.as_mut().unwrap();
    memory.verdict = verdict;
    memory.last.rss_bytes = rss;
    memory.slope_bytes_per_second = Some(0.0);
    memory.slope_interval = Some([-10.0, 10.0]);
    report
}

pub(super) fn why(growth: &Report, probes: &[Report], census: Option<Census>) -> Why {
    let censuses: Vec<Census> = census.into_iter().collect();
    why_of_all(growth, probes, &censuses)
}

pub(super) fn why_of_all(growth: &Report, probes: &[Report], censuses: &[Census]) -> Why {
    Why::of(&Measured { growth, probes, censuses, draft: None, undrafted: None, unseen: &[] })
}

pub(super) fn text(why: &Why) -> String {
    let mut out = Vec::new();
    write_why(why, &Style::default(), &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Each answer, of the numbers that lead to it; and none is given where the numbers are missing.
#[test]
fn answers() {
    let steady = growth(MemoryVerdict::Steady, 120 * MIB);
    let of = |census| why(&steady, &[], census).answer;
    assert_eq!(of(Some(census(95 * MIB, 100 * MIB, MIB, 20 * MIB))), Answer::Healthy);
    assert_eq!(of(Some(census(10 * MIB, 100 * MIB, 80 * MIB, 20 * MIB))), Answer::Idle);
    assert_eq!(of(Some(census(10 * MIB, 100 * MIB, 0, 20 * MIB))), Answer::Pinned);
    assert_eq!(of(Some(census(50 * MIB, 60 * MIB, MIB, 60 * MIB))), Answer::Unknown);
    assert_eq!(of(None), Answer::Unknown);
    // What is little is no reason, however large its share is.
    let small = growth(MemoryVerdict::Steady, 12 * MIB);
    assert_eq!(why(&small, &[], Some(census(MIB, 10 * MIB, 8 * MIB, MIB))).answer, Answer::Healthy);
    let early = growth(MemoryVerdict::TooLittle, 120 * MIB);
    let healthy = || Some(census(95 * MIB, 100 * MIB, MIB, 20 * MIB));
    assert_eq!(why(&early, &[], healthy()).answer, Answer::Unknown);
    // What surely rises by much within a day is not healthy; what may as well stand still is.
    let mut rising = growth(MemoryVerdict::Steady, 120 * MIB);
    let mut slope = |low: f64| {
        let memory = rising.targets[0].memory.as_mut().unwrap();
        memory.slope_bytes_per_second = Some(47_000.0);
        memory.slope_interval = Some([low, 94_000.0 - low]);
        why(&rising, &[], healthy())
    };
    assert_eq!(slope(-1000.0).answer, Answer::Healthy);
    assert_eq!(slope(100.0).answer, Answer::Healthy);
    let found = slope(46_000.0);
    assert_eq!(found.answer, Answer::Unknown);
    assert!(found.unseen.iter().any(|text| text.contains("rose by 45.9 KiB/s")), "{found:?}");
    let growing = growth(MemoryVerdict::Growing, 120 * MIB);
    assert_eq!(why(&growing, &[], healthy()).answer, Answer::Growing);
}

/// Probes that found pins speak before the heaps do, and name who pins; those that decided nothing say so.
#[test]
fn probes_speak() {
    let steady = growth(MemoryVerdict::Steady, 8 << 20);
    let stacks = Report::build(&samples::stacks_snapshot(), &Options::default());
    let found = why(&steady, &[stacks], Some(census(7 << 20, 8 << 20, 0, 0)));
    assert_eq!(found.answer, Answer::Pinned);
    assert_eq!(found.holders[0].kind, HolderKind::Granules);
    assert!(found.who.iter().any(|who| who.contains("make_session")), "{:?}", found.who);
    assert!(found.next[0].command.as_ref().unwrap().contains("--level stacks"));
    let mut undecided = Report::build(&samples::boundary_snapshot(), &Options::default());
    for allocator in undecided.targets.iter_mut().flat_map(|target| &mut target.allocators) {
        let granules = &mut allocator.granules;
        (granules.unknown, granules.drainable, granules.pinned) = (granules.closed, 0, 0);
        allocator.kind = Kind::Drain;
    }
    let silent = why(&steady, &[undecided], Some(census(7 << 20, 8 << 20, 0, 0)));
    assert!(silent.unseen.iter().any(|text| text.contains("level objects")), "{:?}", silent.unseen);
}

/// The page has at most 25 lines of 100 columns, whatever names the process has; JSON reads back.
#[test]
fn pages() {
    let mut steady = growth(MemoryVerdict::Growing, 120 << 20);
    steady.targets[0].comm = "\x1b[31mevil".repeat(20);
    let stacks = Report::build(&samples::stacks_snapshot(), &Options::default());
    let mut found = why(&steady, &[stacks], Some(census(10 << 20, 100 << 20, 1 << 20, 20 << 20)));
    found.unseen = vec!["word ".repeat(100); 9];
    found.who = vec!["x".repeat(500); 9];
    let page = text(&found);
    assert!(page.lines().count() <= 25 && !page.contains('\x1b'), "{page}");
    assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
    let json = serde_json::to_string(&found).unwrap();
    assert_eq!(serde_json::from_str::<Why>(&json).unwrap(), found);
}
