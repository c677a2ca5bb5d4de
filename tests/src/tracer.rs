//! drainprof under test: starting it, waiting until its probes are in place, and its report.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    environment,
    process::{Ended, Process},
    target::{self, Target},
};

/// The line that says that all probes are in place.
const ATTACHED: &str = "drainprof: attached";

/// A drainprof that runs.
#[derive(Debug)]
pub struct Tracer {
    process: Process,
    directory: TempDir,
}

/// What drainprof left behind.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// The report, where one was written.
    pub report: Option<Value>,
    /// Lines of stdout.
    pub stdout: Vec<String>,
    /// Lines of stderr.
    pub stderr: Vec<String>,
}

/// A `drainprof` command with nothing inherited from the environment that would change it.
pub fn command() -> Result<Command> {
    let mut command = Command::new(environment::drainprof()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DRAINPROF_") {
            command.env_remove(name);
        }
    }
    // Targets do nothing but what is measured, so that probes cost them more than any service.
    command.env("NO_COLOR", "1").env("DRAINPROF_BUDGET", "none");
    Ok(command)
}

/// Runs drainprof with `args` to its end: for what is refused before anything is attached.
pub fn run_to_end(args: &[&str]) -> Result<Outcome> {
    let mut command = command()?;
    command.args(args);
    Tracer::spawn(command)?.finish()
}

impl Tracer {
    /// `drainprof attach` on `pids`, with its probes in place; the report goes to a file as JSON.
    pub fn attach(pids: &[u32], profile: &str, more: &[&str]) -> Result<Self> {
        Self::attach_as("json", pids, profile, more)
    }

    /// As [`Tracer::attach`], with the report in another format that ends in it.
    pub fn attach_as(format: &str, pids: &[u32], profile: &str, more: &[&str]) -> Result<Self> {
        let mut tracer = Self::start(format, pids, profile, more)?;
        tracer.process.expect_err(ATTACHED)?;
        Ok(tracer)
    }

    /// As [`Tracer::attach`], without waiting for the probes.
    pub fn attach_unchecked(pids: &[u32], profile: &str, more: &[&str]) -> Result<Self> {
        Self::start("json", pids, profile, more)
    }

    fn start(format: &str, pids: &[u32], profile: &str, more: &[&str]) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut command = command()?;
        command.arg("attach");
        for pid in pids {
            command.arg("-p").arg(pid.to_string());
        }
        command.args(["--profile", &environment::profile(profile)]);
        command.args(["-o", format, "-O"]).arg(directory.path().join("report.json")).args(more);
        Ok(Self { process: Process::start("drainprof", command)?, directory })
    }

    /// `drainprof run` of a target, with its probes in place.
    pub fn run(name: &str, args: &[&str], profile: &str, more: &[&str]) -> Result<Self> {
        let mut target = Command::new(environment::target(name)?);
        target.args(args).env("DRAINPROF_GO", "1");
        Self::run_command(&target, profile, more)
    }

    /// `drainprof run` of any command with its arguments and environment, with its probes in place.
    pub fn run_command(of: &Command, profile: &str, more: &[&str]) -> Result<Self> {
        let directory = TempDir::new()?;
        let mut command = command()?;
        command.arg("run").args(["--profile", &environment::profile(profile)]);
        command.args(["-o", "json", "-O"]).arg(directory.path().join("report.json")).args(more);
        command.arg("--").arg(of.get_program()).args(of.get_args());
        for (name, value) in of.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut tracer = Self { process: Process::start("drainprof", command)?, directory };
        tracer.process.expect_err(ATTACHED)?;
        Ok(tracer)
    }

    /// Any drainprof command line; its report, if it writes one, is not looked for.
    pub fn spawn(command: Command) -> Result<Self> {
        Ok(Self { process: Process::start("drainprof", command)?, directory: TempDir::new()? })
    }

    /// Waits until all probes are in place (for [`Tracer::attach_unchecked`] and [`Tracer::spawn`]).
    pub fn attached(&mut self) -> Result<()> {
        self.process.expect_err(ATTACHED).map(drop)
    }

    /// Waits until window `number` of a duty cycle has begun: its probes are in place.
    pub fn window_begins(&mut self, number: u64) -> Result<()> {
        self.process.expect_err(&format!("drainprof: duty cycle {number} begins")).map(drop)
    }

    /// Waits until window `number` of a duty cycle has ended: its probes are gone.
    pub fn window_ended(&mut self, number: u64) -> Result<()> {
        self.process.expect_err(&format!("drainprof: duty cycle {number} has ended")).map(drop)
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// How many of its probes go together, by links of many probes.
    pub fn quick_links(&self) -> Result<usize> {
        let mut found = 0;
        for entry in fs::read_dir(format!("/proc/{}/fdinfo", self.process.pid()))? {
            // A descriptor may be closed meanwhile.
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            found += usize::from(text.contains("link_type:\tuprobe_multi\n"));
        }
        Ok(found)
    }

    /// Waits until it holds a file open while it has nothing to do: it does not just read it.
    pub fn holds(&mut self, path: &Path) -> Result<()> {
        let pid = self.process.pid();
        let status = || fs::read_to_string(format!("/proc/{pid}/status"));
        let is_open = || -> Result<bool> {
            // A descriptor may be closed meanwhile.
            let mut descriptors = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
            Ok(descriptors.any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == path)))
        };
        let until = Instant::now() + environment::deadline();
        loop {
            // It has not run in between if its context switches are the same.
            let before = status()?;
            if before.contains("State:\tS") && is_open()? && status()? == before {
                return Ok(());
            }
            ensure!(Instant::now() < until, "{} is never opened", path.display());
            thread::yield_now();
        }
    }

    /// Where its report goes.
    #[must_use]
    pub fn report_path(&self) -> PathBuf {
        self.directory.path().join("report.json")
    }

    /// Ctrl-C.
    pub fn interrupt(&self) -> Result<()> {
        self.process.signal(Signal::SIGINT)
    }

    /// Waits for its end and reads its report.
    pub fn finish(self) -> Result<Outcome> {
        let path = self.report_path();
        let Ended { status, stdout, stderr } = self.process.finish()?;
        let report = match fs::read_to_string(&path) {
            Ok(text) => Some(report_of(&text)?),
            Err(_) => None,
        };
        Ok(Outcome { code: status.code(), report, stdout, stderr })
    }
}

/// The report in a JSON document, or in the last record of a stream of them.
fn report_of(text: &str) -> Result<Value> {
    if let Ok(report) = serde_json::from_str(text) {
        return Ok(report);
    }
    let last = text.lines().last().unwrap_or_default();
    let mut record: Value =
        serde_json::from_str(last).with_context(|| format!("the report is no JSON: {last}"))?;
    Ok(record["report"].take())
}

impl Outcome {
    /// The report.
    ///
    /// # Panics
    /// If none was written.
    #[must_use]
    pub fn report(&self) -> &Value {
        match &self.report {
            Some(report) => report,
            None => panic!("no report; exit {:?}, stderr:\n{}", self.code, self.stderr.join("\n")),
        }
    }

    /// Stderr as one text.
    #[must_use]
    pub fn talk(&self) -> String {
        self.stderr.join("\n")
    }
}

/// A target and what was seen of it.
#[derive(Debug)]
pub struct Traced {
    /// What it says of itself.
    pub truths: Vec<Value>,
    /// What drainprof says of it.
    pub outcome: Outcome,
}

/// Starts a target, attaches at its handshake, and lets both run to their ends.
pub fn trace(name: &str, args: &[&str], profile: &str, more: &[&str]) -> Result<Traced> {
    let mut target = Target::start(name, args)?;
    let tracer = Tracer::attach(&[target.pid()], profile, more)?;
    target.go()?;
    let truths = target.finish()?.truths;
    Ok(Traced { truths, outcome: tracer.finish()? })
}

/// Runs a target under `drainprof run`.
pub fn trace_from_start(name: &str, args: &[&str], profile: &str, more: &[&str]) -> Result<Traced> {
    let outcome = Tracer::run(name, args, profile, more)?.finish()?;
    Ok(Traced { truths: target::truths(&outcome.stdout)?, outcome })
}
