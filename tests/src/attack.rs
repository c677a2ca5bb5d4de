//! Processes that attack a daemon, and what it must go on doing meanwhile: new states, and exact counts of others.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    environment::{self, deadline, patience, skip},
    node::{Daemon, sum},
    process::Process,
    target::Target,
    tracer::Tracer,
};

/// Longest time for what must not wait.
#[must_use]
pub fn prompt() -> Duration {
    patience(Duration::from_secs(15))
}

/// A heap that is made to cost its reader: `extents`, `chain`.
pub fn hostile_heap(kind: &str) -> Result<Process> {
    let mut command = Command::new(environment::target("hostile_heaps")?);
    command.arg(format!("kind={kind}"));
    let mut process = Process::start("hostile_heaps", command)?;
    process.expect_out("READY ")?;
    Ok(process)
}

/// Closes of the profile `test-arena` in a state.
#[must_use]
pub fn closed(state: &Value) -> u64 {
    ["drainable", "pinned", "unknown"].iter().map(|one| sum(state, "test-arena", one)).sum()
}

/// Another process is counted to the last close; the state that has them all.
pub fn counted(daemon: &Daemon, closes: u64) -> Result<Value> {
    let before = closed(&daemon.fresh()?);
    let mut other = Target::start("psweep", &[&format!("closes={closes}")])?;
    daemon.attached(&[other.pid()])?;
    other.go()?;
    other.finish()?;
    let wanted = before + closes;
    let state = daemon.until("it is counted", |state| closed(state) >= wanted)?;
    ensure!(closed(&state) == wanted, "{} of {wanted}", closed(&state));
    Ok(state)
}

/// The same where nothing is missing.
pub fn counts_another(daemon: &Daemon, closes: u64) -> Result<()> {
    let state = counted(daemon, closes)?;
    ensure!(state["complete"] == true, "{}", state["losses"]);
    Ok(())
}

/// Whether a state says that a process has not answered.
#[must_use]
pub fn names(state: &Value, pid: u32) -> bool {
    let all = state["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let number = format!("process {pid} ");
    all.into_iter().any(|one| one.starts_with(&number) && one.contains("not answered"))
}

/// Whether pages can be kept from those who read them; the runner learns it where not.
#[must_use]
pub fn has_pager() -> bool {
    let is_there = Path::new("/dev/userfaultfd").exists();
    if !is_there {
        skip("the kernel has no userfaultfd");
    }
    is_there
}

/// `attach` beside a process in `mode`, which keeps a page from it: it ends, with all 99 closes.
pub fn attach_ends(mode: &str, level: &str) -> Result<()> {
    let mut target = Target::start("hung_labels", &[&format!("mode={mode}"), "stops=1"])?;
    let tracer = Tracer::attach(&[target.pid()], "hung_labels", &["--level", level])?;
    target.go()?;
    target.reaches("counted")?;
    let began = Instant::now();
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    ensure!(began.elapsed() < prompt().min(deadline()), "{:?} to end", began.elapsed());
    let granules = &outcome.report()["targets"][0]["allocators"][0]["granules"];
    ensure!(granules["closed"] == 99, "{granules}");
    target.kill()?;
    Ok(())
}
