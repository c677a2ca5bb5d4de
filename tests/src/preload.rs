//! A counting library of ours, preloaded into a command: what it counts from inside is a test's truth.

use std::{fs, path::Path, process::Command};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::environment::{targets, which};

/// A command with the library `NAME_counts` preloaded, into its program and not into its parent. What it counts goes
/// to the file `counts`, whose path it finds in the variable `NAME_COUNTS`.
pub fn counting(name: &str, of: &Command, counts: &Path) -> Result<Command> {
    let mut command = Command::new(which("env").context("env is installed")?);
    let library = targets().join(format!("{name}_counts"));
    command.arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(format!("{}_COUNTS={}", name.to_uppercase(), counts.display()));
    command.arg(of.get_program()).args(of.get_args());
    for (name, value) in of.get_envs() {
        command.env(name, value.context("nothing is taken out of the environment")?);
    }
    Ok(command)
}

/// What such libraries have counted, a line of JSON for each process.
pub fn counted(counts: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(counts).context("nothing was counted")?;
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("no JSON: {line}")))
        .collect::<Result<_>>()?;
    ensure!(!lines.is_empty(), "nothing was counted");
    Ok(lines)
}
