//! Processes that attack a daemon, and what it must go on doing meanwhile: new states, and exact counts of others.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    environment::{self, skip},
    node::{Daemon, sum},
    process::Process,
    target::Target,
};

/// Children that hang in the kernel while it holds a lock of theirs. They go on when this is dropped.
#[derive(Debug)]
pub struct Silent {
    server: Process,
    /// The children.
    pub pids: Vec<u32>,
    _place: TempDir,
}

impl Silent {
    /// `None` where the kernel has no FUSE; tells the runner.
    pub fn start(mode: &str, count: usize) -> Result<Option<Self>> {
        Self::start_for(mode, count, Duration::from_secs(120))
    }

    /// As [`Silent::start`], where they end by themselves after so long.
    pub fn start_for(mode: &str, count: usize, time: Duration) -> Result<Option<Self>> {
        if !fs::read_to_string("/proc/filesystems")?.contains("\tfuse\n") {
            skip("the kernel has no FUSE");
            return Ok(None);
        }
        let mode_of_place = fs::Permissions::from_mode(0o755);
        let place = tempfile::Builder::new().permissions(mode_of_place).tempdir()?;
        let at = place.path().join("at");
        fs::create_dir(&at)?;
        fs::set_permissions(&at, fs::Permissions::from_mode(0o777))?;
        let mut command = Command::new(environment::target("silent")?);
        command.arg(format!("mode={mode}")).arg(format!("count={count}"));
        command.arg(format!("at={}", at.display())).arg(format!("seconds={}", time.as_secs()));
        let mut server = Process::start("silent", command)?;
        let mut pids = Vec::new();
        for _ in 0..count {
            let line = server.expect_out("SILENT ")?;
            pids.push(line["SILENT ".len()..].parse().with_context(|| line.clone())?);
        }
        server.expect_out("READY ")?;
        Ok(Some(Self { server, pids, _place: place }))
    }

    /// Ends the server, and with it all that waits.
    pub fn end(self) -> Result<()> {
        self.server.finish()?;
        Ok(())
    }
}

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
