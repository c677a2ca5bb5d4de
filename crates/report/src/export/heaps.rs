//! The census of a process's heaps, for people: what resident memory is, what would go back, and what holds the rest.

mod map;
mod metrics;

use std::io::{self, Write};

use drainprof_census::{Census, Granules, Heap, Part, PartKind, Unknown};

pub use self::{map::write_heap_map, metrics::write_heap_metrics};
use super::{
    Style,
    contexts::write_contexts,
    escape::{NAME, shown},
    table::Rows,
};
use crate::units;

/// Characters of a step.
const STEP: usize = 400;

/// Writes the page. Sizes, counts and names of types: no contents.
///
/// # Errors
/// `out` cannot be written.
pub fn write_heaps(census: &Census, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "{}[{}]: resident {}, swapped {}, page tables {}",
        shown(&census.comm, NAME),
        census.pid,
        units::bytes(census.rss_bytes),
        units::bytes(census.swap_bytes),
        units::bytes(census.page_table_bytes)
    )?;
    write_unknown(census, out)?;
    writeln!(
        out,
        "read {} in {}; {}",
        units::bytes(census.read_bytes),
        units::duration(census.seconds),
        census.frozen_seconds.map_or_else(
            || "the process was not stopped".to_owned(),
            |seconds| format!("the process stood still for {:.1} ms", seconds * 1e3)
        )
    )?;
    let mut rows = Rows::new(&["resident memory", "bytes", "share"], 1, style.width);
    for part in &census.parts {
        let share = part.bytes as f64 / census.rss_bytes.max(1) as f64;
        rows.push(vec![part_name(part), units::bytes(part.bytes), units::percent(share)]);
    }
    lines(rows, out)?;
    if let Some(huge) = huge(census.huge_bytes, census.huge_idle_bytes) {
        writeln!(out, "{huge}")?;
    }
    for heap in &census.heaps {
        write_heap(heap, style, out)?;
    }
    for structure in &census.structures {
        write_structure(structure, style, out)?;
    }
    for step in &census.next {
        let command = step.command.as_ref().map(|command| format!(": {command}"));
        writeln!(out, "\nnext: {}{}", shown(&step.text, STEP), command.unwrap_or_default())?;
    }
    if !census.contexts.is_empty() {
        write_contexts(&census.contexts, style, out)?;
    }
    Ok(())
}

/// How much is known; what is not, with the reasons; and whatever else the readers did not see.
fn write_unknown(census: &Census, out: &mut dyn Write) -> io::Result<()> {
    let share = |bytes: u64| units::percent(bytes as f64 / census.rss_bytes.max(1) as f64);
    let bytes = census.rss_bytes.saturating_sub(census.validated_bytes);
    writeln!(out, "unknown: {} of resident memory, {}", share(bytes), units::bytes(bytes))?;
    for one in &census.unknown {
        writeln!(out, "  {}", shown(&unknown(one), STEP))?;
    }
    for note in other_notes(census) {
        writeln!(out, "note: {}", shown(note, STEP))?;
    }
    Ok(())
}

/// Notes that are no reason for unknown memory.
pub(super) fn other_notes(census: &Census) -> impl Iterator<Item = &String> {
    let is_reason = |note: &&String| census.unknown.iter().any(|one| one.reasons.contains(note));
    census.notes.iter().filter(move |note| !is_reason(note))
}

/// What is not known, and why, in a sentence. Reasons begin with the name of the allocator, which is said once.
pub(super) fn unknown(one: &Unknown) -> String {
    let bytes = units::bytes(one.bytes);
    let (what, name) = one.allocator.as_deref().map_or_else(
        || (format!("{bytes} of no known heap"), String::new()),
        |allocator| (format!("{bytes} of {allocator}'s heap"), format!("{allocator}: ")),
    );
    let reasons: Vec<&str> =
        one.reasons.iter().map(|text| text.strip_prefix(&name).unwrap_or(text)).collect();
    if reasons.is_empty() { what } else { format!("{what}: {}", reasons.join("; ")) }
}

/// What is resident in huge pages, in a sentence; `None` where nothing is.
pub(super) fn huge(bytes: u64, idle: Option<u64>) -> Option<String> {
    let idle = idle.map_or_else(
        || "how much of it only fills holes is not known".to_owned(),
        |idle| {
            format!("at least {} of it only to fill holes between live objects", units::bytes(idle))
        },
    );
    (bytes > 0).then(|| format!("huge pages: {} resident in them, {idle}", units::bytes(bytes)))
}

fn part_name(part: &Part) -> String {
    let allocator = part.allocator.as_deref().unwrap_or_default();
    match part.kind {
        PartKind::HeapHeld => format!("{allocator}: held by live objects"),
        PartKind::HeapFree => format!("{allocator}: free"),
        PartKind::HeapUnknown => format!("{allocator}: unknown"),
        PartKind::Anonymous => "other anonymous memory".to_owned(),
        PartKind::Stack => "stacks".to_owned(),
        PartKind::File => "files".to_owned(),
        PartKind::Shared => "shared memory".to_owned(),
    }
}

fn write_heap(heap: &Heap, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let unknown = match heap.unknown_bytes {
        0 => String::new(),
        bytes => format!("{} unknown, ", units::bytes(bytes)),
    };
    writeln!(
        out,
        "\n{}: {unknown}{} live in {}, {} free, {} in caches, {}",
        heap.allocator,
        units::bytes(heap.live_bytes),
        units::counted(heap.live_objects, "object", "objects"),
        units::bytes(heap.free_bytes),
        units::bytes(heap.cached_bytes),
        units::counted(heap.arenas.len() as u64, "arena", "arenas"),
    )?;
    let compaction = units::bytes(heap.compaction_bytes);
    writeln!(out, "  compaction would free {compaction} at most")?;
    if let Some(bytes) = heap.trimmable_bytes {
        writeln!(out, "  malloc_trim(0) would give back {} now", units::bytes(bytes))?;
    }
    write_granules(&heap.granules, style, out)?;
    write_classes(heap, style, out)?;
    write_types(heap, style, out)
}

/// A structure that a profile describes: its granules lie in the heaps above.
fn write_structure(of: &Heap, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let all = of.granules.empty + of.granules.held.iter().map(|held| held.granules).sum::<u64>();
    writeln!(
        out,
        "\n{}: {all} × {} of {}: {} live in {}",
        shown(&of.allocator, NAME),
        shown(&of.granules.unit, NAME),
        units::bytes(of.mapped_bytes),
        units::bytes(of.live_bytes),
        units::counted(of.live_objects, "object", "objects"),
    )?;
    write_granules(&of.granules, style, out)
}

fn write_granules(granules: &Granules, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let unit = &granules.unit;
    let mut rows = Rows::new(&["live objects", &format!("{unit}s"), "bytes"], 1, style.width);
    rows.push(vec![
        "none".to_owned(),
        granules.empty.to_string(),
        units::bytes(granules.empty_bytes),
    ]);
    for held in &granules.held {
        let range = match held.objects_max {
            Some(most) if most == held.objects_min => most.to_string(),
            Some(most) => format!("{} to {most}", held.objects_min),
            None => format!("{} and more", held.objects_min),
        };
        rows.push(vec![range, held.granules.to_string(), units::bytes(held.bytes)]);
    }
    rows.push(vec![
        format!("full {unit}s"),
        granules.full.to_string(),
        units::bytes(granules.full_bytes),
    ]);
    lines(rows, out)
}

fn write_classes(heap: &Heap, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    let header = ["objects up to", "objects", "live", "they alone hold"];
    let mut rows = Rows::new(&header, 1, style.width);
    for class in heap.classes.iter().take(style.top) {
        rows.push(vec![
            units::bytes(class.size),
            class.objects.to_string(),
            units::bytes(class.bytes),
            units::bytes(class.alone_bytes),
        ]);
    }
    lines(rows, out)
}

fn write_types(heap: &Heap, style: &Style, out: &mut dyn Write) -> io::Result<()> {
    if heap.types.is_empty() {
        return Ok(());
    }
    let granule = match heap.allocator.as_str() {
        "cpython" => "arena",
        _ => &heap.granules.unit,
    };
    let held = format!("{granule}s");
    let header = ["type", "objects", "live", &held, "they alone hold"];
    let mut rows = Rows::new(&header, 1, style.width);
    for one in heap.types.iter().take(style.top) {
        rows.push(vec![
            shown(&one.name, NAME),
            one.objects.to_string(),
            units::bytes(one.bytes),
            one.arenas.to_string(),
            units::bytes(one.alone_bytes),
        ]);
    }
    lines(rows, out)
}

fn lines(rows: Rows, out: &mut dyn Write) -> io::Result<()> {
    rows.lines("  ").iter().try_for_each(|line| writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is not known is in the second line, with the reader's reasons below it; no note comes twice, and names of a
    /// hostile process are escaped. Huge pages have a line.
    #[test]
    fn first_lines() {
        let mut census = Census {
            comm: "svc".to_owned(),
            rss_bytes: 100 << 20,
            validated_bytes: 70 << 20,
            unknown: vec![Unknown {
                allocator: Some("glibc".to_owned()),
                bytes: 30 << 20,
                reasons: vec!["glibc: the ring \u{1b}[31m".to_owned()],
            }],
            notes: vec!["glibc: the ring \u{1b}[31m".to_owned(), "go: not swept".to_owned()],
            ..Census::default()
        };
        let page = |census: &Census| {
            let mut out = Vec::new();
            write_heaps(census, &Style::default(), &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let text = page(&census);
        let lines: Vec<&str> = text.lines().skip(1).take(3).collect();
        assert_eq!(lines[0], "unknown: 30.0 % of resident memory, 30.0 MiB");
        assert!(lines[1].starts_with("  30.0 MiB of glibc's heap: the ring "), "{text}");
        assert_eq!(lines[2], "note: go: not swept");
        assert!(!text.contains('\u{1b}') && text.matches("the ring").count() == 1, "{text}");
        assert!(!text.contains("huge pages"), "{text}");
        (census.huge_bytes, census.huge_idle_bytes) = (8 << 20, Some(3 << 20));
        let line = "huge pages: 8.0 MiB resident in them, at least 3.0 MiB of it only to fill holes between live objects";
        assert!(page(&census).lines().any(|one| one == line), "{}", page(&census));
        census.huge_idle_bytes = None;
        assert!(page(&census).contains("is not known"), "{}", page(&census));
    }
}
