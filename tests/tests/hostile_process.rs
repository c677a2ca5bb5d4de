//! Processes in states that a tool may stumble over: crowded with threads or mappings, stopped, frozen, traced.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    environment::{self, requires_root},
    target::Target,
    tracer::{Traced, Tracer, trace},
};
use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use serde_json::json;

/// A census from outside; it ends well whatever the process does.
fn census(pid: u32) -> Result<()> {
    let mut command = Command::new(environment::drainprof()?);
    let output = command.args(["census", "-o", "json", "-p", &pid.to_string()]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// More threads than there is room for leave nothing judged that may be wrong, and the report says so; with room, none is
/// lost.
#[test]
fn five_thousand_threads() -> Result<()> {
    if requires_root() {
        let args = ["threads=5000"];
        let traced = trace("crowd", &args, "arena", &["--level", "objects"])?;
        let report = traced.outcome.report();
        assert_eq!((traced.outcome.code, &report["complete"]), (Some(5), &json!(false)));
        let granules = &report["targets"][0]["allocators"][0]["granules"];
        assert_eq!((&granules["closed"], &granules["unknown"]), (&json!(5000), &json!(5000)));
        assert!(report["losses"]["thread_map_full"].as_u64() > Some(0), "{}", report["losses"]);
        let room = ["--max-threads", "16384"];
        for level in ["objects", "stacks"] {
            trace("crowd", &args, "arena", &[&["--level", level], &room[..]].concat())?.exact();
        }
    }
    Ok(())
}

/// The daemon's way through the mappings, the unwinder's, and the census'.
#[test]
fn ten_thousand_mappings() -> Result<()> {
    if requires_root() {
        let args = ["mappings=10000", "threads=20"];
        trace("crowd", &args, "arena", &["--level", "objects"])?.exact();
        let traced = trace("crowd", &args, "arena", &["--level", "stacks"])?;
        traced.exact();
        let sites = &traced.outcome.report()["targets"][0]["allocators"][0]["sites"];
        let function = sites[0]["frames"][0]["function"].as_str();
        assert!(function.is_some_and(|name| name.contains("run")), "{sites}");
        let target = Target::start("crowd", &args)?;
        census(target.pid())?;
        target.kill()?;
    }
    Ok(())
}

/// Observes a target that cannot run meanwhile, from before `hold` until after `release`.
fn held(
    hold: impl FnOnce(Pid) -> Result<()>,
    release: impl FnOnce(Pid) -> Result<()>,
) -> Result<()> {
    let mut target = Target::start("psweep", &["closes=1000"])?;
    let (number, pid) = (target.pid(), Pid::from_raw(target.pid().try_into()?));
    hold(pid)?;
    census(number)?;
    // One measurement begins and ends while nothing moves.
    let idle = Tracer::attach(&[number], "arena", &["--level", "objects", "-d", "200ms"])?;
    let outcome = idle.finish()?;
    assert_eq!(outcome.code, Some(0), "{}", outcome.talk());
    assert_eq!(outcome.report()["complete"], true, "{}", outcome.report()["losses"]);
    let tracer = Tracer::attach(&[number], "arena", &["--level", "stacks"])?;
    target.go()?;
    release(pid)?;
    let truths = target.finish()?.truths;
    Traced { truths, outcome: tracer.finish()? }.exact();
    Ok(())
}

#[test]
fn stopped() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let stop = |pid| {
        kill(pid, Signal::SIGSTOP)?;
        let status = waitpid(pid, Some(WaitPidFlag::WUNTRACED))?;
        ensure!(matches!(status, WaitStatus::Stopped(..)), "{status:?}");
        Ok(())
    };
    held(stop, |pid| Ok(kill(pid, Signal::SIGCONT)?))
}

/// A debugger holds it: nobody else could trace it.
#[test]
fn traced() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let seize = |pid| {
        ptrace::seize(pid, ptrace::Options::empty())?;
        ptrace::interrupt(pid)?;
        let status = waitpid(pid, None)?;
        ensure!(matches!(status, WaitStatus::PtraceEvent(..)), "{status:?}");
        Ok(())
    };
    held(seize, |pid| Ok(ptrace::detach(pid, None)?))
}

/// A control group of its own, which can be frozen.
struct Freezer(PathBuf);

impl Freezer {
    fn new() -> Result<Self> {
        let top = Path::new("/sys/fs/cgroup");
        let is_unified = |place: &PathBuf| place.join("cgroup.controllers").exists();
        let unified = [top.join("unified"), top.to_owned()].into_iter().find(is_unified);
        let place = unified.context("no unified hierarchy of control groups is mounted")?;
        let place = place.join(format!("drainprof-frozen-{}", std::process::id()));
        fs::create_dir(&place)?;
        Ok(Self(place))
    }

    fn set(&self, frozen: bool) -> Result<()> {
        fs::write(self.0.join("cgroup.freeze"), u8::from(frozen).to_string())?;
        let until = std::time::Instant::now() + environment::deadline();
        let wanted = format!("frozen {}", u8::from(frozen));
        while !fs::read_to_string(self.0.join("cgroup.events"))?.contains(&wanted) {
            ensure!(std::time::Instant::now() < until, "{wanted} does not come");
            std::thread::yield_now();
        }
        Ok(())
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let all: io::Result<()> =
            fs::write(self.0.join("cgroup.freeze"), "0").and_then(|()| fs::remove_dir(&self.0));
        if let Err(error) = all {
            eprintln!("{} stays: {error}", self.0.display());
        }
    }
}

#[test]
fn frozen() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let freezer = Freezer::new()?;
    let freeze = |pid: Pid| {
        fs::write(freezer.0.join("cgroup.procs"), pid.to_string())?;
        freezer.set(true)
    };
    held(freeze, |_| freezer.set(false))
}
