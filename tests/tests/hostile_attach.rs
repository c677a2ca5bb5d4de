//! Processes that hold the lock of their own address space, as any user can make them, and map a file that is probed: the
//! kernel would wait for them with every probe that it puts in place or takes out, and no process of the machine could
//! fork. drainprof puts such probes off, says so, and does everything else.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use drainprof_probe::bpf::can_check;
use drainprof_tests::{
    attack::{closed, counted, prompt},
    environment::{self, deadline, patience, requires_root},
    gaps::{Forks, Gaps, gap},
    node::{Daemon, alone, own_programs, target},
    silent::Silent,
    target::Target,
    tracer::{self, Tracer},
};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

/// So long a process forks that holds its own lock, unless it is to stay.
const FORKS: Duration = Duration::from_secs(60);

/// A program of its own, that nobody maps who is not meant to.
struct Copy {
    place: TempDir,
}

impl Copy {
    fn of(name: &str) -> Result<Self> {
        let place = tempfile::tempdir()?;
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755))?;
        let copy = Self { place };
        fs::copy(environment::target(name)?, copy.path())?;
        Ok(copy)
    }

    fn path(&self) -> PathBuf {
        self.place.path().join("copy")
    }

    fn start(&self, closes: u64) -> Result<Target> {
        let mut command = Command::new(self.path());
        command.arg(format!("closes={closes}"));
        Target::start_command("copy", command)
    }

    /// The configuration's lines for it.
    #[allow(clippy::unnecessary_debug_formatting, reason = "a TOML string has quotes")]
    fn lines(&self) -> String {
        let rule = format!("{{ action = \"include\", exe = {:?} }}, ", self.path());
        own_programs(&rule)
    }
}

/// Whether a state says that probes wait for a process.
fn names(state: &Value, pid: u32) -> bool {
    let all = state["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let number = format!("process {pid} ");
    all.into_iter().any(|one| one.starts_with("probes are put off") && one.contains(&number))
}

/// Waits until a thread of a process waits in a fork.
fn forks(pid: u32) -> Result<()> {
    let until = Instant::now() + deadline();
    while Instant::now() < until {
        for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
            let waits = fs::read_to_string(entry?.path().join("wchan")).unwrap_or_default();
            if waits.starts_with("dup_mm") || waits.starts_with("copy_process") {
                return Ok(());
            }
        }
    }
    anyhow::bail!("process {pid} does not fork")
}

/// What has a process map a program.
fn maps(program: &Copy) -> [String; 1] {
    [format!("map={}", program.path().display())]
}

/// Probes that a daemon is asked for, and probes that are to go, while a process in `mode` is in their way.
fn is_put_off(mode: &str) -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let program = Copy::of("psweep")?;
    let daemon = Daemon::start(&["arena"], &program.lines())?;
    let early = program.start(70)?;
    daemon.attached(&[early.pid()])?;
    let (gaps, forking) = (Gaps::of(&daemon), Forks::begin());
    // Whatever other tracers there are, one that forks does not stop the machine for long: it stays
    // from one step to the next.
    let arguments = if mode == "fork" {
        [format!("seconds={}", patience(FORKS).as_secs())]
    } else {
        maps(&program)
    };
    let Some(mut hostile) = Silent::start_with(mode, 1, &arguments)? else { return Ok(()) };
    let pid = hostile.pids[0];
    if mode == "fork" {
        forks(pid)?;
    }

    // A newcomer is put off, and watched without probes.
    let mut late = program.start(80)?;
    let state = daemon.until("it is named", |state| names(state, pid))?;
    ensure!(state["probes_put_off"].as_u64() > Some(0), "{state}");
    hostile.stay()?;
    let state = daemon.until("it has no probes", |state| {
        target(state, late.pid())
            .is_some_and(|one| one["findings"].to_string().contains("not_attached"))
    })?;
    let found = target(&state, late.pid()).context("it is watched")?["findings"].to_string();
    ensure!(found.contains(&format!("process {pid} ")), "{found}");
    // One that needs other files is not; a fork is in the way of all.
    if mode != "fork" {
        counted(&daemon, 90)?;
    }
    hostile.stay()?;
    // Probes that are to go stay.
    let mut early = early;
    early.go()?;
    early.finish()?;
    daemon.until("the first one is counted", |state| closed(state) >= 70)?;
    let (status, text) = daemon.get("/status")?;
    ensure!(status == 200 && text.contains(&format!("process {pid} ")), "{text}");
    ensure!(daemon.open_metrics()?.contains("\ndrainprof_probes_put_off_total "), "no metric");

    // A command says who is in the way, and ends.
    hostile.stay()?;
    let began = Instant::now();
    let profile = environment::profile("arena");
    let number = late.pid().to_string();
    let outcome = tracer::run_to_end(&["attach", "-p", &number, "--profile", &profile])?;
    ensure!(outcome.talk().contains(&format!("process {pid} ")), "{}", outcome.talk());
    ensure!(began.elapsed() < prompt(), "{:?} for an attach", began.elapsed());

    // So does a window.
    hostile.stay()?;
    let body = format!("{{\"pid\":{},\"seconds\":1}}", late.pid());
    let (status, answer) = daemon.post("/api/v1/diagnose", &body)?;
    ensure!(status < 300, "{status} {answer}");
    let window = daemon.until_window_ended()?["windows"][0].take();
    let why = window["why"].as_str().unwrap_or_default();
    ensure!(window["outcome"] == "failed", "{window}");
    ensure!(why.contains(&format!("process {pid} ")), "{window}");

    let (longest, fork) = (gaps.longest()?, forking.longest()?);
    ensure!(longest < gap(), "no new state for {longest} ms");
    ensure!(fork < Duration::from_millis(gap()), "a fork took {fork:?}");
    // When it is over, all is as if nothing had been.
    hostile.end()?;
    daemon.attached(&[late.pid()])?;
    let before = closed(&daemon.fresh()?);
    late.go()?;
    late.finish()?;
    let state = daemon.until("the late one is counted", |state| closed(state) >= before + 80)?;
    ensure!(closed(&state) == before + 80, "{} of {}", closed(&state), before + 80);
    let began = Instant::now();
    daemon.finish()?;
    ensure!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
    Ok(())
}

/// Locks can be read on this kernel: else drainprof would wait for them, and the other tests with it.
#[test]
fn locks_can_be_read() {
    if requires_root() {
        assert!(can_check());
    }
}

/// The lock is held for writing: whoever reads the process's mappings waits, too.
#[test]
fn held_for_writing() -> Result<()> {
    is_put_off("replace")
}

/// The lock is held for reading, by a thread that sleeps as if it waited for input: whoever reads the process's mappings
/// notices nothing.
#[test]
fn held_for_reading() -> Result<()> {
    is_put_off("fault")
}

/// A process that maps none of the files forks meanwhile: the kernel would wait for it with any probe.
#[test]
fn held_by_a_fork() -> Result<()> {
    is_put_off("fork")
}

/// A command whose probes cannot go writes its report, and waits with its probes in place.
#[test]
fn stays_until_it_can_go() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let program = Copy::of("psweep")?;
    let mut target = program.start(10)?;
    let mut tracer = Tracer::attach(&[target.pid()], "arena", &[])?;
    let Some(hostile) = Silent::start_with("replace", 1, &maps(&program))? else {
        return Ok(());
    };
    let forking = Forks::begin();
    target.go()?;
    target.finish()?;
    tracer.process().expect_err_containing(&format!("process {} ", hostile.pids[0]))?;
    ensure!(tracer.process().is_running()?, "it has left its probes to the kernel");
    let fork = forking.longest()?;
    ensure!(fork < Duration::from_millis(gap()), "a fork took {fork:?}");
    hostile.end()?;
    let outcome = tracer.finish()?;
    let closes = &outcome.report()["targets"][0]["allocators"][0]["granules"]["closed"];
    ensure!(closes == 10, "{closes} of 10");
    Ok(())
}

/// A daemon that is to end waits for its probes to go.
#[test]
fn the_daemon_waits() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let program = Copy::of("psweep")?;
    let mut daemon = Daemon::start(&["arena"], &program.lines())?;
    let target = program.start(10)?;
    daemon.attached(&[target.pid()])?;
    let Some(hostile) = Silent::start_with("fault", 1, &maps(&program))? else { return Ok(()) };
    let forking = Forks::begin();
    daemon.process().signal(Signal::SIGTERM)?;
    let holder = format!("process {} ", hostile.pids[0]);
    daemon.process().expect_err_containing(&format!("probes stay in place: {holder}"))?;
    ensure!(daemon.process().is_running()?, "it has left its probes to the kernel");
    let fork = forking.longest()?;
    ensure!(fork < Duration::from_millis(gap()), "a fork took {fork:?}");
    hostile.end()?;
    let began = Instant::now();
    daemon.finish()?;
    ensure!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
    target.kill()
}

/// What examines the process itself ends, too, and says why it knows nothing.
#[test]
fn commands_on_it_end() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    for mode in ["replace", "fault"] {
        let Some(hostile) = Silent::start(mode, 1)? else { return Ok(()) };
        let pid = hostile.pids[0].to_string();
        for command in [&["why", "-d", "1s"][..], &["attach", "-d", "1s"], &["census"]] {
            let began = Instant::now();
            let outcome = tracer::run_to_end(&[command, &["-p", &pid]].concat())?;
            ensure!(began.elapsed() < prompt(), "{mode}: {:?} for {command:?}", began.elapsed());
            ensure!(outcome.code.is_some(), "{mode} {command:?}: {}", outcome.talk());
        }
        hostile.end()?;
    }
    Ok(())
}
