//! A running target: the handshake, and the truth that it prints.

use std::{os::unix::process::ExitStatusExt as _, process::Command};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::{
    environment,
    process::{Ended, Process},
};

/// A target that waits at its handshake or runs.
#[derive(Debug)]
pub struct Target {
    process: Process,
    pid: u32,
}

/// What a target said.
#[derive(Debug)]
pub struct Finished {
    /// The truths of all processes that it consisted of, in the order in which they were printed.
    pub truths: Vec<Value>,
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

impl Target {
    /// Starts target `name` and waits until it is ready.
    pub fn start(name: &str, args: &[&str]) -> Result<Self> {
        let mut command = Command::new(environment::target(name)?);
        command.args(args);
        Self::start_command(name, command)
    }

    /// Starts a command that becomes a target (a copy of one, or one behind `unshare`).
    pub fn start_command(name: &str, command: Command) -> Result<Self> {
        let mut process = Process::start(name, command)?;
        let line = process.expect_out("READY ")?;
        let pid =
            line["READY ".len()..].parse().with_context(|| format!("{name} said {line:?}"))?;
        Ok(Self { process, pid })
    }

    /// Its process id, as it said itself.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Lets it run on from its handshake or from a stop.
    pub fn go(&mut self) -> Result<()> {
        self.process.send_line("go")
    }

    /// Tells `steps` what to do, and waits until it is done.
    pub fn steps(&mut self, steps: &str) -> Result<()> {
        self.process.send_line(steps)?;
        self.reaches("done")
    }

    /// Sends a line without waiting for what comes of it.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        self.process.send_line(line)
    }

    /// Waits until it says `READY` again: another program that it executes now.
    pub fn ready_again(&mut self) -> Result<()> {
        self.process.expect_out("READY ").map(drop)
    }

    /// Waits until it has reached the stop `name` (targets make stops with `stops=1`).
    pub fn reaches(&mut self, name: &str) -> Result<()> {
        self.process.expect_out(&format!("AT {name}")).map(drop)
    }

    /// Kills it.
    pub fn kill(&self) -> Result<()> {
        self.process.signal(Signal::SIGKILL)
    }

    /// Waits for its end and reads its truths.
    pub fn finish(self) -> Result<Finished> {
        let Ended { status, stdout, stderr } = self.process.finish()?;
        ensure!(
            stderr.is_empty() || status.success(),
            "the target failed ({status}): {}",
            stderr.join("\n")
        );
        Ok(Finished { truths: truths(&stdout)?, code: status.code(), signal: status.signal() })
    }
}

/// The truths among the lines of a stdout.
pub fn truths(lines: &[String]) -> Result<Vec<Value>> {
    lines
        .iter()
        .filter(|line| line.starts_with("{\"truth\"") || line.contains("\"truth\":1"))
        .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
        .collect()
}
