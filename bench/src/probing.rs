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
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    floor,
    growing::{self, Growth, Watching},
    worker::Counts,
};

/// Between two examines whether probes are in place, where nobody says so.
const LOOK: Duration = Duration::from_millis(5);

/// How long a peer may take to end before it is asked again.
const PATIENCE: Duration = Duration::from_secs(2);

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
    Bpftrace(Process, TempDir),
    Growth(Box<Watching>),
    Tracepoints(Process, TempDir),
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
            Self::Bpftrace(script) => {
                let (process, directory) = bpftrace(pid, probed, *script)?;
                Attached::Bpftrace(process, directory)
            }
            // These change nothing of the program's text.
            Self::Growth(growth) => {
                return Ok(Attached::Growth(Box::new(growing::watch(pid, *growth)?)));
            }
            Self::Tracepoints(script) => {
                let (process, directory) = bpftrace(pid, probed, *script)?;
                return Ok(Attached::Tracepoints(process, directory));
            }
            Self::PerfStat(places) => perf_stat(pid, probed, places)?,
        };
        let changed = changed_text_bytes(pid, probed)?;
        ensure!(changed > 0, "{self:?} is attached, but no probe is in {}", probed.display());
        Ok(attached)
    }
}

impl Attached {
    /// Takes it off again; what it has seen, if it says so.
    pub(crate) fn detach(self, pid: u32, probed: &Path) -> Result<Seen> {
        let seen = match self {
            Self::Floor(session) => {
                drop(session);
                Seen::default()
            }
            Self::Drainprof(tracer) => {
                tracer.interrupt()?;
                let outcome = tracer.finish()?;
                let talk = outcome.talk();
                let report = outcome
                    .report
                    .with_context(|| format!("drainprof reported nothing: {talk}"))?;
                Seen::of_report(&report)
            }
            Self::Bpftrace(process, directory) => {
                let printed = stop(process)?;
                drop(directory);
                Seen::of_bpftrace(&printed)
            }
            Self::Growth(watching) => watching.finish()?,
            Self::Tracepoints(process, directory) => {
                let printed = stop(process)?;
                drop(directory);
                Seen { besides: true, ..Seen::of_bpftrace(&printed) }
            }
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

/// What a tracer says that it has seen.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) counts: Counts,
    /// Losses, of a report that is not complete.
    pub(crate) losses: Option<String>,
    /// What the program does between its batches is counted as well: only too little is wrong.
    pub(crate) besides: bool,
}

impl Seen {
    /// From drainprof's report.
    pub(crate) fn of_report(report: &Value) -> Self {
        let sum = |key: &str| {
            let targets = report["targets"].as_array().into_iter().flatten();
            let allocators = targets.filter_map(|target| target["allocators"].as_array()).flatten();
            let found: Vec<f64> =
                allocators.filter_map(|allocator| allocator.pointer(key)?.as_f64()).collect();
            (!found.is_empty()).then(|| found.iter().sum())
        };
        let losses = report["losses"].as_object().into_iter().flatten();
        let losses: Vec<String> = losses
            .filter(|(_, count)| count.as_u64().unwrap_or(0) > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        Self {
            counts: Counts {
                allocated: sum("/objects/allocated"),
                opened: sum("/granules/opened"),
            },
            losses: (report["complete"] != true).then(|| losses.join(", ")),
            besides: false,
        }
    }

    /// From the maps that bpftrace prints at its end.
    fn of_bpftrace(printed: &[String]) -> Self {
        let map = |name: &str| {
            let line = printed.iter().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(": ")?.parse().ok()
        };
        let counts = Counts { allocated: map("@allocated"), opened: map("@opened") };
        Self { counts, losses: None, besides: false }
    }

    /// What is wrong with it, given what there was to see.
    pub(crate) fn wrong(&self, truth: Counts) -> Vec<String> {
        let mut wrong: Vec<String> = self
            .losses
            .iter()
            .map(|losses| format!("the report is not complete: {losses}"))
            .collect();
        let Counts { allocated, opened } = self.counts;
        // Where objects are not followed nobody has seen any; where they are, they are what matters.
        let pairs = [("objects", allocated, truth.allocated), ("granules", opened, truth.opened)];
        let compared = pairs.into_iter().find(|(_, seen, _)| seen.is_some_and(|seen| seen > 0.0));
        if let Some((what, Some(seen), Some(done))) = compared
            && (done - seen > 0.5 || (seen - done > 0.5 && !self.besides))
        {
            wrong.push(format!("it counted {seen:.0} of {done:.0} {what}"));
        }
        wrong
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
        if running && asked.is_none_or(|asked| asked.elapsed() > PATIENCE) {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Seen;
    use crate::worker::Counts;

    const DONE: Counts = Counts { allocated: Some(100.0), opened: Some(4.0) };

    /// Counts of reports and of bpftrace's maps are held against the truth; one event less is reported.
    #[test]
    fn counts_are_compared() {
        let report = |allocated, opened| {
            json!({"complete": true, "losses": {}, "targets": [{"allocators": [
                {"objects": {"allocated": allocated}, "granules": {"opened": opened}}]}]})
        };
        assert!(Seen::of_report(&report(100, 0)).wrong(DONE).is_empty());
        assert!(Seen::of_report(&report(0, 4)).wrong(DONE).is_empty());
        assert_eq!(Seen::of_report(&report(99, 4)).wrong(DONE), ["it counted 99 of 100 objects"]);
        let printed = |text: &str| Seen::of_bpftrace(&["ready".to_owned(), text.to_owned()]);
        assert!(printed("@allocated: 100").wrong(DONE).is_empty());
        assert_eq!(printed("@opened: 3").wrong(DONE), ["it counted 3 of 4 granules"]);
    }

    /// Where a program does some of it between its batches too, more is not wrong, and less is.
    #[test]
    fn more_may_be_besides() {
        let seen = |allocated: f64| {
            let counts = Counts { allocated: Some(allocated), opened: None };
            Seen { counts, losses: None, besides: true }
        };
        assert!(seen(107.0).wrong(DONE).is_empty());
        assert_eq!(seen(99.0).wrong(DONE), ["it counted 99 of 100 objects"]);
    }

    /// A figure that was bought with losses says so.
    #[test]
    fn losses_are_told() {
        let report = json!({"complete": false, "losses": {"object_map_full": 7, "ring_full": 0}});
        assert_eq!(
            Seen::of_report(&report).wrong(DONE),
            ["the report is not complete: object_map_full 7"]
        );
    }
}
