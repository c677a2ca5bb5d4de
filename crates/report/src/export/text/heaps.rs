//! The lines about heaps, as read from outside: what they are at the end, and what changed since the begin.

use drainprof_census::{Comparison, HeapGrowth, HeapSummary};

use super::page::SYMBOL;
use crate::{
    export::{escape, exporter::SENTENCE},
    units,
};

/// Heaps that are shown.
const HEAPS: usize = 8;
/// Classes and types of each whose change is shown.
const CHANGES: usize = 3;

/// A line per heap.
pub(in crate::export) fn lines(census: &Comparison) -> Vec<String> {
    let heaps = census.end.iter().flat_map(|end| &end.heaps).take(HEAPS);
    let line = |heap: &HeapSummary| {
        let grown = census.growth.iter().find(|grown| grown.allocator == heap.allocator);
        format!("{}{}", state(heap), grown.map(change).unwrap_or_default())
    };
    let mut lines: Vec<String> = heaps.map(line).collect();
    if let Some(why) = &census.failure {
        lines.push(format!("heap unknown: {}", escape::shown(why, SENTENCE)));
    } else if lines.is_empty() {
        lines.push("heap: none whose structures are known".to_owned());
    }
    lines
}

fn state(heap: &HeapSummary) -> String {
    let trimmable = heap
        .trimmable_bytes
        .map(|bytes| format!(", malloc_trim(0) would give back {}", units::bytes(bytes)));
    let unknown = match heap.unknown_bytes {
        0 => String::new(),
        bytes => format!("{} unknown, ", units::bytes(bytes)),
    };
    format!(
        "heap {}: {unknown}{} live in {}, {} free, {} resident{}",
        escape::shown(&heap.allocator, SYMBOL),
        units::bytes(heap.live_bytes),
        units::counted(heap.live_objects, "object", "objects"),
        units::bytes(heap.free_bytes),
        units::bytes(heap.resident_bytes),
        trimmable.unwrap_or_default()
    )
}

fn change(grown: &HeapGrowth) -> String {
    let classes = grown.classes.iter().take(CHANGES).map(|one| {
        let size = units::bytes(one.size);
        format!("{:+} objects of up to {size} ({})", one.objects, signed(one.bytes))
    });
    let types = grown.types.iter().take(CHANGES).map(|one| {
        let name = escape::shown(&one.name, SYMBOL);
        format!("{:+} {name} ({})", one.objects, signed(one.bytes))
    });
    let most: Vec<String> = classes.chain(types).collect();
    let most = if most.is_empty() { String::new() } else { format!(": {}", most.join(", ")) };
    format!(
        "; since the begin {} live, {} free{most}",
        signed(grown.live_bytes),
        signed(grown.free_bytes)
    )
}

fn signed(bytes: i64) -> String {
    let sign = if bytes < 0 { "-" } else { "+" };
    format!("{sign}{}", units::bytes(bytes.unsigned_abs()))
}

#[cfg(test)]
mod tests {
    use drainprof_census::{ClassGrowth, Summary, TypeGrowth};

    use super::*;

    /// What is there, what changed most, and why nothing is known; hostile names are escaped.
    #[test]
    fn reported() {
        let heap = HeapSummary {
            allocator: "cpython".to_owned(),
            live_objects: 7,
            live_bytes: 3 << 20,
            free_bytes: 1 << 20,
            resident_bytes: 4 << 20,
            ..HeapSummary::default()
        };
        let grown = HeapGrowth {
            allocator: "cpython".to_owned(),
            live_bytes: 2 << 20,
            free_bytes: -(1 << 20),
            classes: vec![ClassGrowth { size: 64, objects: 32, bytes: 2048 }],
            types: vec![TypeGrowth { name: "a\x1bb".to_owned(), objects: -2, bytes: -1024 }],
            ..HeapGrowth::default()
        };
        let mut census = Comparison {
            end: Some(Summary { heaps: vec![heap], ..Summary::default() }),
            growth: vec![grown],
            ..Comparison::default()
        };
        let line = lines(&census).join("|");
        assert!(line.starts_with(
            "heap cpython: 3.0 MiB live in 7 objects, 1.0 MiB free, 4.0 MiB resident; since the begin +2.0 MiB live, \
             -1.0 MiB free: +32 objects of up to 64 B (+2.0 KiB), -2 a"
        ), "{line}");
        assert!(!line.contains('\x1b') && line.ends_with("b (-1.0 KiB)"), "{line}");
        census.growth.clear();
        census.end.as_mut().unwrap().heaps[0].trimmable_bytes = Some(4096);
        assert!(
            lines(&census)[0].ends_with("4.0 MiB resident, malloc_trim(0) would give back 4.0 KiB")
        );
        let gone = Comparison { failure: Some("it has ended".to_owned()), ..Comparison::default() };
        assert_eq!(lines(&gone), ["heap unknown: it has ended"]);
    }
}
