//! Processes that attack a daemon, and what it must go on doing meanwhile: new states, and exact counts of others.

use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::Value;

use crate::{
    environment,
    node::{Daemon, sum},
    process::Process,
    target::Target,
};

/// A heap that is made to cost its reader: `extents`, `chain`.
pub fn hostile_heap(kind: &str) -> Result<Process> {
    let mut command = Command::new(environment::target("hostile_heaps")?);
    command.arg(format!("kind={kind}"));
    let mut process = Process::start("hostile_heaps", command)?;
    process.expect_out("READY ")?;
    Ok(process)
}

fn closed(state: &Value) -> u64 {
    ["drainable", "pinned", "unknown"].iter().map(|one| sum(state, "test-arena", one)).sum()
}

/// Another process is counted to the last close.
pub fn counts_another(daemon: &Daemon, closes: u64) -> Result<()> {
    let before = closed(&daemon.fresh()?);
    let mut other = Target::start("psweep", &[&format!("closes={closes}")])?;
    daemon.attached(&[other.pid()])?;
    other.go()?;
    other.finish()?;
    let wanted = before + closes;
    let state = daemon.until("it is counted", |state| closed(state) >= wanted)?;
    ensure!(closed(&state) == wanted, "{} of {wanted}", closed(&state));
    ensure!(state["complete"] == true, "{}", state["losses"]);
    Ok(())
}
