//! The kernel side's own log: one line per loss where somebody asks for it, bounded in number, and nothing otherwise.

use std::process::Command;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root},
    tracer::{Outcome, Tracer},
};

/// 1,000 open granules, room for 64: 936 losses within a second.
fn lose(log: &str) -> Result<Outcome> {
    let mut command = Command::new(environment::target("many")?);
    command.arg("what=granules").env("RUST_LOG", log);
    let more = ["--level", "objects", "--max-granules", "64"];
    let mut tracer = Tracer::run_command(&command, "arena", &more)?;
    tracer.process().expect_out("READY")?;
    tracer.process().send_line("go")?;
    tracer.finish()
}

fn lines(outcome: &Outcome) -> Vec<&String> {
    outcome.stderr.iter().filter(|line| line.contains("lost granule_map_full")).collect()
}

/// A line names process, thread and probe; ten per second and CPU at most are written, and the counter has all.
#[test]
fn asked_for() -> Result<()> {
    if requires_root() {
        let outcome = lose("warn,drainprof::kernel=debug")?;
        assert_eq!(outcome.code, Some(5), "{}", outcome.talk());
        assert_eq!(outcome.report()["losses"]["granule_map_full"], 936);
        let pid = outcome.report()["targets"][0]["pid"].as_u64().context("a pid")?;
        let lines = lines(&outcome);
        let (pid, probe) = (format!("pid {pid} thread {pid} "), " probe ");
        let named = lines.first().is_some_and(|line| line.contains(&pid) && line.contains(probe));
        assert!(named, "{}", outcome.talk());
        let seconds = outcome.report()["window"]["seconds"].as_f64().context("seconds")?;
        let cpus = std::thread::available_parallelism()?.get() as f64;
        assert!(lines.len() as f64 <= 10.0 * cpus * (seconds + 2.0), "{} lines", lines.len());
    }
    Ok(())
}

/// Without a wish there is no line, and the same counts.
#[test]
fn off() -> Result<()> {
    if requires_root() {
        let outcome = lose("warn")?;
        assert_eq!(outcome.report()["losses"]["granule_map_full"], 936);
        assert!(lines(&outcome).is_empty(), "{}", outcome.talk());
    }
    Ok(())
}
