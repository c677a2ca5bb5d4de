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

use anyhow::{Context as _, Result};

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
    /// What is measured, and how, for readers of the page.
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
    Table::new(title, unit, Compare::Added, rows)
}

/// The number that follows on the line that begins so, as load generators print their rates.
fn number_after(text: &str, begin: &str) -> Result<f64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin));
    let word = rest.and_then(|rest| rest.trim_start().split([' ', '"']).next());
    word.and_then(|word| word.parse().ok())
        .with_context(|| format!("no number after {begin:?} in:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates of ab, pgbench and redis-benchmark are read; without one there is an error, not a zero.
    #[test]
    fn rates() {
        for (text, begin, rate) in [
            (
                "Failed requests: 0\nRequests per second:    41234.56 [#/sec]\n",
                "Requests per second:",
                41234.56,
            ),
            ("latency average = 0.05 ms\ntps = 19876.5 (without)\n", "tps = ", 19876.5),
            ("\"test\",\"rps\"\n\"SET\",\"72150.07\",\"0.3\"\n", "\"SET\",\"", 72150.07),
        ] {
            assert!((number_after(text, begin).unwrap() - rate).abs() < 1e-6, "{text}");
            assert!(number_after("connection refused\n", begin).is_err());
        }
    }
}
