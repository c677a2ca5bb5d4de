//! Level `objects` on an arena: what a hit costs over what the kernel takes for it.

use anyhow::Result;
use drainprof_profile::Level;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound, Goal},
    probing::Probing,
    rounds::{BPFTRACE, Effort, FLOOR, Outcome, Variant, interleave},
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
    let mut workers = PROGRAMS
        .iter()
        .map(|(program, _)| Worker::of_itself(program, &["objects=1000".to_owned(), effort.ms()]))
        .collect::<Result<Vec<_>>>()?;
    let outcomes = interleave(&mut workers, &variants, effort, Sample::per_object)?;
    for (worker, _) in workers {
        worker.finish()?;
    }
    for ((_, title), outcome) in PROGRAMS.iter().zip(outcomes) {
        let Outcome { mut tables, notes } = outcome;
        let table = costs(title, "ns per object", tables.remove(0));
        let what = format!("drainprof ÷ floor; {title}");
        benchmark.goals.push(
            Goal::new(&what, "×", Bound::AtMost(1.25), table.times(DRAINPROF, FLOOR))
                .because(table.why_not(DRAINPROF)),
        );
        benchmark.tables.push(table);
        benchmark.notes.extend(notes);
    }
    Ok(())
}
