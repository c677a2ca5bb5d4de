//! Level `objects` on an arena: what a hit costs over what the kernel takes for it.

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
    name: "objects",
    title: "Level `objects`: an arena's alloc and free",
    about: "An arena opens a granule, allocates 1000 objects of 64 bytes, frees them, closes it. drainprof: \
            `tests/profiles/arena.toml` (alloc at entry and return, free at entry); bpftrace: \
            `bench/peers/objects.bt`. The first instructions are an emulated nop, or a single-stepped `endbr64`.",
    run,
};

const PROFILE: &str = "arena";
const DRAINPROF: &str = "drainprof, objects";
const SCRIPT: (&str, &str) = ("objects.bt", include_str!("../../peers/objects.bt"));
const PROGRAMS: [(&str, &str); 2] =
    [("cost", "emulated first instruction"), ("cost_endbr", "`endbr64` first")];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let variants = [
        Variant::new(FLOOR, Probing::Floor(PROFILE, Level::Objects)),
        Variant::new(DRAINPROF, Probing::Drainprof(PROFILE, Level::Objects, &[])),
        Variant::new(BPFTRACE, Probing::Bpftrace(SCRIPT)),
    ];
    let workers = PROGRAMS
        .iter()
        .map(|(program, _)| Worker::of_itself(program, &["objects=1000".to_owned(), effort.ms()]))
        .collect::<Result<Vec<_>>>()?;
    let measured = interleave(workers, &variants, effort, Sample::per_object, benchmark)?;
    for ((_, title), rows) in PROGRAMS.iter().zip(measured) {
        let table = costs(title, "ns per object", rows);
        let what = format!("drainprof ÷ floor; {title}");
        benchmark.goals.push(table.goal_of_times(&what, Bound::AtMost(1.25), DRAINPROF, FLOOR));
        benchmark.tables.push(table);
    }
    Ok(())
}
