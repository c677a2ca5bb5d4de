//! PostgreSQL under `pgbench -S`, with and without drainprof.

use anyhow::{Context as _, Result, ensure};
use drainprof_profile::Level;
use drainprof_tests::{
    environment::which,
    postgresql::{Cluster, binaries},
};

use super::{Known, number_after};
use crate::{
    model::{BOUNDARY_LEAVES, Benchmark, Bound, CLOSE_LEAVES, Compare, Table},
    probing::Probing,
    rounds::{Effort, FLOOR_BOUNDARY, FLOOR_CLOSE, FLOOR_OBJECTS, Outcome, Variant, announce},
    worker::Counts,
};

pub(super) const BENCHMARK: Known = Known {
    name: "postgresql",
    title: "PostgreSQL under pgbench -S",
    about: "Own cluster, one client, simple selects, the built-in profile with `--follow-forks`. Without connecting \
            time. The goals are parts of the rate that empty programs at the same places leave, as for nginx.",
    run,
};

const CLOSE: &str = "drainprof, close";
const BOUNDARY: &str = "drainprof, boundary";
const OBJECTS: &str = "drainprof, objects";
const FOLLOW: &[&str] = &["--follow-forks"];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    which("pgbench").context("pgbench is not installed")?;
    let server = binaries().context("no PostgreSQL server up to version 15 is installed")?;
    let binary = server.join("postgres");
    let cluster = Cluster::start()?;
    let output = cluster.client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]).output()?;
    ensure!(output.status.success(), "pgbench -i failed: {output:?}");
    let variants = [
        Variant::new(FLOOR_CLOSE, Probing::FloorOnFile("postgresql", Level::Close)),
        Variant::new(FLOOR_BOUNDARY, Probing::FloorOnFile("postgresql", Level::Boundary)),
        Variant::new(CLOSE, Probing::Drainprof("postgresql", Level::Close, FOLLOW)),
        Variant::new(BOUNDARY, Probing::Drainprof("postgresql", Level::Boundary, FOLLOW)),
        Variant::new(FLOOR_OBJECTS, Probing::FloorOnFile("postgresql", Level::Objects)),
        Variant::new(OBJECTS, Probing::Drainprof("postgresql", Level::Objects, FOLLOW)),
    ];
    // The first transactions find nothing in caches.
    load(&cluster, 1)?;
    let mut outcome = Outcome::begin(&variants, 1);
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        outcome.round((cluster.postmaster.pid(), &binary), &variants, &mut || {
            Ok((vec![vec![load(&cluster, effort.pgbench_seconds)?]], Counts::default()))
        })?;
    }
    cluster.stop()?;
    benchmark.notes.extend(outcome.notes);
    for rows in outcome.tables {
        let table = Table::new("", "transactions per second", Compare::Ratio, rows);
        // At `objects` nearly all time is the probes', and what they add is judged elsewhere.
        for (level, row, floor, bound) in [
            ("close", CLOSE, FLOOR_CLOSE, CLOSE_LEAVES),
            ("boundary", BOUNDARY, FLOOR_BOUNDARY, BOUNDARY_LEAVES),
            ("objects", OBJECTS, FLOOR_OBJECTS, Bound::Stated),
        ] {
            let what = format!("transactions/s at {level}");
            benchmark.goals.extend(table.beside_floor(&what, row, floor, bound));
        }
        benchmark.tables.push(table);
    }
    Ok(())
}

/// Transactions per second of one client, over so many seconds.
pub(super) fn load(cluster: &Cluster, seconds: u32) -> Result<f64> {
    let mut command = cluster.client("pgbench");
    command.args(["-S", "-n", "-c", "1", "-T", &seconds.to_string(), "postgres"]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "pgbench failed: {output:?}");
    number_after(&text, "tps = ")
}
