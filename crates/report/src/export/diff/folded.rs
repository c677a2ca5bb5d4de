//! `folded` and `flamegraph` of a comparison: one line per call path, its weight before and after.
//!
//! What was counted over a window is scaled to the length of the second window, so that equal rates have
//! equal weights. Kinds of allocators are not mixed: with pins, the sites of kind `drain` are drawn; without
//! any, what the other kinds hold.

use std::{collections::BTreeMap, io};

use inferno::flamegraph::{self, Options};

use super::{Error, PinWeight, Style, escape};
use crate::export::{flamegraph::with_key, stack::folded};
use crate::{
    Kind,
    diff::{AllocatorDiff, Change, Diff, DiffFrame, GrowthDiff, SiteDiff},
    units,
};

/// Characters of a name.
const NAME: usize = 200;
/// The largest sum that is drawn; above it all weights are divided, because the sums of what a stored report
/// says must not overflow.
const MAX_WIDTH: u64 = 1 << 40;

/// Writes `outermost;…;innermost before after`, a line per path.
pub(super) fn write(diff: &Diff, style: &Style, out: &mut dyn io::Write) -> Result<(), Error> {
    for (path, [before, after]) in stacks(diff, style.weight).paths {
        writeln!(out, "{path} {before} {after}")?;
    }
    Ok(())
}

/// Draws the second report, coloured by how it differs from the first.
pub(super) fn flame_graph(
    diff: &Diff,
    style: &Style,
    out: &mut dyn io::Write,
) -> Result<(), Error> {
    let stacks = stacks(diff, style.weight);
    let total = stacks
        .paths
        .values()
        .fold(0u64, |sum, [before, after]| sum.saturating_add(*before).saturating_add(*after));
    let divisor = (total / MAX_WIDTH).saturating_add(1);
    let lines: Vec<String> = stacks
        .paths
        .iter()
        .map(|(path, [before, after])| (path, before / divisor, after / divisor))
        .filter(|&(_, _, after)| after > 0)
        .map(|(path, before, after)| format!("{path} {before} {after}"))
        .collect();
    if lines.is_empty() {
        return Err(Error::NothingToDraw);
    }
    let gone = stacks.paths.values().filter(|[_, after]| *after == 0).count();
    let mut options = Options::default();
    let [before, after] = [0, 1].map(|side| {
        let sum = stacks.paths.values().fold(0u64, |sum, own| sum.saturating_add(own[side]));
        if stacks.unit == "bytes" { units::bytes(sum) } else { sum.to_string() }
    });
    options.title = format!("{} after ({before} → {after}), coloured by the change", stacks.what);
    let [before, after] = [&diff.before, &diff.after].map(|side| {
        let file = escape::shown(&side.file, NAME);
        let incomplete = if side.complete { "" } else { ", INCOMPLETE" };
        format!("{file} ({}{incomplete})", units::duration(side.observed_seconds))
    });
    let missing = match gone {
        0 => String::new(),
        1 => "; 1 path is gone and has no width".to_owned(),
        gone => format!("; {gone} paths are gone and have no width"),
    };
    options.subtitle = Some(format!("{before} → {after}{missing}"));
    stacks.unit.clone_into(&mut options.count_name);
    options.factor = divisor as f64;
    options.deterministic = true;
    let mut svg = Vec::new();
    flamegraph::from_lines(&mut options, lines.iter().map(String::as_str), &mut svg)?;
    // The ends of the library's scale, and its middle.
    let key = [
        ("rgb(100,100,255)", "shrank most"),
        ("rgb(250,250,250)", "as before"),
        ("rgb(255,100,100)", "grew most"),
    ];
    let key = key.map(|(colour, what)| (colour.to_owned(), what.to_owned()));
    out.write_all(&with_key(svg, &key))?;
    Ok(())
}

/// Paths with their weights before and after.
struct Stacks {
    paths: BTreeMap<String, [u64; 2]>,
    what: &'static str,
    unit: &'static str,
}

/// What a path has in both reports.
type Sides = fn(&GrowthDiff) -> [Option<i64>; 2];

/// The paths that memory grows by. They are sums, not rates: a window twice as long does not grow twice as much.
fn grown(diff: &Diff, unit_of: PinWeight) -> Option<Stacks> {
    let added = |change: Option<i64>| change.unwrap_or_default().max(0).unsigned_abs();
    let (what, of): (_, Sides) = match unit_of {
        PinWeight::Granules | PinWeight::Bytes | PinWeight::Retained => return None,
        PinWeight::Faults => {
            ("bytes of resident memory added", |path| [path.rss_bytes.before, path.rss_bytes.after])
        }
        PinWeight::Heap => {
            ("bytes of heap added", |path| [path.heap_bytes.before, path.heap_bytes.after])
        }
        PinWeight::Mappings => ("bytes mapped and not unmapped", |path| {
            [path.outstanding_bytes.before, path.outstanding_bytes.after]
                .map(|bytes| bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX)))
        }),
    };
    let mut paths = BTreeMap::new();
    for grown in &diff.growth {
        let sums = paths.entry(path(&[], &grown.frames)).or_insert([0u64; 2]);
        for (sum, value) in sums.iter_mut().zip(of(grown)) {
            *sum = sum.saturating_add(added(value));
        }
    }
    paths.retain(|_, weights| *weights != [0, 0]);
    Some(Stacks { paths, what, unit: "bytes" })
}

fn stacks(diff: &Diff, unit_of: PinWeight) -> Stacks {
    if let Some(stacks) = grown(diff, unit_of) {
        return stacks;
    }
    let with_sites = || diff.allocators.iter().filter_map(|a| Some((a, a.sites.as_ref()?)));
    let pins = with_sites().any(|(allocator, _)| allocator.kind == Kind::Drain);
    let drawn: Vec<_> =
        with_sites().filter(|(allocator, _)| pins == (allocator.kind == Kind::Drain)).collect();
    let (what, unit) = match (pins, unit_of) {
        (false, _) => ("bytes of live objects", "bytes"),
        (true, PinWeight::Bytes) => ("bytes of pins", "bytes"),
        (true, PinWeight::Retained) => ("bytes of retained granules", "bytes"),
        (true, _) => ("pinned granules", "granules"),
    };
    let windows = [diff.before.observed_seconds, diff.after.observed_seconds];
    let scale =
        if windows.iter().all(|&seconds| seconds > 0.0) { windows[1] / windows[0] } else { 1.0 };
    let mut paths = BTreeMap::new();
    for (allocator, sites) in &drawn {
        let root = if drawn.len() > 1 { root(allocator) } else { Vec::new() };
        for site in *sites {
            let (weight, counted) = weight(site, pins, unit_of);
            let before = weight.before.unwrap_or_default();
            let before = if counted { scaled(before, scale) } else { before };
            let sums = paths.entry(path(&root, &site.frames)).or_insert([0u64; 2]);
            sums[0] = sums[0].saturating_add(before);
            sums[1] = sums[1].saturating_add(weight.after.unwrap_or_default());
        }
    }
    paths.retain(|_, weights| *weights != [0, 0]);
    Stacks { paths, what, unit }
}

/// What a site weighs, and whether that was counted over the window.
fn weight(site: &SiteDiff, pins: bool, unit_of: PinWeight) -> (Change<u64>, bool) {
    match (pins, unit_of) {
        (true, PinWeight::Bytes) => (site.bytes, true),
        (true, PinWeight::Retained) => (site.retained_bytes, false),
        (true, _) => (site.granules_pinned, true),
        (false, _) => (site.live_bytes, false),
    }
}

#[allow(clippy::cast_sign_loss, reason = "counts are not negative; the cast saturates")]
fn scaled(count: u64, scale: f64) -> u64 {
    (count as f64 * scale).round() as u64
}

fn root(allocator: &AllocatorDiff) -> Vec<String> {
    vec![folded(&allocator.comm), folded(&allocator.profile)]
}

/// Outermost first.
fn path(root: &[String], frames: &[DiffFrame]) -> String {
    let mut names = root.to_vec();
    if frames.is_empty() {
        names.push("[path not captured]".to_owned());
    }
    names.extend(frames.iter().rev().map(|frame| folded(&super::text::frame_name(frame))));
    names.join(";")
}
