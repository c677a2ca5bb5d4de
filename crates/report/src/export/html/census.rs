//! A census of a process's heaps, as a page's content.

use drainprof_census::{Census, Context, ContextKind, Heap, Part, PartKind};
use maud::{Markup, html};

use super::{
    super::{
        SENTENCE,
        heaps::{huge, other_notes, unknown},
        shown,
    },
    Fact,
    parts::{bar, cell, fact, facts, number, table, text},
};
use crate::units;

/// Characters of names.
const NAME: usize = 96;

/// A census; of lists, so many rows.
pub(super) fn census(census: &Census, top: usize) -> Markup {
    let parts: Vec<(String, u64)> =
        census.parts.iter().map(|part| (name(part), part.bytes)).collect();
    html! {
        (facts(&[
            fact("RSS", units::bytes(census.rss_bytes)),
            fact("validated", units::bytes(census.validated_bytes))
                .and("read and validated, or files and shared memory by the kernel's account"),
            fact("swap", units::bytes(census.swap_bytes)),
            fact("read in", units::duration(census.seconds)).and(match census.frozen_seconds {
                Some(_) => "the process stood still: all numbers are of one moment",
                None => "the process ran on: numbers are of neighbouring moments",
            }),
        ]))
        @for one in &census.unknown { p.warn { "Unknown: " (shown(&unknown(one), SENTENCE)) } }
        @for note in other_notes(census) { p.warn { "Not seen: " (shown(note, SENTENCE)) } }
        @if census.heaps.is_empty() { p.warn { "No heap whose structures are known." } }
        (bar("Resident memory by use", &parts, &units::bytes))
        @if let Some(huge) = huge(census.huge_bytes, census.huge_idle_bytes) { p { (huge) "." } }
        @for one in &census.heaps { (heap(one, top)) }
        (contexts(&census.contexts, top))
    }
}

fn name(part: &Part) -> String {
    let allocator = shown(part.allocator.as_deref().unwrap_or("heap"), NAME);
    match part.kind {
        PartKind::HeapHeld => format!("{allocator} held"),
        PartKind::HeapFree => format!("{allocator} free"),
        PartKind::HeapUnknown => format!("{allocator} unknown"),
        PartKind::Anonymous => "anonymous, no known heap".to_owned(),
        PartKind::Stack => "stacks".to_owned(),
        PartKind::File => "files".to_owned(),
        PartKind::Shared => "shared".to_owned(),
    }
}

fn heap(heap: &Heap, top: usize) -> Markup {
    let mut numbers: Vec<Fact> = vec![
        fact("live bytes", units::bytes(heap.live_bytes)).and(units::counted(
            heap.live_objects,
            "object",
            "objects",
        )),
        fact("resident", units::bytes(heap.resident_bytes)),
        fact("free", units::bytes(heap.free_bytes)),
    ];
    if let Some(bytes) = heap.trimmable_bytes {
        numbers.push(fact("malloc_trim(0) would give back", units::bytes(bytes)));
    }
    if heap.unknown_bytes > 0 {
        numbers.push(fact("could not be read", units::bytes(heap.unknown_bytes)));
    }
    let classes: Vec<_> = heap
        .classes
        .iter()
        .take(top)
        .map(|class| {
            vec![
                cell(units::bytes(class.size)),
                cell(class.objects),
                cell(units::bytes(class.bytes)),
                cell(units::bytes(class.alone_bytes)),
            ]
        })
        .collect();
    let types: Vec<_> = heap
        .types
        .iter()
        .take(top)
        .map(|one| {
            vec![
                cell(shown(&one.name, NAME)),
                cell(one.objects),
                cell(units::bytes(one.bytes)),
                cell(one.arenas),
            ]
        })
        .collect();
    html! {
        section {
            h2 { (shown(&heap.allocator, NAME)) }
            (facts(&numbers))
            (table("Live objects by size", &[number("up to"), number("live objects"), number("live bytes"), number("alone hold")], &classes))
            (table("Live objects by type", &[text("type"), number("live objects"), number("live bytes"), number("arenas")], &types))
        }
    }
}

fn contexts(contexts: &[Context], top: usize) -> Markup {
    let mut sorted: Vec<&Context> = contexts.iter().collect();
    sorted.sort_by_key(|context| std::cmp::Reverse(context.total_bytes));
    let rows: Vec<_> = sorted.iter().take(top).map(|context| vec![
        html! { (shown(&context.name, NAME)) @if let Some(ident) = &context.ident { " " small { (shown(ident, NAME)) } } },
        cell(units::bytes(context.total_bytes)),
        cell(context.free_bytes.map_or_else(|| "-".to_owned(), units::bytes)),
    ]).collect();
    html! {
        @if !rows.is_empty() {
            h2 { @if sorted.iter().any(|own| own.kind == ContextKind::Pool) { "Pools" } @else { "Memory contexts" } }
            (table("The largest", &[text("name"), number("bytes"), number("free")], &rows))
        }
    }
}
