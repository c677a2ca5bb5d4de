//! `html`: a report as one page, in one file, to mail or to attach to a ticket.
//!
//! Works from `file://`: no script, nothing from elsewhere; its content security policy forbids both. Light and dark as
//! the browser asks for. The daemon's page is made of the same parts.

mod allocator;
mod census;
mod curve;
mod diff;
mod icicle;
mod parts;
mod target;
#[cfg(test)]
mod tests;
mod why;
mod words;

use std::io;

pub use allocator::{allocator, sites};
pub use curve::{Curve, Line, spark};
pub use diff::diff;
use drainprof_census::Census;
use maud::{DOCTYPE, Markup, PreEscaped, html};
pub use parts::{Column, Fact, bar, cell, fact, facts, number, table, text};
pub use target::{findings, heap_bar, target};
pub use why::answer;
pub use words::{TERMS, Term, glossary, named, word};

use super::{Error, Exporter, PinWeight, Style, flamegraph::subtitle, shown, weigh::weigh};
use crate::{Began, Ended, Report, Target, diff::Diff, health::Health, units, why::Why};

/// The style sheet of all pages.
pub const STYLE: &str = include_str!("style.css");
/// What a page in a file may do: show itself.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'";
/// Processes that are shown in full; of more, only a row of the table.
const PROCESSES: usize = 32;
/// Rows of the table of processes.
const LISTED: usize = 500;
/// Characters of names.
const NAME: usize = 96;

#[derive(Debug)]
pub(super) struct Html;

/// A page in a file of its own, under a title.
fn file(title: &str, content: &Markup, out: &mut dyn io::Write) -> Result<(), Error> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " – drainprof" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                main { h1 { (title) } (content) }
                details { summary { "What the numbers mean" } (glossary()) }
            }
        }
    };
    out.write_all(page.into_string().as_bytes())?;
    out.write_all(b"\n")?;
    Ok(())
}

/// Writes the answer of `drainprof why` as a page.
///
/// # Errors
/// Those of the writer.
pub fn write_why(answer: &Why, out: &mut dyn io::Write) -> Result<(), Error> {
    let pids = answer.pids.iter().take(LISTED).map(u32::to_string).collect::<Vec<_>>().join(", ");
    let title = format!("{} ({pids})", shown(&answer.comm, NAME));
    let content = html! {
        p.dim {
            (units::duration(answer.seconds)) " observed, probes took "
            (units::percent(answer.cost_ratio)) " of one CPU"
        }
        (why::whole(answer))
    };
    file(&title, &content, out)
}

/// Writes a census as a page.
///
/// # Errors
/// Those of the writer.
pub fn write_census(taken: &Census, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
    let title = format!("{} ({})", shown(&taken.comm, NAME), taken.pid);
    file(&title, &census::census(taken, style.top), out)
}

/// Writes a comparison as a page.
pub(super) fn write_diff(
    compared: &Diff,
    style: &Style,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    file("Before and after", &diff(compared, style.top), out)
}

impl Exporter for Html {
    fn report(&self, report: &Report, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        file(&title(report), &whole(report, style), out)
    }
}

/// The processes of a report, in few words.
#[must_use]
pub fn title(report: &Report) -> String {
    match report.targets.as_slice() {
        [] => "No process".to_owned(),
        [one] => format!("{} ({})", shown(&one.comm, NAME), one.pid),
        [first, ..] if report.targets.iter().all(|target| target.comm == first.comm) => {
            format!("{}, {} processes", shown(&first.comm, NAME), report.targets.len())
        }
        all => format!("{} processes", all.len()),
    }
}

/// A report as a page's content.
#[must_use]
pub fn whole(report: &Report, style: &Style) -> Markup {
    html! {
        (about(report))
        (answer(report))
        @for line in super::not_measurable(report) { p.bad { (line) } }
        (losses(report))
        (findings(&report.findings))
        @if report.targets.len() > 1 { (processes(&report.targets)) }
        (flame(report, style.weight))
        @for one in report.targets.iter().take(PROCESSES) {
            section {
                h2 id={ "t" (one.target) } { (shown(&one.comm, NAME)) " (" (one.pid) ")" }
                p.dim { (shown(&one.exe, NAME)) " · " (life(one)) }
                (target(one, style.top))
            }
        }
        @if report.targets.len() > PROCESSES {
            p { "Only " (PROCESSES) " of " (report.targets.len()) " processes are shown in full." }
        }
    }
}

/// Who wrote it, of which time.
fn about(report: &Report) -> Markup {
    html! {
        p.dim {
            (shown(&report.tool.name, NAME)) " " (shown(&report.tool.version, NAME))
            @if !report.host.kernel.is_empty() { ", Linux " (shown(&report.host.kernel, NAME)) }
            ", observed for " (report.window.observed_words()) ", own CPU time " (units::duration(report.self_use.cpu_seconds))
            ", own memory " (units::bytes(report.self_use.peak_rss_bytes.saturating_add(report.self_use.map_bytes)))
        }
    }
}

/// What was lost, or that nothing was: always shown.
#[must_use]
pub fn losses(report: &Report) -> Markup {
    let health = Health::from_names(&report.losses);
    html! {
        p {
            (named("losses", "Losses")) ": "
            @if health.lines.is_empty() { "none" } @else if report.complete { "none that the counts need" }
            @if !report.complete { " " b.bad { "the report is incomplete" } }
        }
        @if !health.lines.is_empty() {
            ul.plain { @for line in &health.lines { li { (shown(&line.sentence(), super::SENTENCE)) } } }
        }
    }
}

fn life(target: &Target) -> String {
    let began = match target.began {
        Began::Attached => "attached while it ran",
        Began::FromStart => "observed from its start",
        Began::Forked { .. } => "forked while observed",
        Began::Exec { .. } => "began by exec while observed",
    };
    let ended = match target.ended {
        None => "still running".to_owned(),
        Some(Ended::Exec) => "ended by exec".to_owned(),
        Some(Ended::Exit { code: Some(code), .. }) => format!("exited with {code}"),
        Some(Ended::Exit { signal: Some(signal), .. }) => format!("killed by signal {signal}"),
        Some(Ended::Exit { .. }) => "exited".to_owned(),
    };
    format!("{began}, {ended}")
}

fn processes(targets: &[Target]) -> Markup {
    let columns =
        [text("process"), number("RSS"), number("growth"), number("DSR"), number("retained")];
    let rows: Vec<_> = targets.iter().enumerate().take(LISTED).map(|(index, one)| {
        let memory = one.memory.as_ref();
        let rss = memory.map(|memory| memory.last.rss_bytes).or(one.rss_bytes);
        let lowest = one.allocators.iter().filter_map(|own| own.dsr).reduce(f64::min);
        let retained = one.allocators.iter().filter_map(|own| own.retention.bytes);
        let retained = retained.reduce(u64::saturating_add);
        let name = format!("{} ({})", shown(&one.comm, NAME), one.pid);
        let slope = memory.and_then(|memory| memory.slope_bytes_per_second);
        let dash = || "-".to_owned();
        vec![
            html! { @if index < PROCESSES { a href={ "#t" (one.target) } { (name) } } @else { (name) } },
            cell(rss.map_or_else(dash, units::bytes)),
            cell(slope.map_or_else(dash, units::byte_rate)),
            cell(lowest.map_or_else(dash, |dsr| units::dsr(Some(dsr)))),
            cell(retained.map_or_else(dash, units::bytes)),
        ]
    }).collect();
    table(&format!("Processes: {} of {}", rows.len(), targets.len()), &columns, &rows)
}

/// The call stacks of all allocators, and those by which memory grows, as pictures.
#[must_use]
pub fn flame(report: &Report, weight: PinWeight) -> Markup {
    let weights = [weight, PinWeight::Faults];
    let pictures = if weights[0] == weights[1] { &weights[1..] } else { &weights[..] };
    html! {
        @for stacks in pictures.iter().map(|weight| weigh(report, *weight)) {
            @if !stacks.folded.is_empty() {
                @let quantity = stacks.quantity;
                @let title = if quantity.is_of_growth() { "What grew" }
                    else if quantity.is_of_pins() { "Who pins" } else { "Who holds" };
                h2 { (title) small { " by " (quantity.words()) } }
                (icicle::draw(&stacks.folded, &|value| match quantity.unit() {
                    "bytes" => units::bytes(value),
                    unit => format!("{value} {unit}"),
                }))
                p.dim { small { (subtitle(report, &stacks.left_out)) } }
            }
        }
    }
}
