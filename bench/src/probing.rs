//! What can be put on a target: empty programs, drainprof, bpftrace, perf.
//!
//! Each is in place when `attach` returns and gone when `detach` does; the target's text is examined to
//! be sure of both.

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use drainprof_probe::bpf::Session;
use drainprof_profile::Level;
use drainprof_tests::{
    elf::{changed_text_bytes, file_offset},
    environment::{deadline, which},
    process::Process,
    tracer::Tracer,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::{
    floor,
    growing::{self, Growth, Watching},
    seen::Seen,
};

/// The time between two checks for probes that no program announces.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);

/// How long a peer may take to end before it is asked again.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A script for bpftrace: its name and text; `{binary}` and `{pid}` in it stand for the probed
/// file and the process.
pub(crate) type Script = (&'static str, &'static str);

/// What is put on a target.
#[derive(Clone, Debug)]
pub(crate) enum Probing {
    /// Empty programs at the sites of a profile at a level.
    Floor(&'static str, Level),
    /// The same for every process that maps the file, forked ones included.
    FloorOnFile(&'static str, Level),
    /// drainprof with a profile at a level, and more arguments.
    Drainprof(&'static str, Level, &'static [&'static str]),
    /// bpftrace with a script.
    Bpftrace(Script),
    /// `drainprof growth`.
    Growth(Growth),
    /// bpftrace with a script of tracepoints alone.
    Tracepoints(Script),
    /// The kernel's own uprobe events at these functions, counted by `perf stat`; `true`: at the return.
    PerfStat(&'static [(&'static str, bool)]),
}

/// Something in place.
pub(crate) enum Attached {
    Floor(Box<Session>),
    Drainprof(Box<Tracer>),
    /// With whether it counts what the program does between its batches as well.
    Bpftrace(Process, TempDir, bool),
    Growth(Box<Watching>),
    PerfStat(Process),
}

impl Probing {
    /// Why it cannot be used here.
    pub(crate) fn missing(&self) -> Option<String> {
        let program = match self {
            Self::Bpftrace(_) | Self::Tracepoints(_) => "bpftrace",
            Self::PerfStat(_) => "perf",
            _ => return None,
        };
        which(program).is_none().then(|| format!("{program} is not installed"))
    }

    /// Puts it on a process of which `probed` is the file that is probed.
    pub(crate) fn attach(&self, pid: u32, probed: &Path) -> Result<Attached> {
        let attached = match self {
            Self::Floor(profile, level) => {
                Attached::Floor(Box::new(floor::attach(pid, profile, *level, false)?))
            }
            Self::FloorOnFile(profile, level) => {
                Attached::Floor(Box::new(floor::attach(pid, profile, *level, true)?))
            }
            Self::Drainprof(profile, level, more) => {
                let mut args = vec!["--level", level.name()];
                args.extend(*more);
                Attached::Drainprof(Box::new(Tracer::attach(&[pid], profile, &args)?))
            }
            Self::Growth(growth) => Attached::Growth(Box::new(growing::watch(pid, *growth)?)),
            Self::Bpftrace(script) | Self::Tracepoints(script) => {
                let (process, directory) = bpftrace(pid, probed, *script)?;
                Attached::Bpftrace(process, directory, matches!(self, Self::Tracepoints(_)))
            }
            Self::PerfStat(places) => perf_stat(pid, probed, places)?,
        };
        let is_in_text = !matches!(self, Self::Growth(_) | Self::Tracepoints(_));
        ensure!(
            !is_in_text || changed_text_bytes(pid, probed)? > 0,
            "{self:?} is attached, but no probe is in {}",
            probed.display()
        );
        Ok(attached)
    }
}

impl Attached {
    /// Takes it off again; what it has seen, if it says so.
    pub(crate) fn detach(self, pid: u32, probed: &Path) -> Result<Seen> {
        let seen = match self {
            Self::Floor(_session) => Seen::default(),
            Self::Drainprof(tracer) => {
                tracer.interrupt()?;
                let outcome = tracer.finish()?;
                let talk = outcome.talk();
                let report = outcome
                    .report
                    .with_context(|| format!("drainprof reported nothing: {talk}"))?;
                Seen::of_report(&report)
            }
            Self::Bpftrace(process, _directory, besides) => {
                Seen { besides, ..Seen::of_bpftrace(&stop(process)?) }
            }
            Self::Growth(watching) => watching.finish()?,
            Self::PerfStat(process) => {
                stop(process)?;
                forget_events()?;
                Seen::default()
            }
        };
        wait_for(&format!("all probes to be gone from {}", probed.display()), || {
            Ok(changed_text_bytes(pid, probed)? == 0)
        })?;
        Ok(seen)
    }
}

fn bpftrace(pid: u32, probed: &Path, (name, text): Script) -> Result<(Process, TempDir)> {
    let directory = TempDir::new()?;
    let script = directory.path().join(name);
    let text = text.replace("{binary}", &probed.display().to_string());
    fs::write(&script, text.replace("{pid}", &pid.to_string()))?;
    let mut command = Command::new(which("bpftrace").context("bpftrace is not installed")?);
    command.arg("-p").arg(pid.to_string()).arg(&script);
    // Its default, 4096 entries, would lose what is to be counted.
    command.env("BPFTRACE_MAP_KEYS_MAX", "1000000").env("BPFTRACE_NO_USER_SYMBOLS", "1");
    let mut process = Process::start("bpftrace", command)?;
    // Scripts say so in BEGIN; bpftrace prints that only once everything is attached.
    process.expect_out("ready")?;
    Ok((process, directory))
}

/// Where uprobe events are made and removed, and the group of ours.
const EVENTS: &str = "/sys/kernel/tracing/uprobe_events";
/// Begins the name of our groups of events; the process id follows.
const GROUP: &str = "drainprof_bench_";

fn perf_stat(pid: u32, probed: &Path, places: &[(&str, bool)]) -> Result<Attached> {
    forget_events()?;
    let mut names = Vec::new();
    for (number, (symbol, at_return)) in places.iter().enumerate() {
        let name = format!("{GROUP}{}/e{number}", std::process::id());
        let kind = if *at_return { 'r' } else { 'p' };
        let offset = file_offset(probed, symbol)?;
        event(&format!("{kind}:{name} {}:{offset:#x}", probed.display()))?;
        names.push(name.replace('/', ":"));
    }
    let mut command = Command::new(which("perf").context("perf is not installed")?);
    command.args(["stat", "-e", &names.join(","), "-p", &pid.to_string()]);
    let mut process = Process::start("perf stat", command)?;
    // It does not say when it counts.
    wait_for("perf stat to count", || {
        ensure!(process.is_running()?, "perf stat has ended: {}", process.talk());
        Ok(changed_text_bytes(pid, probed)? > 0)
    })?;
    Ok(Attached::PerfStat(process))
}

/// Tells the kernel of an event, or to forget one.
fn event(line: &str) -> Result<()> {
    let mut file = OpenOptions::new().append(true).open(EVENTS).context(EVENTS)?;
    writeln!(file, "{line}").with_context(|| format!("write `{line}` to {EVENTS}"))
}

/// Removes our kernel events, and those of runs that were ended before they could.
fn forget_events() -> Result<()> {
    let known = fs::read_to_string(EVENTS).context(EVENTS)?;
    for name in known.lines().filter_map(|line| line.split_once(':')?.1.split(' ').next()) {
        let Some((owner, _)) = name.strip_prefix(GROUP).and_then(|rest| rest.split_once('/'))
        else {
            continue;
        };
        let is_ours = owner == std::process::id().to_string();
        if is_ours || !Path::new("/proc").join(owner).exists() {
            event(&format!("-:{name}"))?;
        }
    }
    Ok(())
}

/// Interrupts a peer until it ends; what it printed. (bpftrace 0.17 forgets a signal now and then.)
fn stop(mut process: Process) -> Result<Vec<String>> {
    let mut asked: Option<Instant> = None;
    wait_for("a peer to end after SIGINT", || {
        let running = process.is_running()?;
        if running && asked.is_none_or(|asked| asked.elapsed() > END_TIMEOUT) {
            process.signal(Signal::SIGINT)?;
            asked = Some(Instant::now());
        }
        Ok(!running)
    })?;
    Ok(process.finish()?.stdout)
}

fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + deadline();
    while !holds()? {
        if Instant::now() > until {
            bail!("waited {:?} in vain for {what}", deadline());
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    Ok(())
}

/// The file of a library that a process has mapped.
pub(crate) fn mapped(pid: u32, name: &str) -> Result<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    maps.lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .map(PathBuf::from)
        .find(|path| path.file_name().is_some_and(|file| file == name))
        .with_context(|| format!("process {pid} has not mapped {name}"))
}
