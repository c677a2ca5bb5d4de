//! Two reports compared, as a page's content.

use maud::{Markup, html};

use super::{
    super::{SENTENCE, shown},
    parts::{cell, number, table, text},
};
use crate::{
    diff::{AllocatorDiff, Change, Diff, DiffFrame, Side, SiteDiff, Status},
    units,
};

/// Characters of names.
const NAME: usize = 96;
/// Functions of a call stack.
const FRAMES: usize = 4;

/// A comparison; of lists, so many rows.
#[must_use]
pub fn diff(diff: &Diff, top: usize) -> Markup {
    html! {
        (table("What is compared", &[text("report"), number("observed"), number("processes"), text("complete")], &[
            side("before", &diff.before), side("after", &diff.after),
        ]))
        @if !diff.notes.is_empty() {
            ul.plain { @for note in &diff.notes { li.warn { (shown(note, SENTENCE)) } } }
        }
        @if diff.allocators.is_empty() { p { "Neither report has an allocator." } }
        @for one in &diff.allocators { (allocator(one, top)) }
        @if !diff.growth.is_empty() {
            h2 { "Growth" }
            (table("Call stacks that add memory", &[text("call stack"), number("before"), number("after")],
                &diff.growth.iter().take(top).map(|own| vec![
                    stack(&own.frames), cell(signed(own.rss_bytes.before)), cell(signed(own.rss_bytes.after)),
                ]).collect::<Vec<_>>()))
        }
    }
}

fn side(name: &str, side: &Side) -> Vec<Markup> {
    vec![
        html! { (name) ": " (shown(&side.file, NAME)) },
        cell(units::duration(side.observed_seconds)),
        cell(side.processes),
        cell(if side.complete { "yes" } else { "no" }),
    ]
}

/// A value before and after.
fn row<T: Copy>(name: &'static str, change: Change<T>, shown: impl Fn(T) -> String) -> Vec<Markup> {
    let value = |value: Option<T>| cell(value.map_or_else(|| "-".to_owned(), &shown));
    vec![super::word(name), value(change.before), value(change.after)]
}

fn allocator(one: &AllocatorDiff, top: usize) -> Markup {
    let count = |value: u64| value.to_string();
    let rows = [
        row("DSR", one.dsr, |dsr| units::dsr(Some(dsr))),
        row("closes per second", one.closes_per_second, units::rate),
        row("pinned per second", one.pinned_per_second, units::rate),
        row("open now", one.open_granules, count),
        row("retained", one.retained_bytes, units::bytes),
        row("live objects", one.live_objects, count),
        row("live bytes", one.live_bytes, units::bytes),
        row("growth", one.slope_bytes_per_second, units::byte_rate),
        row("verdict", one.verdict, |verdict| verdict.words().to_owned()),
    ];
    let known = |row: &&Vec<Markup>| row[1].0 != "-" || row[2].0 != "-";
    let rows: Vec<_> = rows.iter().filter(known).cloned().collect();
    let sites = one.sites.as_deref().unwrap_or_default();
    html! {
        h2 { (shown(&one.profile, NAME)) small { " in " (shown(&one.comm, NAME)) } }
        (table("Before and after", &[text("number"), number("before"), number("after")], &rows))
        (table(
            &format!("Call stacks: {} of {}", sites.len().min(top), sites.len()),
            &[text("call stack"), text("became"), number("pinned before"), number("pinned after"), number("live before"), number("live after")],
            &sites.iter().take(top).map(site).collect::<Vec<_>>(),
        ))
    }
}

fn site(site: &SiteDiff) -> Vec<Markup> {
    let class = match site.status {
        Status::New | Status::Grown => "bad",
        Status::Shrunk | Status::Gone => "good",
        Status::Same => "",
    };
    let rate = |value: Option<f64>| cell(value.map_or_else(|| "-".to_owned(), units::rate));
    let bytes = |value: Option<u64>| cell(value.map_or_else(|| "-".to_owned(), units::bytes));
    vec![
        stack(&site.frames),
        html! { span class=(class) { (site.status.words()) } @if !site.certain { small { " (may only rank lower)" } } },
        rate(site.pinned_per_second.before),
        rate(site.pinned_per_second.after),
        bytes(site.live_bytes.before),
        bytes(site.live_bytes.after),
    ]
}

fn stack(frames: &[DiffFrame]) -> Markup {
    html! {
        @for frame in frames.iter().take(FRAMES) {
            @let name = frame.function.as_deref().or(frame.module_offset.as_deref()).unwrap_or("unknown");
            (shown(name, NAME)) br;
        }
        @if frames.len() > FRAMES { small { (frames.len() - FRAMES) " more" } }
    }
}

fn signed(bytes: Option<i64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), super::super::text::growth::signed)
}
