//! Level `stacks` on an arena: what following the call path of an alloc costs, by its depth.

use anyhow::Result;
use drainprof_profile::Level;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound},
    probing::Probing,
    rounds::{BPFTRACE, Effort, FLOOR, Variant, interleave},
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "stacks",
    title: "Level `stacks`: the call path of every alloc",
    about: "The arena without frame pointers, at the end of a chain of calls; CPU time of allocs. drainprof unwinds \
            by rules. bpftrace (`bench/peers/objects.bt`, `stacks.bt` with `ustack`) follows frame pointers: its \
            stacks are right only in the table with these. The last two tables probe allocs at entry \
            (`tests/profiles/paths_entry.toml`), at half the cost.",
    run,
};

const PROFILE: &str = "arena";
const PROFILE_AT_ENTRY: &str = "paths_entry";
const OBJECTS: &str = "drainprof, objects";
const STACKS: &str = "drainprof, stacks";
const PATHS: &str = "bpftrace, by ustack";
const OBJECTS_SCRIPT: (&str, &str) = ("objects.bt", include_str!("../../peers/objects.bt"));
const STACKS_SCRIPT: (&str, &str) = ("stacks.bt", include_str!("../../peers/stacks.bt"));
/// A row, what it is compared with, the goal, and what it says.
const GOALS: [(&str, &str, Bound, &str); 3] = [
    (STACKS, OBJECTS, Bound::AtMost(2.0), "stacks ÷ objects"),
    (STACKS, FLOOR, Bound::Stated, "stacks ÷ floor"),
    (PATHS, STACKS, Bound::Stated, "bpftrace by ustack ÷ stacks"),
];
/// Program, calls between the start of the thread's work and the alloc, title.
const CASES: [(&str, u32, &str); 4] = [
    ("cost_frameless", 5, "5 calls deep"),
    ("cost_frameless", 20, "20 calls deep"),
    ("cost_frameless", 60, "60 calls deep"),
    ("cost", 20, "20 calls deep, with frame pointers"),
];

/// The same, where allocs are probed at their entry alone.
const CASES_AT_ENTRY: [(&str, u32, &str); 2] = [
    ("cost_entry", 20, "20 calls deep, allocs probed at entry"),
    ("cost_entry", 60, "60 calls deep, allocs probed at entry"),
];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let ours = |profile| {
        [
            Variant::new(FLOOR, Probing::Floor(profile, Level::Objects)),
            Variant::new(OBJECTS, Probing::Drainprof(profile, Level::Objects, &[])),
            Variant::new(STACKS, Probing::Drainprof(profile, Level::Stacks, &[])),
        ]
    };
    let peers = [
        Variant::new(BPFTRACE, Probing::Bpftrace(OBJECTS_SCRIPT)),
        Variant::new(PATHS, Probing::Bpftrace(STACKS_SCRIPT)),
    ];
    let variants: Vec<Variant> = ours(PROFILE).into_iter().chain(peers).collect();
    measure(&CASES, &variants, effort, benchmark)?;
    measure(&CASES_AT_ENTRY, &ours(PROFILE_AT_ENTRY), effort, benchmark)
}

fn measure(
    cases: &[(&str, u32, &str)],
    variants: &[Variant],
    effort: Effort,
    benchmark: &mut Benchmark,
) -> Result<()> {
    let workers = cases
        .iter()
        .map(|(program, depth, _)| {
            let depth = format!("depth={depth}");
            let fixed = ["objects=1000", "only=alloc"].map(str::to_owned);
            Worker::of_itself(program, &[&fixed[..], &[depth, effort.ms()]].concat())
        })
        .collect::<Result<Vec<_>>>()?;
    let measured = interleave(workers, variants, effort, Sample::per_object, benchmark)?;
    for ((_, _, title), rows) in cases.iter().zip(measured) {
        let table = costs(title, "ns per alloc", rows);
        for (row, other, bound, what) in GOALS {
            // Not every case has every peer.
            if table.rows.iter().any(|known| known.name == row) {
                let what = format!("{what}; {title}");
                benchmark.goals.push(table.goal_of_times(&what, bound, row, other));
            }
        }
        benchmark.tables.push(table);
    }
    Ok(())
}
