//! malloc and free of stock glibc, at level `objects`, beside everything else that can examine them.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use drainprof_profile::Level;
use drainprof_tests::environment::{self, which};
use tempfile::TempDir;

use super::{Known, costs};
use crate::{
    model::{Benchmark, Bound, Row},
    probing::{Probing, mapped},
    rounds::{BPFTRACE, BPFTRACE_EMPTY, Effort, FLOOR, Variant, interleave},
    worker::{Sample, Worker},
};

pub(super) const BENCHMARK: Known = Known {
    name: "malloc",
    title: "Pairs of malloc and free of glibc",
    about: "1000 objects of 16 to 512 bytes, replaced at random. drainprof (`objects`, \
            `tests/profiles/glibc-pages.toml`) and bpftrace (`bench/peers/malloc.bt`) keep size and granule per \
            pointer, live objects and bytes per 64 KiB. heaptrack and Valgrind run their own process.",
    run,
};

const PROFILE: &str = "glibc-pages";
const DRAINPROF: &str = "drainprof, objects";
const PERF: &str = "perf stat (counts only)";
const SCRIPT: (&str, &str) = ("malloc.bt", include_str!("../../peers/malloc.bt"));
const EMPTY: (&str, &str) = ("malloc-empty.bt", include_str!("../../peers/malloc-empty.bt"));

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let variants = [
        Variant::new(FLOOR, Probing::Floor(PROFILE, Level::Objects)),
        Variant::new(DRAINPROF, Probing::Drainprof(PROFILE, Level::Objects, &[])),
        Variant::new(BPFTRACE, Probing::Bpftrace(SCRIPT)),
        Variant::new(BPFTRACE_EMPTY, Probing::Bpftrace(EMPTY)),
        Variant::new(
            PERF,
            Probing::PerfStat(&[("malloc", false), ("malloc", true), ("free", false)]),
        ),
    ];
    let worker = Worker::start("malloc_pairs", &[effort.ms()])?;
    let libc = mapped(worker.pid(), "libc.so.6")?;
    let workers = vec![(worker, libc)];
    let mut measured = interleave(workers, &variants, effort, Sample::per_object, benchmark)?;
    let mut table = costs("", "ns per pair", measured.remove(0));
    for runner in RUNNERS {
        table.rows.push(runner.row(effort));
    }
    benchmark.goals.extend([
        table.goal_of_times("bpftrace ÷ drainprof", Bound::AtLeast(5.0), BPFTRACE, DRAINPROF),
        table.goal_of_times("drainprof ÷ floor", Bound::AtMost(1.25), DRAINPROF, FLOOR),
    ]);
    benchmark.tables.push(table);
    Ok(())
}

/// A tool that runs the program itself.
struct Runner {
    name: &'static str,
    program: &'static str,
    args: &'static [&'static str],
}

const RUNNERS: [Runner; 2] = [
    Runner { name: "heaptrack", program: "heaptrack", args: &[] },
    Runner { name: "Valgrind memcheck", program: "valgrind", args: &["-q"] },
];

impl Runner {
    fn row(&self, effort: Effort) -> Row {
        eprintln!("    {}", self.program);
        let mut row = Row::new(self.name, false, Vec::new());
        for _ in 0..effort.rounds {
            match self.round(effort) {
                Ok(samples) => row.push(samples),
                Err(error) => return Row::unavailable(self.name, &format!("{error:#}")),
            }
        }
        row
    }

    fn round(&self, effort: Effort) -> Result<Vec<f64>> {
        let path =
            which(self.program).with_context(|| format!("{} is not installed", self.program))?;
        // heaptrack writes what it recorded into its working directory.
        let directory = TempDir::new()?;
        let mut command = Command::new(path);
        command.args(self.args).arg(environment::target("malloc_pairs")?);
        command.current_dir(directory.path()).stderr(Stdio::null());
        let mut worker = Worker::start_under("malloc_pairs", command, &[effort.ms()])?;
        let samples = worker.batches(effort.batches, Sample::per_object)?;
        worker.finish()?;
        Ok(samples)
    }
}
