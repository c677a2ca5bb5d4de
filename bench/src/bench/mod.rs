//! The benchmarks, in the order in which they run.

mod after;
mod attach;
mod boundary;
mod census;
mod daemon;
mod growth;
mod malloc;
mod nginx;
mod objects;
mod postgresql;
mod scale;
mod soak;
mod stacks;
mod threads;
mod why;

use std::time::Instant;

use anyhow::Result;

use crate::{
    machine,
    model::{Benchmark, Compare, Row, Table},
    rounds::Effort,
};

/// A benchmark.
pub(crate) struct Known {
    /// What `--only` takes.
    pub(crate) name: &'static str,
    title: &'static str,
    /// What is measured, and how, for who reads the page.
    about: &'static str,
    run: fn(Effort, &mut Benchmark) -> Result<()>,
}

/// All of them.
pub(crate) const BENCHMARKS: &[Known] = &[
    malloc::BENCHMARK,
    objects::BENCHMARK,
    stacks::BENCHMARK,
    boundary::BENCHMARK,
    threads::BENCHMARK,
    scale::BENCHMARK,
    attach::BENCHMARK,
    after::BENCHMARK,
    daemon::BENCHMARK,
    soak::BENCHMARK,
    growth::BENCHMARK,
    nginx::BENCHMARK,
    postgresql::BENCHMARK,
    why::BENCHMARK,
    census::BENCHMARK,
];

/// Runs one; what goes wrong is part of the result.
pub(crate) fn measure(known: &Known, effort: Effort) -> Benchmark {
    let mut benchmark = Benchmark {
        name: known.name.to_owned(),
        title: known.title.to_owned(),
        about: known.about.to_owned(),
        date: machine::date(),
        load: machine::load(),
        ..Benchmark::default()
    };
    let began = Instant::now();
    if let Err(error) = (known.run)(effort, &mut benchmark) {
        benchmark.failed = Some(format!("{error:#}"));
    }
    benchmark.seconds = began.elapsed().as_secs_f64();
    benchmark
}

/// A table of CPU time against bare.
fn costs(title: &str, unit: &str, rows: Vec<Row>) -> Table {
    Table { title: title.to_owned(), unit: unit.to_owned(), compare: Compare::Added, rows }
}
