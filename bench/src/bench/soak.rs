//! Whether the daemon grows while a busy node keeps it busy: slopes of all that it holds.
//!
//! After a warm-up, each quantity is sampled every second, averaged over blocks of time, and fitted with a line. Means of
//! blocks depend little on one another, so the interval of the slope is Student's.

use std::{
    collections::VecDeque,
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment,
    node::{self, Daemon},
};
use nix::{
    sys::{
        resource::{UsageWho, getrusage},
        signal::{Signal, kill},
        time::{TimeVal, TimeValLike as _},
    },
    time::{clock_getcpuclockid, clock_gettime},
    unistd::Pid,
};

use super::Known;
use crate::{
    model::{Benchmark, Bound, Compare, Goal, Row, Table},
    rounds::Effort,
    worker::Worker,
};

pub(super) const BENCHMARK: Known = Known {
    name: "soak",
    title: "The daemon for long",
    about: "200 processes, 20 attached and at work in turns (`boundary`); 10 more start each second and live for one. \
            Each second a scrape, every 20 s a reload, every 30 s a diagnostic window of 3 s, censuses, a history of \
            at most 4 MiB and a quarter of the time, tables that are full, and replaced, every two minutes. A slope \
            is of means over twentieths of the time after a warm-up of a third, with its 95 % interval.",
    run,
};

const PROCESSES: usize = 200;
const ATTACHED: usize = 20;
const CHURN: u32 = 10;
/// Full so quickly that in hours all happens that would in days.
const INSTANCES: usize = 512;
const RELOAD: u64 = 20;
const WINDOW: u64 = 30;
const SHORTEST_HISTORY: Duration = Duration::from_secs(300);

/// Means that the line is fitted to, and Student's quantile for them (97.5 %, two degrees of freedom less).
const BLOCKS: usize = 20;
const STUDENT: f64 = 2.101;

/// What is sampled: a name, a unit, and how many there are in it.
const QUANTITIES: [(&str, &str); 7] = [
    ("resident memory", "KiB"),
    ("anonymous memory", "KiB"),
    ("descriptors", ""),
    ("mappings", ""),
    ("history file", "KiB"),
    ("CPU time ÷ that of the brief processes", "%"),
    (CPU, "% CPU"),
];

/// Stated only: over hours the machine itself gets slower and faster by more than a slope may have.
const CPU: &str = "CPU time";

/// Seconds since the begin, and a value of each quantity.
type Sample = (f64, [f64; QUANTITIES.len()]);

fn run(effort: Effort, benchmark: &mut Benchmark) -> Result<()> {
    let mut attached = start("cost", ATTACHED)?;
    let others = start("malloc_pairs", PROCESSES - ATTACHED)?;
    let directory = tempfile::tempdir()?;
    // Whatever else runs on this machine is not measured.
    let targets = environment::target("brief")?;
    let targets = targets.parent().context("the targets lie in a directory")?.canonicalize()?;
    // It reaches its size while the daemon warms up.
    let age = (effort.soak / 4).max(SHORTEST_HISTORY).as_secs();
    let more = format!(
        "window.cooldown = \"1s\"\nwindow.budget_per_hour = \"1h\"\ncensus.interval = \"10s\"\n\
         store.max_bytes = \"4MiB\"\nstore.max_age = \"{age}s\"\n\
         maps.instances = {INSTANCES}\nmaps.places = {INSTANCES}\n\
         select.rules = [{{ action = \"include\", exe = [\"{}/*\"] }}]",
        targets.display()
    );
    node::configure_at_usual_pace(directory.path(), &["arena"], &more)?;
    let daemon = Daemon::start_in(directory)?;
    let pids: Vec<u32> = attached.iter().map(Worker::pid).collect();
    daemon.attached(&pids)?;
    let samples = busy(&daemon, &mut attached, effort.soak)?;
    let windows = daemon.state()?["windows"].as_array().map_or(0, Vec::len);
    daemon.finish()?;
    for worker in attached.into_iter().chain(others) {
        worker.finish()?;
    }
    let warm = effort.soak.as_secs_f64() / 3.0;
    let kept: Vec<&Sample> = samples.iter().filter(|(at, _)| *at >= warm).collect();
    let mut rows = Vec::new();
    for (index, (name, unit)) in QUANTITIES.iter().enumerate() {
        let values: Vec<f64> = kept.iter().map(|(_, values)| values[index]).collect();
        let points: Vec<(f64, f64)> = kept.iter().map(|(at, v)| (*at / 3600.0, v[index])).collect();
        let (slope, margin) = slope(&points).context("too few samples for a slope")?;
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let interval = [slope - margin, slope, slope + margin];
        let lowest = slope - margin;
        let bound = if *name == CPU { Bound::Stated } else { Bound::AtMost(0.0) };
        let what = format!("{name}: slope, at least");
        benchmark.goals.push(Goal::new(&what, &format!("{unit}/h"), bound, vec![lowest]));
        let name = format!("{name}, mean {mean:.1} {unit}");
        rows.push(Row::single(name.trim_end(), &interval));
    }
    let title = "slope (95 % interval)";
    benchmark.tables.push(Table::new(title, "per hour", Compare::Nothing, rows));
    let seconds = effort.soak.as_secs();
    benchmark.notes.push(format!("{seconds} s in all; {windows} diagnostic windows."));
    Ok(())
}

/// Programs that work when they are asked to.
fn start(target: &str, number: usize) -> Result<Vec<Worker>> {
    (0..number).map(|_| Worker::start(target, &["ms=20".to_owned()])).collect()
}

/// Keeps the node busy for so long; a sample each second.
fn busy(daemon: &Daemon, workers: &mut [Worker], length: Duration) -> Result<Vec<Sample>> {
    let pid = daemon.pid();
    let clock = clock_getcpuclockid(Pid::from_raw(pid.cast_signed())).context("find its clock")?;
    let used = || clock_gettime(clock).map(Duration::from).context("read its clock");
    let (began, mut samples, mut children) = (Instant::now(), Vec::new(), VecDeque::new());
    let (mut spent, mut then) = (used()?, began.elapsed());
    let (mut before, mut relative) = (time_of_load()?, 0.0);
    for second in 1..=length.as_secs() {
        for part in 0..CHURN {
            children.push_back(brief()?);
            let next =
                Duration::from_secs(second - 1) + Duration::from_secs(1) / CHURN * (part + 1);
            thread::sleep(next.saturating_sub(began.elapsed()));
        }
        reap(&mut children)?;
        let at = second as usize % workers.len();
        let worker = &mut workers[at];
        worker.batch()?;
        let scrape = daemon.open_metrics()?;
        ensure!(scrape.contains("drainprof_"), "the metrics are empty");
        if second % RELOAD == 0 {
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGHUP).context("reload")?;
        }
        if second % WINDOW == 0 {
            let body = format!("{{\"pid\":{},\"seconds\":3}}", worker.pid());
            let (status, answer) = daemon.post("/api/v1/diagnose", &body)?;
            ensure!(status < 300, "no window: {status} {answer}");
        }
        let (now, total) = (began.elapsed(), used()?);
        let passed = now.saturating_sub(then).as_secs_f64();
        let took = total.saturating_sub(spent).as_secs_f64();
        let load = time_of_load()?;
        if load > before {
            relative = 100.0 * took / load.saturating_sub(before).as_secs_f64();
        }
        (spent, then, before) = (total, now, load);
        samples.push((now.as_secs_f64(), sample(daemon, [relative, 100.0 * took / passed])?));
    }
    for mut child in children {
        child.wait().context("wait for a brief process")?;
    }
    Ok(samples)
}

/// A process that is attached if the daemon finds it, and ends by itself after a second.
fn brief() -> Result<Child> {
    let mut command = Command::new(environment::target("brief")?);
    command.args(["opens=100", "ms=1000"]).env("DRAINPROF_GO", "1");
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().context("start a brief process")
}

/// Forgets those that have ended.
fn reap(children: &mut VecDeque<Child>) -> Result<()> {
    while let Some(first) = children.front_mut() {
        if first.try_wait().context("wait for a brief process")?.is_none() {
            break;
        }
        children.pop_front();
    }
    Ok(())
}

/// CPU time of all brief processes that have ended: each of them does the same.
fn time_of_load() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("read what ended processes took")?;
    let time = |value: TimeVal| Duration::from_micros(value.num_microseconds().unsigned_abs());
    Ok(time(usage.user_time()) + time(usage.system_time()))
}

fn sample(daemon: &Daemon, [relative, share]: [f64; 2]) -> Result<[f64; QUANTITIES.len()]> {
    let pid = daemon.pid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).context("read its status")?;
    let kib = |name: &str| -> Result<f64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let text = line.with_context(|| format!("no {name}"))?;
        text.trim_end_matches("kB").trim().parse().with_context(|| format!("read {name}"))
    };
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).context("read its mappings")?;
    let mut history = 0;
    for entry in fs::read_dir(daemon.file("store")).context("list the history")? {
        // A file of the history may go meanwhile.
        history += entry?.metadata().map_or(0, |data| data.len());
    }
    Ok([
        kib("VmRSS:")?,
        kib("RssAnon:")?,
        node::descriptors(pid)? as f64,
        maps.lines().count() as f64,
        history as f64 / 1024.0,
        relative,
        share,
    ])
}

/// The slope of a line through means of blocks of equally many points, and half the width of its 95 % interval.
fn slope(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let size = points.len() / BLOCKS;
    if size == 0 {
        return None;
    }
    let blocks: Vec<(f64, f64)> = points.chunks_exact(size).take(BLOCKS).map(mean).collect();
    let (x_mean, y_mean) = mean(&blocks);
    let sum = |term: &dyn Fn(f64, f64) -> f64| -> f64 {
        blocks.iter().map(|(x, y)| term(x - x_mean, y - y_mean)).sum()
    };
    let squares = sum(&|x, _| x * x);
    let slope = sum(&|x, y| x * y) / squares;
    let rest = sum(&|x, y| (y - slope * x).powi(2)) / (BLOCKS - 2) as f64;
    Some((slope, STUDENT * (rest / squares).sqrt()))
}

fn mean(points: &[(f64, f64)]) -> (f64, f64) {
    let number = points.len() as f64;
    let (x, y) = points.iter().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
    (x / number, y / number)
}

#[cfg(test)]
mod tests {
    use super::{BLOCKS, slope};

    fn points(number: usize, y: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        (0..number).map(|x| (x as f64, y(x as f64))).collect()
    }

    /// A line has its slope and no width; what goes up and down within blocks has none; a step up is found.
    #[test]
    fn slopes() {
        let (found, margin) = slope(&points(200, |x| 3.0 * x + 1.0)).unwrap();
        assert!((found - 3.0).abs() < 1e-9 && margin < 1e-9, "{found} {margin}");
        let (found, margin) = slope(&points(200, |x| (x * 12.9898).sin())).unwrap();
        assert!(found - margin < 0.0 && found + margin > 0.0, "{found} {margin}");
        let (found, margin) = slope(&points(200, |x| if x < 100.0 { 0.0 } else { 1.0 })).unwrap();
        assert!(found - margin > 0.0, "{found} {margin}");
        assert!(slope(&points(BLOCKS - 1, |x| x)).is_none());
    }
}
