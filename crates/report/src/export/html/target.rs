//! One process: memory, heaps, growth, findings, then its allocators.

use drainprof_census::{Comparison, HeapSummary};
use maud::{Markup, html};

use super::{
    super::{SENTENCE, shown, text},
    allocator::{allocator, path},
    parts::{bar, cell, fact, facts, number, table, text as words_in},
    words,
};
use crate::{Finding, Memory, MemoryGrowth, Severity, Target, units};

/// Characters of names.
const NAME: usize = 96;

/// Everything of a process but its name; of lists, so many rows.
#[must_use]
pub fn target(target: &Target, top: usize) -> Markup {
    html! {
        (facts(&numbers(target)))
        @if let Some(memory) = &target.memory { (parts(memory)) }
        (findings(&target.findings))
        @if let Some(census) = &target.census { (heaps(census)) }
        @if let Some(growth) = &target.growth { (grown(growth, top)) }
        @for one in &target.allocators { (allocator(one, top)) }
    }
}

fn numbers(target: &Target) -> Vec<super::Fact> {
    let mut all = Vec::new();
    if let Some(memory) = &target.memory {
        let (first, last) = (memory.first.rss_bytes, memory.last.rss_bytes);
        let over = units::duration(memory.seconds);
        all.push(
            fact("RSS", units::bytes(last)).and(format!("from {} in {over}", units::bytes(first))),
        );
        if let (Some(slope), Some([low, high])) =
            (memory.slope_bytes_per_second, memory.slope_interval)
        {
            let ends = format!("95 %: {} to {}", units::byte_rate(low), units::byte_rate(high));
            all.push(fact("growth", units::byte_rate(slope)).and(ends));
        }
        if let (Some(used), Some(limit)) =
            (memory.last.cgroup_bytes, memory.last.cgroup_limit_bytes)
        {
            let full =
                memory.seconds_to_limit.map(|left| format!(", full in {}", units::duration(left)));
            let of = format!("{} used{}", units::bytes(used), full.unwrap_or_default());
            all.push(fact("limit", units::bytes(limit)).and(of));
        }
    } else if let Some(rss) = target.rss_bytes {
        all.push(fact("RSS", units::bytes(rss)));
    }
    if target.cost.hits > 0 {
        let share = target.cost.cpu_ratio.map_or_else(|| "-".to_owned(), units::percent);
        let hits = units::counted(target.cost.hits, "hit", "hits");
        let how = if target.cost.measured { "" } else { ", costs of other machines" };
        all.push(fact("cost", share).and(format!("{hits}{how}")));
    }
    all
}

/// Resident memory in parts that add up.
fn parts(memory: &Memory) -> Markup {
    let last = &memory.last;
    let parts = [
        ("anonymous".to_owned(), last.anon_bytes),
        ("files".to_owned(), last.file_bytes),
        ("shared".to_owned(), last.shmem_bytes),
    ];
    bar("Resident memory", &parts, &units::bytes)
}

/// Findings, worst first; notes, which are no warnings, on request.
#[must_use]
pub fn findings(findings: &[Finding]) -> Markup {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let notes = sorted.partition_point(|finding| finding.severity > Severity::Info);
    let (bad, notes) = sorted.split_at(notes);
    let list = |all: &[&Finding]| {
        html! { ul.plain { @for finding in all { li { (sentence(finding)) } } } }
    };
    html! {
        @if !bad.is_empty() { (list(bad)) }
        @if !notes.is_empty() {
            details { summary { "Notes: " (notes.len()) } (list(notes)) }
        }
    }
}

fn sentence(finding: &Finding) -> Markup {
    let (class, mark) = match finding.severity {
        Severity::Info => ("dim", "note"),
        Severity::Warning => ("warn", "warning"),
        Severity::Error => ("bad", "error"),
    };
    html! {
        b class=(class) { (mark) } " "
        span.id { (shown(&finding.code, NAME)) } " "
        @for about in [&finding.profile, &finding.instance].into_iter().flatten() {
            (shown(about, NAME)) " "
        }
        (shown(&finding.message, SENTENCE))
    }
}

/// Heaps as a census has found them, and what changed.
fn heaps(census: &Comparison) -> Markup {
    html! {
        h3 { "Heaps" }
        ul.plain { @for line in text::heaps::lines(census) { li { (line) } } }
        @for heap in census.end.iter().flat_map(|end| &end.heaps) { (heap_bar(heap)) }
    }
}

/// A heap's resident memory in parts.
#[must_use]
pub fn heap_bar(heap: &HeapSummary) -> Markup {
    let idle = heap.resident_bytes.saturating_sub(heap.held_bytes);
    let unknown = heap.unknown_bytes.min(idle);
    let mut parts = vec![
        ("live objects".to_owned(), heap.live_bytes),
        ("held besides".to_owned(), heap.held_bytes.saturating_sub(heap.live_bytes)),
        ("free".to_owned(), idle - unknown),
    ];
    if unknown > 0 {
        parts.push(("unknown".to_owned(), unknown));
    }
    bar(&format!("Heap {}", shown(&heap.allocator, NAME)), &parts, &units::bytes)
}

fn grown(growth: &MemoryGrowth, top: usize) -> Markup {
    let signed = text::growth::signed;
    let rss = &growth.rss;
    let columns =
        [words_in("call stack"), number("RSS"), number("faults"), number("heap"), number("mapped")];
    let rows: Vec<_> = growth
        .paths
        .iter()
        .take(top)
        .map(|own| {
            vec![
                path(&own.frames, &[]),
                cell(signed(own.selected.map_or(own.rss.resident(), |selected| selected.bytes))),
                cell(own.faults),
                cell(signed(own.heap_bytes)),
                cell(units::bytes(own.outstanding_bytes)),
            ]
        })
        .collect();
    let all = growth.paths_total.max(rows.len() as u64);
    html! {
        h3 { "Growth" }
        p {
            "Resident memory " b { (signed(rss.change.resident())) } ": anonymous " (signed(rss.change.anon_bytes))
            ", files " (signed(rss.change.file_bytes)) ", shared " (signed(rss.change.shmem_bytes))
            "; by call stacks " (signed(rss.by_paths.resident())) ", by other system calls "
            (signed(rss.by_others.resident())) ", from outside " (signed(rss.from_outside.resident())) "."
        }
        @let touched = &growth.touched;
        p {
            (words::named("touched", "Touched")) " " (units::bytes(touched.bytes))
            @for (what, bytes) in [
                ("pinned granules", touched.pinned_bytes),
                ("open ones", touched.open_bytes),
                ("drained ones", touched.drained_bytes),
            ] {
                ", in " (what) " " (bytes.map_or("not known".to_owned(), units::bytes))
            }
            "."
        }
        (table(&format!("Call stacks that add memory: {} of {all}", rows.len()), &columns, &rows))
    }
}
