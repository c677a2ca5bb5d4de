//! Several threads at once, in one granule and in one each: does the cost of an event grow?

use anyhow::Result;
use drainprof_profile::Level;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound, Goal, Row, Table},
    probing::Probing,
    rounds::{Effort, FLOOR, Variant, interleave},
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "threads",
    title: "Threads",
    about: "Threads allocate and free 1000 objects in open granules. A shared granule's counter is contended, bare \
            as well.",
    run,
};

const PROFILE: &str = "arena";
const DRAINPROF: &str = "drainprof, objects";

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let variants = [
        Variant::new(FLOOR, Probing::Floor(PROFILE, Level::Objects)),
        Variant::new(DRAINPROF, Probing::Drainprof(PROFILE, Level::Objects, &[])),
    ];
    let cases = cases();
    let workers = cases
        .iter()
        .map(|(threads, shared)| {
            let args = [
                "objects=1000".to_owned(),
                "hold=1".to_owned(),
                format!("threads={threads}"),
                format!("shared={}", u8::from(*shared)),
                effort.ms(),
            ];
            Worker::of_itself("cost", &args)
        })
        .collect::<Result<Vec<_>>>()?;
    let measured = interleave(workers, &variants, effort, Sample::per_object, benchmark)?;
    let table = |((threads, shared), rows): (&(usize, bool), Vec<Row>)| {
        let title = match (threads, shared) {
            (1, _) => "1 thread".to_owned(),
            (_, true) => format!("{threads} threads, one granule"),
            (_, false) => format!("{threads} threads, one granule each"),
        };
        costs(&title, "ns per object", rows)
    };
    let tables: Vec<Table> = cases.iter().zip(measured).map(table).collect();
    if let Some((alone, others)) = tables.split_first() {
        for table in others {
            let what = format!("drainprof ÷ with 1 thread; {}", table.title);
            let ratio = |row| {
                let pairs = table.compared(row).into_iter().zip(alone.compared(row));
                pairs.map(|(many, one)| many / one).collect::<Vec<_>>()
            };
            benchmark.goals.push(
                Goal::new(&what, "×", Bound::AtMost(1.3), ratio(DRAINPROF))
                    .because(table.why_not(DRAINPROF)),
            );
            let what = format!("floor ÷ with 1 thread; {}", table.title);
            benchmark.goals.push(Goal::new(&what, "×", Bound::Stated, ratio(FLOOR)));
        }
    }
    benchmark.tables = tables;
    Ok(())
}

/// Threads, and whether they share a granule: 1, 2, and all CPUs where there are more.
fn cases() -> Vec<(usize, bool)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from).min(64);
    let mut cases = vec![(1, false), (2, false), (2, true)];
    if cpus > 2 {
        cases.extend([(cpus, false), (cpus, true)]);
    }
    cases
}
