//! What the daemon uses itself while nothing happens.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::node::{self, Daemon};
use nix::{
    time::{ClockId, clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

use super::Known;
use crate::{
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    rounds::{Effort, announce},
    worker::Worker,
};

pub(super) const BENCHMARK: Known = Known {
    name: "daemon",
    title: "The daemon while nothing happens",
    about: "200 waiting processes: 20 attached (`tests/profiles/arena.toml`, `boundary`), 180 without a matching \
            profile. `drainprof daemon` at its defaults (inspection every 10 s, discovery every 2 s, history, web \
            service) attaches only to these, and reads the memory of all. CPU time of all its threads; memory includes mapped kernel maps.",
    run,
};

const PROCESSES: usize = 200;
const ATTACHED: usize = 20;
/// What the daemon has met less than a minute ago is examined more often than what has been there for a while.
const SETTLING: Duration = Duration::from_secs(75);

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let (rounds, seconds) = effort.idle;
    let attached = start("cost", ATTACHED)?;
    let others = start("malloc_pairs", PROCESSES - ATTACHED)?;
    let directory = tempfile::tempdir()?;
    node::configure_at_usual_pace(directory.path(), &["arena"], "")?;
    let daemon = Daemon::start_in(directory)?;
    let pids: Vec<u32> = attached.iter().map(Worker::pid).collect();
    daemon.attached(&pids)?;
    let state = daemon.state()?;
    let watched = |matched: bool| {
        let all = state["targets"].as_array().into_iter().flatten();
        all.filter(|target| target["matched"] == matched).count()
    };
    let (probed, others_watched) = (watched(true), watched(false));
    ensure!(probed == ATTACHED, "{probed} processes have probes, not {ATTACHED}");
    let expected = PROCESSES - ATTACHED;
    ensure!(others_watched == expected, "{others_watched} others are watched, not {expected}");
    let length = Duration::from_secs(seconds);
    thread::sleep(length.min(SETTLING));
    let (mut cpu, mut resident) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        announce(round, rounds);
        cpu.push(share_of_cpu(daemon.pid(), length)?);
        resident.push(node::resident(daemon.pid())? as f64 / f64::from(1 << 20));
    }
    daemon.finish()?;
    for worker in attached.into_iter().chain(others) {
        worker.finish()?;
    }
    for (title, unit, samples) in [
        ("CPU time", "% of one CPU", &cpu),
        ("resident memory at the end of a round", "MiB", &resident),
    ] {
        let rows = vec![Row::single("drainprof daemon", samples)];
        benchmark.tables.push(Table::new(title, unit, Compare::Nothing, rows));
    }
    benchmark.goals.extend([
        Goal::new("CPU time of the idle daemon, of one CPU", "%", Bound::AtMost(0.2), cpu),
        Goal::new("its resident memory", "MiB", Bound::AtMost(40.0), resident),
    ]);
    benchmark.notes.push(format!("A round is {seconds} s."));
    Ok(())
}

/// Programs that wait for a request to work, which never comes.
fn start(target: &str, number: usize) -> Result<Vec<Worker>> {
    (0..number).map(|_| Worker::start(target, &[])).collect()
}

/// CPU time that a process uses in the next while, in percent of one CPU.
fn share_of_cpu(pid: u32, length: Duration) -> Result<f64> {
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed()))
        .with_context(|| format!("find the CPU clock of process {pid}"))?;
    let used = |clock: ClockId| clock_gettime(clock).map(Duration::from);
    let (before, began) = (used(clock)?, Instant::now());
    thread::sleep(length);
    let spent = used(clock)?.saturating_sub(before);
    Ok(100.0 * spent.as_secs_f64() / began.elapsed().as_secs_f64())
}
