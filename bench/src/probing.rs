//! What can be put on a target: nothing, empty programs, drainprof, bpftrace, perf.
//!
//! Each is in place when `attach` returns and gone when `detach` does; the target's text is looked at to
//! be sure of both.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use drainprof::{bpf::Session, profile::Level};
use drainprof_tests::{
    elf::changed_text_bytes,
    environment::{deadline, which},
    process::Process,
    tracer::Tracer,
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::floor;

/// Between two looks at whether probes are in place, where nobody says so.
const LOOK: Duration = Duration::from_millis(5);

/// A script for bpftrace: its name and text; `{binary}` in it stands for the probed file.
pub(crate) type Script = (&'static str, &'static str);

/// What is put on a target.
#[derive(Clone, Debug)]
pub(crate) enum Probing {
    /// Nothing.
    Bare,
    /// Empty programs at the sites of a profile at a level.
    Floor(&'static str, Level),
    /// drainprof with a profile at a level, and more arguments.
    Drainprof(&'static str, Level, &'static [&'static str]),
    /// bpftrace with a script.
    Bpftrace(Script),
    /// Kernel uprobe events at these places (as `perf probe` takes them), counted by `perf stat`.
    PerfStat(&'static [&'static str]),
}

/// Something in place.
pub(crate) enum Attached {
    Nothing,
    Floor(Box<Session>),
    Drainprof(Box<Tracer>),
    Bpftrace(Process, TempDir),
    PerfStat(Process),
}

impl Probing {
    /// Why it cannot be used here.
    pub(crate) fn missing(&self) -> Option<String> {
        let program = match self {
            Self::Bpftrace(_) => "bpftrace",
            Self::PerfStat(_) => "perf",
            _ => return None,
        };
        which(program).is_none().then(|| format!("{program} is not installed"))
    }

    /// Puts it on a process of which `probed` is the file that is probed.
    pub(crate) fn attach(&self, pid: u32, probed: &Path) -> Result<Attached> {
        let attached = match self {
            Self::Bare => return Ok(Attached::Nothing),
            Self::Floor(profile, level) => {
                Attached::Floor(Box::new(floor::attach(pid, profile, *level)?))
            }
            Self::Drainprof(profile, level, more) => {
                let mut args = vec!["--level", level.name()];
                args.extend(*more);
                Attached::Drainprof(Box::new(Tracer::attach(&[pid], profile, &args)?))
            }
            Self::Bpftrace(script) => bpftrace(pid, probed, *script)?,
            Self::PerfStat(places) => perf_stat(pid, probed, places)?,
        };
        let changed = changed_text_bytes(pid, probed)?;
        ensure!(changed > 0, "{self:?} is attached, but no probe is in {}", probed.display());
        Ok(attached)
    }
}

impl Attached {
    /// Takes it off again; the report where there is one.
    pub(crate) fn detach(self, pid: u32, probed: &Path) -> Result<Option<Value>> {
        let report = match self {
            Self::Nothing => return Ok(None),
            Self::Floor(session) => {
                drop(session);
                None
            }
            Self::Drainprof(tracer) => {
                tracer.interrupt()?;
                let outcome = tracer.finish()?;
                let talk = outcome.talk();
                Some(
                    outcome
                        .report
                        .with_context(|| format!("drainprof reported nothing: {talk}"))?,
                )
            }
            Self::Bpftrace(process, directory) => {
                process.signal(Signal::SIGINT)?;
                process.finish()?;
                drop(directory);
                None
            }
            Self::PerfStat(process) => {
                process.signal(Signal::SIGINT)?;
                process.finish()?;
                forget_events();
                None
            }
        };
        wait_for(&format!("all probes to be gone from {}", probed.display()), || {
            Ok(changed_text_bytes(pid, probed)? == 0)
        })?;
        Ok(report)
    }
}

fn bpftrace(pid: u32, probed: &Path, (name, text): Script) -> Result<Attached> {
    let directory = TempDir::new()?;
    let script = directory.path().join(name);
    fs::write(&script, text.replace("{binary}", &probed.display().to_string()))?;
    let mut command = Command::new(which("bpftrace").context("bpftrace is not installed")?);
    command.arg("-p").arg(pid.to_string()).arg(&script);
    // Its default, 4096 entries, would lose what is to be counted.
    command.env("BPFTRACE_MAP_KEYS_MAX", "1000000").env("BPFTRACE_NO_USER_SYMBOLS", "1");
    let mut process = Process::start("bpftrace", command)?;
    // Scripts say so in BEGIN; bpftrace prints that only once everything is attached.
    process.expect_out("ready")?;
    Ok(Attached::Bpftrace(process, directory))
}

const GROUP: &str = "drainprof_bench";

fn perf_stat(pid: u32, probed: &Path, places: &[&str]) -> Result<Attached> {
    let perf = which("perf").context("perf is not installed")?;
    forget_events();
    let mut events = Vec::new();
    for (number, place) in places.iter().enumerate() {
        let output = Command::new(&perf)
            .args(["probe", "-q", "-x"])
            .arg(probed)
            .arg("--add")
            .arg(format!("{GROUP}:e{number}={place}"))
            .output()?;
        ensure!(
            output.status.success(),
            "perf probe {place} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        events.push(format!("{GROUP}:e{number}"));
    }
    let mut command = Command::new(&perf);
    command.args(["stat", "-e", &events.join(","), "-p", &pid.to_string()]);
    let process = Process::start("perf stat", command)?;
    // It does not say when it counts.
    wait_for("perf stat to count", || Ok(changed_text_bytes(pid, probed)? > 0))?;
    Ok(Attached::PerfStat(process))
}

/// Removes our kernel events, ours of an interrupted run included.
fn forget_events() {
    if let Some(perf) = which("perf") {
        // It fails where there are none, which is what is wanted.
        let _ = Command::new(perf).args(["probe", "-q", "-d", &format!("{GROUP}:*")]).output();
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + deadline();
    while !holds()? {
        if Instant::now() > until {
            bail!("waited {:?} in vain for {what}", deadline());
        }
        std::thread::sleep(LOOK);
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
