//! After drainprof has gone, the target is what it was.

use anyhow::Result;
use drainprof_profile::Level;

use super::Known;
use crate::{
    model::{Benchmark, Bound, Compare, Row, Table},
    probing::{Probing, mapped},
    rounds::Effort,
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "after",
    title: "After the detach",
    about: "Pairs of malloc and free before and after `objects`. After every variant the program's text must equal \
            its file.",
    run,
};

const BEFORE: &str = "before";
const AFTER: &str = "after";

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let mut worker = Worker::start("malloc_pairs", &[effort.ms()])?;
    let libc = mapped(worker.pid(), "libc.so.6")?;
    let probing = Probing::Drainprof("glibc-pages", Level::Objects, &[]);
    let mut rows = [Row::new(BEFORE, true, Vec::new()), Row::new(AFTER, false, Vec::new())];
    for _ in 0..effort.rounds {
        rows[0].push(worker.batches(effort.batches, Sample::per_object)?);
        let attached = probing.attach(worker.pid(), &libc)?;
        let batch = worker.batch();
        attached.detach(worker.pid(), &libc)?;
        batch?;
        rows[1].push(worker.batches(effort.batches, Sample::per_object)?);
    }
    worker.finish()?;
    let table = Table::new("", "ns per pair", Compare::Ratio, rows.into());
    let what = "cost after the detach ÷ before";
    benchmark.goals.push(table.goal(what, "×", Bound::AtMost(1.02), AFTER));
    benchmark.tables.push(table);
    Ok(())
}
