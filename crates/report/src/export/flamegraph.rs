//! `flamegraph`: an SVG picture of the call paths, drawn by `inferno`.
//!
//! It needs nothing from elsewhere: search and zoom are a script in the file itself. `key` has the colours.

mod key;

use std::io::{self, Write as _};

use inferno::flamegraph::{Options, from_lines};

pub(super) use self::key::with_key;
use super::{
    escape,
    exporter::{Error, Exporter, Style},
    weigh::{Stacks, weigh},
};
use crate::model::Report;

/// Characters of a title's lists (processes, profiles), and of the line below it: what does not fit the
/// picture's width would be cut at both ends.
const LIST: usize = 27;
const BELOW: usize = 150;
/// All widths of a picture add up to less: what is more is only in a report that was made by hand.
const MAX_WIDTH: u64 = 1 << 52;

/// Grows up from the outermost function.
#[derive(Debug)]
pub(super) struct Flamegraph;

impl Exporter for Flamegraph {
    fn report(&self, report: &Report, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
        let stacks = weigh(report, style.weight);
        let svg =
            if stacks.folded.is_empty() { empty(report, &stacks) } else { draw(report, &stacks)? };
        out.write_all(&svg)?;
        out.write_all(b"\n")?;
        Ok(())
    }
}

fn draw(report: &Report, stacks: &Stacks) -> Result<Vec<u8>, Error> {
    let share = MAX_WIDTH / stacks.folded.len() as u64;
    let lines: Vec<String> = stacks
        .folded
        .iter()
        .map(|(stack, value)| format!("{stack} {}", (*value).min(share)))
        .collect();
    let mut palette = key::palette(stacks);
    let mut options = Options::default();
    options.title = title(stacks);
    options.subtitle = Some(subtitle(report, &stacks.left_out));
    stacks.quantity.words().clone_into(&mut options.count_name);
    // The same report is the same picture: a colour follows from the numbers.
    options.deterministic = true;
    options.palette_map = Some(&mut palette);
    options.bgcolors = Some(key::BACKGROUND);
    let mut svg = Vec::new();
    from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    Ok(with_key(svg, &key::of(stacks)))
}

fn title(stacks: &Stacks) -> String {
    let who = if stacks.quantity.is_of_growth() {
        "What grew"
    } else if stacks.quantity.is_of_times() {
        "Chosen by time"
    } else if stacks.quantity.is_of_pins() {
        "Who pins"
    } else {
        "Who holds"
    };
    let of = |list: Vec<&str>| escape::shown(&list.join(", "), LIST);
    let targets = of(stacks.targets.iter().map(String::as_str).collect());
    let profiles = of(stacks.profiles.iter().map(String::as_str).collect());
    let total = stacks.folded.values().fold(0, |sum: u64, value| sum.saturating_add(*value));
    let words = format!("{} ({})", stacks.quantity.words(), stacks.quantity.shown(total));
    if targets.is_empty() {
        return format!("{who}: {words}");
    }
    if profiles.is_empty() {
        return format!("{who}: {words} · {targets}");
    }
    format!("{who}: {words} · {targets} · {profiles}")
}

/// What the reader must know of the numbers, worst first.
pub(super) fn subtitle(report: &Report, left_out: &[String]) -> String {
    let mut parts = Vec::new();
    if !report.complete {
        parts.push("INCOMPLETE: something that the counts need was lost".to_owned());
    }
    parts.push(format!("{} observed", report.window.observed_words()));
    let mut allocators = report.targets.iter().flat_map(|target| &target.allocators);
    if let Some(sampling) = allocators.find_map(|allocator| allocator.sampling) {
        parts.push(format!("estimated from a sample of 1 of {} pages", sampling.one_in));
    }
    parts.extend(left_out.iter().cloned());
    escape::shown(&parts.join("; "), BELOW)
}

/// A picture that says why there is none.
fn empty(report: &Report, stacks: &Stacks) -> Vec<u8> {
    let grown = report.targets.iter().any(|target| target.growth.is_some());
    let paths = report
        .targets
        .iter()
        .flat_map(|target| &target.allocators)
        .any(|allocator| allocator.sites.is_some());
    let why = if stacks.quantity.is_of_growth() {
        if grown {
            format!("No call path has any {}", stacks.quantity.words())
        } else {
            "No growth was watched: it needs --growth".to_owned()
        }
    } else if !paths {
        "No call paths: the report is not of the level stacks".to_owned()
    } else if stacks.left_out.is_empty() {
        format!("No call path has any {}", stacks.quantity.unit())
    } else {
        "No call path is shown".to_owned()
    };
    nothing(&[title(stacks), why, subtitle(report, &stacks.left_out)])
}

/// A picture of a few lines of text.
fn nothing(lines: &[String; 3]) -> Vec<u8> {
    let mut svg = Vec::new();
    let _ = write!(
        svg,
        "<?xml version=\"1.0\" standalone=\"no\"?>\n\
         <svg version=\"1.1\" width=\"1200\" height=\"120\" viewBox=\"0 0 1200 120\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#eeeeee\"/>\n"
    );
    for (line, y) in lines.iter().zip([32, 64, 92]) {
        let _ = writeln!(
            svg,
            "<text x=\"600\" y=\"{y}\" text-anchor=\"middle\" font-family=\"monospace\" \
             font-size=\"14\">{}</text>",
            escape::xml(line)
        );
    }
    svg.extend_from_slice(b"</svg>");
    svg
}

#[cfg(test)]
mod tests;
