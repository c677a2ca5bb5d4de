//! What `drainprof why` takes from busy servers while it runs, from its first instant to its last.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::which,
    nginx::Nginx,
    postgresql::{Cluster, binaries},
    process::Process,
    tracer::command,
};
use serde_json::Value;

use super::{Known, nginx, postgresql};
use crate::{
    model::{Benchmark, Bound, Compare, Row, Table},
    rounds::{BARE, BARE_AGAIN, Effort, announce},
};

pub(super) const BENCHMARK: Known = Known {
    name: "why",
    title: "Servers while `drainprof why` runs",
    about: "nginx under ab and PostgreSQL under pgbench -S, as above, each for as long as `drainprof why` observes it. \
            drainprof's own work competes with the servers for two CPUs.",
    run,
};

const WHY: &str = "drainprof why";

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let seconds = effort.why_seconds;
    let length = seconds.to_string();
    for program in ["nginx", "ab", "pgbench"] {
        which(program).with_context(|| format!("{program} is not installed"))?;
    }
    binaries().context("no PostgreSQL server up to version 15 is installed")?;

    let server = Nginx::start(false)?;
    measure(effort, benchmark, ("nginx", "requests"), server.worker, &|| {
        let all = ["-k", "-c", "8", "-t", &length, "-n", "100000000"];
        nginx::rate(&server.ab(&all)?)
    })?;
    server.quit()?;

    let cluster = Cluster::start()?;
    let output = cluster.client("pgbench").args(["-i", "-q", "-s", "1", "postgres"]).output()?;
    ensure!(output.status.success(), "pgbench -i failed: {output:?}");
    measure(effort, benchmark, ("PostgreSQL", "transactions"), cluster.postmaster.pid(), &|| {
        postgresql::load(&cluster, seconds)
    })?;
    cluster.stop()
}

/// Rounds of bare, `why` and bare again; `load` gives the server's rate over the same time.
fn measure(
    effort: Effort,
    benchmark: &mut Benchmark,
    (server, unit): (&str, &str),
    pid: u32,
    load: &dyn Fn() -> Result<f64>,
) -> Result<()> {
    // The first requests find nothing in caches.
    load()?;
    let (mut before, mut with, mut after) = (Vec::new(), Vec::new(), Vec::new());
    let mut costs: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        before.push(load()?);
        let mut why = command()?;
        why.env_remove("DRAINPROF_BUDGET").args(["why", "-o", "json", "-d"]);
        why.arg(format!("{}s", effort.why_seconds)).args(["-p", &pid.to_string()]);
        let why = Process::start("drainprof why", why)?;
        with.push(load()?);
        let said = why.finish()?.stdout.join("\n");
        let said: Value = serde_json::from_str(&said).context("read what drainprof why says")?;
        let (answer, cost) = (&said["answer"], said["cost_ratio"].as_f64());
        let cost = cost.with_context(|| format!("no cost: {said}"))?;
        costs.entry(answer.to_string()).or_default().push(100.0 * cost);
        after.push(load()?);
    }
    benchmark.notes.extend(costs.into_iter().map(|(answer, costs)| {
        let (rounds, most) = (costs.len(), costs.into_iter().fold(0.0, f64::max));
        format!("{server}: {answer} in {rounds} rounds, probes took at most {most:.2} % of a CPU")
    }));
    let rows = vec![
        Row::baseline(BARE, &before),
        Row::single(WHY, &with),
        Row::baseline(BARE_AGAIN, &after),
    ];
    let unit = format!("{unit} per second");
    let table = Table::new(server, &unit, Compare::Ratio, rows);
    let what = format!("{unit} of {server} with `why` ÷ bare");
    benchmark.goals.push(table.goal(&what, "×", Bound::AtLeast(0.97), WHY));
    benchmark.tables.push(table);
    Ok(())
}
