//! A daemon beside a thousand processes of which twenty attack it in five ways at once: it goes on making states, counts all
//! others to the last close, and reads their heaps rightly; its memory does not grow.
//!
//! `DRAINPROF_TEST_HOSTILE_SECONDS` says for how long. What the daemon took is printed.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    attack::{counts_another, hostile_heap},
    environment::{self, requires_root},
    gaps::Gaps,
    node::{Daemon, GROWTH, alone, configure, resident},
    process::Process,
    silent::Silent,
    target::Target,
};
use nix::unistd::{SysconfVar, sysconf};
use serde_json::Value;

/// Processes of each kind.
const SILENT: usize = 6;
const LABELS: usize = 3;
const CHAINS: usize = 3;
const EXTENTS: usize = 2;
const IDLE: usize = 980;
/// Longest time without a new state, milliseconds.
const GAP: u64 = 2_000;
/// Closes of a process that comes and goes.
const CLOSES: u64 = 100;
const MORE: &str = "daemon.level = \"objects\"\ndaemon.pss_budget = \"10%\"\ncensus.budget = \"10%\"\n\
                    census.interval = \"1s\"\nselect.unmatched = true\nselect.max_processes = 5000\n";

/// Those that attack.
struct Attack {
    _silent: Vec<Silent>,
    _heaps: Vec<Process>,
    labels: Vec<Target>,
}

impl Attack {
    fn start(time: Duration) -> Result<Self> {
        let seconds = [format!("seconds={}", time.as_secs())];
        let modes = ["exec", "replace"].map(|mode| Silent::start_with(mode, SILENT, &seconds));
        let mut silent = Vec::new();
        for one in modes {
            silent.extend(one?);
        }
        let kinds = [("chain", CHAINS), ("extents", EXTENTS)];
        let kinds = kinds.into_iter().flat_map(|(kind, count)| std::iter::repeat_n(kind, count));
        let heaps = kinds.map(hostile_heap).collect::<Result<_>>()?;
        let count = if Path::new("/dev/userfaultfd").exists() { LABELS } else { 0 };
        let label = |_| Target::start("hung_labels", &["mode=missing", "stops=1"]);
        Ok(Self {
            _silent: silent,
            _heaps: heaps,
            labels: (0..count).map(label).collect::<Result<_>>()?,
        })
    }

    /// Labels that hang are read once the daemon watches.
    fn go_on(&mut self, daemon: &Daemon) -> Result<()> {
        for target in &mut self.labels {
            daemon.attached(&[target.pid()])?;
            target.go()?;
            target.reaches("counted")?;
        }
        Ok(())
    }
}

/// The processes that do nothing, with glibc's own numbers.
fn idlers() -> Result<(Process, Value)> {
    let mut command = Command::new(environment::target("idlers")?);
    command.arg(format!("children={IDLE}"));
    let mut process = Process::start("idlers", command)?;
    let line = process.expect_out("IDLERS ")?;
    process.expect_out("READY ")?;
    Ok((process, serde_json::from_str(line.trim_start_matches("IDLERS "))?))
}

/// How many of them have been read, all of them as glibc says.
fn read_rightly(state: &Value, truth: &Value) -> Result<usize> {
    let targets = state["targets"].as_array().context("targets")?;
    let mut count = 0;
    for target in targets.iter().filter(|one| one["comm"] == "idlers") {
        let Some(heap) = target["heaps"]["heaps"].get(0) else { continue };
        let number = |key: &str| heap[key].as_u64().unwrap_or_default();
        let used = number("live_bytes") + number("cached_bytes");
        let in_use = truth["in_use"].as_u64().context("in_use")?;
        let is_right = used == in_use && truth["free"] == heap["free_bytes"];
        ensure!(is_right && number("unknown_bytes") == 0, "{truth} {heap}");
        count += 1;
    }
    Ok(count)
}

/// CPU time of a process so far, seconds.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rsplit(") ").next().context("stat")?;
    let ticks = rest.split(' ').skip(11).take(2).map(str::parse::<f64>).sum::<Result<f64, _>>()?;
    let each = sysconf(SysconfVar::CLK_TCK)?.context("CLK_TCK")?;
    Ok(ticks / each as f64)
}

/// A thousand processes, of which twenty attack.
#[test]
fn a_thousand_of_which_twenty_attack() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let time = Duration::from_secs(environment::number("DRAINPROF_TEST_HOSTILE_SECONDS", 10)?);
    let (_idle, truth) = idlers()?;
    let mut attack = Attack::start(time + Duration::from_secs(600))?;
    let directory = tempfile::tempdir()?;
    configure(directory.path(), &["arena", "hung_labels"], MORE)?;
    let daemon = Daemon::start_in(directory)?;
    let pid = daemon.pid();
    attack.go_on(&daemon)?;
    let gaps = Gaps::of(&daemon);
    let (began, cpu) = (Instant::now(), cpu_seconds(pid)?);
    let (mut sizes, mut rounds, mut read) = (Vec::new(), 0, 0);
    while began.elapsed() < time || read == 0 {
        counts_another(&daemon, CLOSES)?;
        read = read_rightly(&daemon.state()?, &truth)?;
        sizes.push((began.elapsed().as_secs(), resident(pid)? >> 20));
        rounds += 1;
    }
    let longest = gaps.both()?;
    let (took, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds(pid)? - cpu);
    let every = sizes.len().div_ceil(20).max(1);
    let some: Vec<_> = sizes.iter().step_by(every).collect();
    println!(
        "hostile_many: {took:.0} s, gap {} ms ({} ms with waits for a processor), {rounds} processes counted, {read} idle heaps right, CPU {:.1} %, \
         RSS (s, MiB) {some:?}",
        longest.own,
        longest.whole,
        100.0 * cpu / took
    );
    assert!(longest.own < GAP, "no new state: {longest:?} ms");
    // Where it has been some time, it has what it needs.
    let half = sizes.get(sizes.len() / 2).map_or(0, |(_, size)| *size);
    let last = sizes.last().map_or(0, |(_, size)| *size);
    assert!(last <= half + (GROWTH >> 20), "{half} MiB at half of the time, {last} at the end");
    daemon.finish()?;
    Ok(())
}
