//! `drainprof growth`: what a page fault, a pair of mmap and munmap, and a brk cost while it watches.

use anyhow::Result;

use super::{Known, costs};
use crate::{
    growing::{Count, Growth},
    model::{Benchmark, Bound},
    probing::{Probing, Script},
    rounds::{Effort, Variant, interleave},
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "growth",
    title: "`drainprof growth`: page faults, mappings and the heap",
    about: "A program, 20 calls deep, touches fresh pages, maps and unmaps 64 KiB, or moves the heap's end by a \
            page. `drainprof growth` traces faults, `kmem:rss_stat` and five system calls; bpftrace \
            (`bench/peers/growth-*.bt`) only one matter, without touched pages, resident memory or partial unmaps.",
    run,
};

const STACKS: &str = "drainprof growth";
const SUMS: &str = "drainprof growth --no-stacks";
const PEER_STACKS: &str = "bpftrace, by ustack";
const PEER_SUMS: &str = "bpftrace, in all";
const PEER_EMPTY: &str = "bpftrace, an empty program";

/// What is measured.
struct Case {
    /// What the program does.
    what: &'static str,
    title: &'static str,
    /// An operation.
    unit: &'static str,
    count: Option<Count>,
    stacks: Script,
    sums: Script,
    empty: Option<Script>,
}

macro_rules! script {
    ($name:literal) => {
        ($name, include_str!(concat!("../../peers/", $name)))
    };
}

const CASES: [Case; 3] = [
    Case {
        what: "what=faults",
        title: "page faults",
        unit: "page fault",
        count: Some(Count { at: "/faults/user", each: 1.0 }),
        stacks: script!("growth-faults.bt"),
        sums: script!("growth-faults-count.bt"),
        empty: Some(script!("growth-faults-empty.bt")),
    },
    Case {
        what: "what=maps",
        title: "mmap and munmap",
        unit: "mmap and munmap",
        count: Some(Count { at: "/mappings/mapped_bytes", each: 65_536.0 }),
        stacks: script!("growth-maps.bt"),
        sums: script!("growth-maps-sum.bt"),
        empty: None,
    },
    Case {
        what: "what=heap",
        title: "calls of brk",
        unit: "brk",
        // It reports by how much the end has moved, which is nothing.
        count: None,
        stacks: script!("growth-heap.bt"),
        sums: script!("growth-heap-sum.bt"),
        empty: None,
    },
];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    for case in &CASES {
        measure(case, effort, benchmark)?;
    }
    Ok(())
}

fn measure(case: &Case, effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let ours = |args| Probing::Growth(Growth { args, count: case.count });
    let mut variants = vec![
        Variant::new(STACKS, ours(&[])),
        Variant::new(SUMS, ours(&["--no-stacks"])),
        Variant::new(PEER_STACKS, Probing::Tracepoints(case.stacks)),
        Variant::new(PEER_SUMS, Probing::Tracepoints(case.sums)),
    ];
    variants
        .extend(case.empty.map(|script| Variant::new(PEER_EMPTY, Probing::Tracepoints(script))));
    let args = [case.what.to_owned(), "depth=20".to_owned(), effort.ms()];
    let workers = vec![Worker::of_itself("grow_cost", &args)?];
    let mut measured = interleave(workers, &variants, effort, Sample::per_object, benchmark)?;
    let table = costs(case.title, &format!("ns per {}", case.unit), measured.remove(0));
    for (name, ours, how) in [(PEER_STACKS, STACKS, "by ustack"), (PEER_SUMS, SUMS, "in all")] {
        let what = format!("bpftrace {how} ÷ drainprof; {}", case.title);
        benchmark.goals.push(table.goal_of_times(&what, Bound::Stated, name, ours));
    }
    benchmark.tables.push(table);
    Ok(())
}
