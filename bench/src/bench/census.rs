//! What a census each second takes from a program, and what it takes itself of large heaps.

use std::{
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_tests::{
    environment::{self, which},
    hostile,
    process::Process,
    redis,
};
use serde_json::Value;

use super::{Known, number_after};
use crate::{
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    rounds::{BARE, BARE_AGAIN, Effort, announce},
    worker::Worker,
};

pub(super) const BENCHMARK: Known = Known {
    name: "census",
    title: "A census of heaps each second",
    about: "A program that does nothing but malloc and free, and Redis under redis-benchmark, while \
            `drainprof census` runs each second; beside it gdb, which attaches and detaches each second, as it must \
            to call malloc_info. Then one census of heaps of glibc with 1 and 8 GiB, of which one object in 50 lives.",
    run,
};

const CENSUS: &str = "drainprof census";
const GDB: &str = "gdb";
/// Bytes of an object of the heaps, with what glibc adds, on average.
const OBJECT: u64 = 282;
/// The time between two readings of a census's peak of memory.
const PEAK_INTERVAL: Duration = Duration::from_millis(2);

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let args = [format!("ms={}", effort.batch_ms * 40), "window=100000".to_owned()];
    let mut worker = Worker::start("malloc_pairs", &args)?;
    worker.batch()?;
    let pid = worker.pid();
    let mut pairs = || Ok(worker.batch()?.objects);
    during(effort, benchmark, ("malloc and free", "pairs in a batch"), pid, &mut pairs)?;
    worker.finish()?;
    if let Err(error) = redis_load(effort, benchmark) {
        benchmark.notes.push(format!("Redis was not measured: {error:#}"));
    }
    heaps(effort, benchmark)
}

fn redis_load(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let client = which("redis-benchmark").context("redis-benchmark is not installed")?;
    let place = redis::Place::new()?;
    let mut server = Process::start("redis-server", place.command()?)?;
    server.expect_out_containing(redis::READY)?;
    let requests = (u64::from(effort.requests) * 5).to_string();
    let socket = place.socket();
    let mut load = || {
        let mut command = Command::new(&client);
        command.arg("-s").arg(&socket).args(["-t", "set", "-r", "100000", "-P", "16", "--csv"]);
        let output = command.args(["-n", &requests]).output()?;
        number_after(&String::from_utf8_lossy(&output.stdout), "\"SET\",\"")
    };
    load()?;
    during(effort, benchmark, ("Redis", "requests per second"), server.pid(), &mut load)?;
    server.signal(nix::sys::signal::Signal::SIGTERM)?;
    server.finish().map(drop)
}

/// Rounds of bare, censuses, gdb and bare again.
fn during(
    effort: Effort,
    benchmark: &mut Benchmark,
    (title, unit): (&str, &str),
    pid: u32,
    load: &mut dyn FnMut() -> Result<f64>,
) -> Result<()> {
    let gdb = which("gdb");
    let mut samples = [const { Vec::new() }; 4];
    let (mut censuses, binary) = (0, environment::drainprof()?);
    for round in 0..effort.rounds {
        announce(round, effort.rounds);
        samples[0].push(load()?);
        let mut census = Command::new(&binary);
        census.args(["census", "-o", "json", "-p", &pid.to_string()]);
        let (figure, number) = beside(census, load)?;
        samples[1].push(figure);
        censuses += number;
        if let Some(gdb) = &gdb {
            let mut attach = Command::new(gdb);
            attach.args(["-batch", "-nx", "-p", &pid.to_string()]);
            samples[2].push(beside(attach, load)?.0);
        }
        samples[3].push(load()?);
    }
    benchmark.notes.push(format!("{title}: {censuses} censuses in {} rounds", effort.rounds));
    let peer = match gdb {
        Some(_) => Row::single(GDB, &samples[2]),
        None => Row::unavailable(GDB, "not installed"),
    };
    let rows = vec![
        Row::baseline(BARE, &samples[0]),
        Row::single(CENSUS, &samples[1]),
        peer,
        Row::baseline(BARE_AGAIN, &samples[3]),
    ];
    let table = Table::new(title, unit, Compare::Ratio, rows);
    for (name, bound) in [(CENSUS, Bound::AtLeast(0.99)), (GDB, Bound::Stated)] {
        let what = format!("{title}: with {name} each second ÷ bare");
        benchmark.goals.push(table.goal(&what, "×", bound, name));
    }
    benchmark.tables.push(table);
    Ok(())
}

/// What `load` comes to while a command runs each second, and how often that was.
fn beside(mut command: Command, load: &mut dyn FnMut() -> Result<f64>) -> Result<(f64, u64)> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let runner = scope.spawn(|| -> Result<u64> {
            let mut number = 0;
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                let status = command.status()?;
                ensure!(status.success(), "{command:?} ended with {status}");
                number += 1;
                while began.elapsed() < Duration::from_secs(1) && !over.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            Ok(number)
        });
        let figure = load();
        over.store(true, Ordering::Relaxed);
        let number = runner.join().map_err(|_| anyhow::anyhow!("the runner panicked"))??;
        Ok((figure?, number))
    })
}

/// One census of large heaps: time, what was read, and the memory that it took.
fn heaps(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let sizes: &[u64] =
        if effort.rounds == Effort::QUICK.rounds { &[16 << 20] } else { &[1 << 30, 8 << 30] };
    for bytes in sizes {
        let mut command = Command::new(environment::target("heap_census")?);
        command.args([(bytes / OBJECT).to_string(), "0".to_owned()]);
        let mut process = Process::start("heap_census", command)?;
        let ready = process.expect_out("READY ")?;
        let truth: Value = serde_json::from_str(ready.trim_start_matches("READY "))?;
        let mut figures = [const { Vec::new() }; 3];
        for _ in 0..effort.rounds {
            let mut census = Command::new(environment::drainprof()?);
            census.args(["census", "-o", "json", "-p", &process.pid().to_string()]);
            let (census, peak) = with_peak(census.stdout(Stdio::piped()).spawn()?)?;
            let census: Value = serde_json::from_str(&census)?;
            let heap = &census["heaps"][0];
            ensure!(heap["free_bytes"] == truth["free"], "{truth}: {heap}");
            let number = |value: &Value| value.as_f64().with_context(|| format!("{census}"));
            let resident = number(&heap["resident_bytes"])?;
            figures[0].push(number(&census["seconds"])?);
            figures[1].push(100.0 * number(&census["read_bytes"])? / resident);
            figures[2].push(peak as f64 / f64::from(1 << 20));
        }
        process.finish()?;
        let name = format!("{:.2} GiB", *bytes as f64 / f64::from(1 << 30));
        let units = ["seconds", "% of it read", "MiB of drainprof at the peak"];
        for (unit, samples) in units.into_iter().zip(&figures) {
            let goal =
                Goal::new(&format!("a heap of {name}"), unit, Bound::Stated, samples.clone());
            benchmark.goals.push(goal);
        }
    }
    Ok(())
}

/// What a child prints, and its peak of resident memory in bytes, as last read before its end. (The resource usage of a
/// child that has ended includes the peak of its parent.)
fn with_peak(mut child: Child) -> Result<(String, u64)> {
    let out = child.stdout.take().context("stdout is piped")?;
    let reader = thread::spawn(move || std::io::read_to_string(out));
    let mut peak = None;
    let ended = loop {
        peak = hostile::peak(child.id()).ok().or(peak);
        if let Some(ended) = child.try_wait()? {
            break ended;
        }
        thread::sleep(PEAK_INTERVAL);
    };
    ensure!(ended.success(), "it ended with {ended}");
    let Ok(text) = reader.join() else { bail!("the reader of its output has panicked") };
    Ok((text?, peak.context("its peak could not be read")?))
}
