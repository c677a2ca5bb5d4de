//! How long attaching and detaching take, and how long the target is stopped by them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use drainprof_observe::Side;
use drainprof_profile::Level;
use drainprof_report::facts::Duty;
use drainprof_tests::tracer::Tracer;

use super::Known;
use crate::{
    floor,
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    rounds::{Effort, announce},
    worker::Worker,
};

pub(super) const BENCHMARK: Known = Known {
    name: "attach",
    title: "Attaching and detaching ten probes",
    about: "Ten entry probes (`tests/profiles/ten.toml`) on a process that reads the clock continuously. The attach \
            includes reading ELF files, planning, loading and placing.",
    run,
};

/// The time between two checks whether the probes are gone.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);
const PROFILE: &str = "ten";
const LOAD: &str = "load maps and lifecycle programs (before the target is touched)";
const ATTACH: &str = "attach: plan, load, place ten probes, arm";
const DETACH: &str = "detach";
const WINDOW_ATTACH: &str = "attach in a window of a duty cycle";
const WINDOW_DETACH: &str = "detach after it";
const COMMAND: &str = "the command, from its start until it counts";
const END: &str = "the command, from Ctrl-C to its end";
const CALM: &str = "undisturbed, for as long";
const ATTACHING: &str = "while drainprof attaches";
const DETACHING: &str = "while drainprof detaches";
const FLOOR: &str = "while ten empty programs are attached";

/// Why only windows have goals.
const WHY_SLOW: &str = "Without windows, probes of one process are links of perf, placed and removed one by one: a \
                        forked child loses each at its first hit. Links that go together would cost it 650 ns a hit.";

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let mut times = [LOAD, ATTACH, DETACH, WINDOW_ATTACH, WINDOW_DETACH, COMMAND, END]
        .map(|name| (name, Vec::new()));
    let mut pauses = [CALM, ATTACHING, DETACHING, FLOOR].map(|name| (name, Vec::new()));
    let mut worker = Worker::start("pause", &[])?;
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        let measured = once(&mut worker)?;
        for ((_, list), value) in times.iter_mut().zip(measured.milliseconds) {
            list.push(value);
        }
        for ((_, list), value) in pauses.iter_mut().zip(measured.pauses) {
            list.push(value);
        }
    }
    worker.finish()?;
    let goal =
        |what, most, row: usize| Goal::new(what, "ms", Bound::AtMost(most), times[row].1.clone());
    benchmark.goals.extend([
        goal("attaching them in a window of a duty cycle", 50.0, 3),
        goal("detaching them after it", 200.0, 4),
    ]);
    let table = |title: &str, unit: &str, rows: &[(&str, Vec<f64>)]| {
        let rows = rows.iter().map(|(name, samples)| Row::single(name, samples)).collect();
        Table::new(title, unit, Compare::Nothing, rows)
    };
    benchmark.tables.push(table("time", "ms", &times));
    benchmark.tables.push(table("longest pause of the target", "µs", &pauses));
    benchmark
        .notes
        .push("Pauses in which another program was given the CPU are left out.".to_owned());
    benchmark.notes.push(WHY_SLOW.to_owned());
    Ok(())
}

/// One round: in the order of the rows.
struct Measured {
    milliseconds: [f64; 7],
    pauses: [f64; 4],
}

fn once(worker: &mut Worker) -> Result<Measured> {
    let (observer, load) = timed(|| floor::observer(PROFILE, Level::Objects, None));
    let mut observer = observer?;
    let pid = worker.pid();
    let ((added, attach), attaching) =
        paused(worker, || timed(|| observer.add(pid, false).map_err(anyhow::Error::from)))?;
    added?;
    // As long as the attach took, and nothing happens: it is this time that is measured.
    let ((), calm) = paused(worker, || std::thread::sleep(attach))?;
    let (detach, detaching) = paused(worker, || detached(observer))?;
    let duty = Duty { on: Duration::from_secs(1), period: Duration::from_secs(10) };
    let mut windows = floor::observer(PROFILE, Level::Objects, Some(duty))?;
    let (added, window_attach) = timed(|| windows.add(pid, false));
    added?;
    let window_detach = detached(windows);
    let (session, empty) = paused(worker, || floor::attach(pid, PROFILE, Level::Objects, false))?;
    drop(session?);
    let (tracer, command) = timed(|| Tracer::attach(&[pid], PROFILE, &["--level", "objects"]));
    let tracer = tracer?;
    tracer.interrupt()?;
    let (outcome, end) = timed(|| tracer.finish());
    outcome?.report.context("drainprof wrote no report")?;
    let milliseconds = [load, attach, detach, window_attach, window_detach, command, end]
        .map(|time| time.as_secs_f64() * 1e3);
    Ok(Measured { milliseconds, pauses: [calm, attaching, detaching, empty] })
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let made = work();
    (made, began.elapsed())
}

/// Takes the probes out, then the kernel side: how long the probes took.
fn detached(observer: Side) -> Duration {
    let began = Instant::now();
    let detaching = observer.end();
    let gone = loop {
        if let Some(gone) = detaching.gone() {
            break gone;
        }
        std::thread::sleep(CHECK_INTERVAL);
    };
    detaching.wait();
    gone.saturating_duration_since(began)
}

/// Does something and asks the target for its longest pause meanwhile, in microseconds.
fn paused<T>(worker: &mut Worker, work: impl FnOnce() -> T) -> Result<(T, f64)> {
    worker.ask("reset", "RESET")?;
    let made = work();
    let line = worker.ask("read", "PAUSE ")?;
    let ns: f64 = line["PAUSE ".len()..].parse().with_context(|| format!("no number: {line:?}"))?;
    Ok((made, ns / 1e3))
}
