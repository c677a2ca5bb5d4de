//! PostgreSQL under `pgbench -S`, with and without drainprof.

use anyhow::{Context as _, Result, ensure};
use drainprof::profile::Level;
use drainprof_tests::{
    environment::which,
    postgresql::{Cluster, binaries},
};

use super::Known;
use crate::{
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    probing::Probing,
    rounds::{Effort, note_losses},
};

pub(super) const BENCHMARK: Known = Known {
    name: "postgresql",
    title: "PostgreSQL under pgbench -S",
    about: "Debian's PostgreSQL, a cluster of its own in a temporary directory, one client over a socket, simple \
            selects; the built-in profile with `--follow-forks` on the postmaster. Level `boundary` probes the \
            making, resetting and deleting of memory contexts, level `objects` every palloc and pfree as well. \
            Transactions per second without the time to connect.",
    run,
};

const WITHOUT: &str = "without";
const AGAIN: &str = "without, at the round's end";
const BOUNDARY: &str = "drainprof, level boundary";
const OBJECTS: &str = "drainprof, level objects";
const FOLLOW: &[&str] = &["--follow-forks"];

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    which("pgbench").context("not available: pgbench is not installed")?;
    let server = binaries().context("not available: no PostgreSQL server up to version 15")?;
    let binary = server.join("postgres");
    let cluster = Cluster::start()?;
    let output = cluster.client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]).output()?;
    ensure!(output.status.success(), "pgbench -i failed: {output:?}");
    let variants = [
        (WITHOUT, Probing::Bare),
        (BOUNDARY, Probing::Drainprof("postgresql", Level::Boundary, FOLLOW)),
        (OBJECTS, Probing::Drainprof("postgresql", Level::Objects, FOLLOW)),
        (AGAIN, Probing::Bare),
    ];
    let mut rows: Vec<Row> = variants
        .iter()
        .map(|(name, probing)| Row::new(name, matches!(probing, Probing::Bare), Vec::new()))
        .collect();
    load(&cluster, 1)?;
    for round in 0..effort.rounds {
        eprintln!("    round {} of {}", round + 1, effort.rounds);
        for ((name, probing), row) in variants.iter().zip(&mut rows) {
            let attached = probing.attach(cluster.postmaster.pid(), &binary)?;
            let measured = load(&cluster, effort.pgbench_seconds);
            let report = attached.detach(cluster.postmaster.pid(), &binary)?;
            row.push(vec![measured?]);
            note_losses(name, report.as_ref(), &mut benchmark.notes);
        }
    }
    cluster.stop()?;
    let table = Table {
        title: String::new(),
        unit: "transactions per second".to_owned(),
        compare: Compare::Ratio,
        rows,
    };
    let goal = |level: &str, bound, row| {
        let what = format!("transactions per second with level {level}, of those without");
        Goal::new(&what, "×", bound, table.compared(row))
    };
    benchmark.goals.push(goal("boundary", Bound::AtLeast(0.98), BOUNDARY));
    benchmark.goals.push(goal("objects", Bound::Stated, OBJECTS));
    benchmark.tables.push(table);
    Ok(())
}

fn load(cluster: &Cluster, seconds: u32) -> Result<f64> {
    let mut command = cluster.client("pgbench");
    command.args(["-S", "-n", "-c", "1", "-T", &seconds.to_string(), "postgres"]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "pgbench failed: {output:?}");
    rate(&text)
}

fn rate(text: &str) -> Result<f64> {
    let line = text.lines().find_map(|line| line.strip_prefix("tps = "));
    let word = line.and_then(|rest| rest.split_whitespace().next());
    word.and_then(|word| word.parse().ok()).with_context(|| format!("pgbench told no tps:\n{text}"))
}

#[cfg(test)]
mod tests {
    use super::rate;

    /// pgbench's rate is read; without one there is an error, not a zero.
    #[test]
    fn pgbench_is_read() {
        let text = "latency average = 0.05 ms\ntps = 19876.5 (without initial connection time)\n";
        assert!((rate(text).unwrap() - 19876.5).abs() < 1e-6);
        assert!(rate("pgbench: error\n").is_err());
    }
}
