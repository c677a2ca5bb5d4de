//! The census as OpenMetrics: the gauges that the daemon has, of one process.

use std::io::{self, Write};

use drainprof_census::{Census, Summary};

use super::super::escape::{NAME, shown};

/// Writes the gauges.
///
/// # Errors
/// `out` cannot be written.
pub fn write_heap_metrics(census: &Census, out: &mut dyn Write) -> io::Result<()> {
    let summary = Summary::of(census);
    let name = shown(&census.comm, NAME).replace('\\', "\\\\").replace('"', "\\\"");
    let process = format!("pid=\"{}\",comm=\"{name}\"", census.pid);
    for (gauge, of) in GAUGES {
        writeln!(
            out,
            "# TYPE drainprof_heap_{gauge}_bytes gauge\n# UNIT drainprof_heap_{gauge}_bytes bytes"
        )?;
        for heap in &summary.heaps {
            if let Some(bytes) = of(heap) {
                let allocator = &heap.allocator;
                writeln!(
                    out,
                    "drainprof_heap_{gauge}_bytes{{{process},allocator=\"{allocator}\"}} {bytes}"
                )?;
            }
        }
    }
    writeln!(
        out,
        "# TYPE drainprof_heap_census_seconds gauge\n# UNIT drainprof_heap_census_seconds seconds"
    )?;
    writeln!(out, "drainprof_heap_census_seconds{{{process}}} {}\n# EOF", summary.seconds)
}

type Gauge = fn(&drainprof_census::HeapSummary) -> Option<u64>;

const GAUGES: [(&str, Gauge); 8] = [
    ("mapped", |heap| Some(heap.mapped_bytes)),
    ("resident", |heap| Some(heap.resident_bytes)),
    ("held", |heap| Some(heap.held_bytes)),
    ("live", |heap| Some(heap.live_bytes)),
    ("cached", |heap| Some(heap.cached_bytes)),
    ("free", |heap| Some(heap.free_bytes)),
    ("unknown", |heap| Some(heap.unknown_bytes)),
    ("trimmable", |heap| heap.trimmable_bytes),
];

#[cfg(test)]
mod tests {
    use drainprof_census::Heap;

    use super::*;

    /// A gauge per heap; what is not known has none; a hostile name stays within its quotes.
    #[test]
    fn gauges() {
        let heap = Heap { allocator: "go".to_owned(), live_bytes: 7, ..Heap::default() };
        let census =
            Census { pid: 3, comm: "a\"b".to_owned(), heaps: vec![heap], ..Census::default() };
        let mut out = Vec::new();
        write_heap_metrics(&census, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let line = "drainprof_heap_live_bytes{pid=\"3\",comm=\"a\\\"b\",allocator=\"go\"} 7";
        assert!(text.lines().any(|one| one == line), "{text}");
        assert!(!text.contains("trimmable_bytes{") && text.ends_with("# EOF\n"), "{text}");
    }
}
