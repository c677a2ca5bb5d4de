//! `cargo xtask bench`: what drainprof costs, beside its peers; the results as JSON and as a page.
//!
//! Installs the peers, builds drainprof and the package `drainprof-bench` for release, and runs that as root;
//! what it measures and how is its business. Goals that are missed fail nothing: this is no test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fs_err as fs;

use crate::{artifacts, setup, work};

/// Where the results go by default, below the build directory.
const RESULTS: &str = "bench/results.json";

/// Arguments of `bench`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these benchmarks; the results of others stay as they are in the results file.
    #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "NAME")]
    only: Vec<String>,
    /// One short round of each: shows that everything runs; the figures mean little.
    #[arg(long)]
    quick: bool,
    /// Write the results here.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Renew docs/performance.md from the results.
    #[arg(long, conflicts_with = "quick")]
    page: bool,
    /// Measure nothing: with --page, from the results that there are.
    #[arg(long, requires = "page")]
    no_run: bool,
    /// Install and mount nothing first; peers that are missing are reported as not available.
    #[arg(long)]
    no_setup: bool,
}

/// Arguments of `soak`.
#[derive(clap::Args)]
pub(crate) struct SoakArgs {
    /// How long: 90s, 20m, 2h. A third of it is for warming up, which takes more than half an hour.
    #[arg(long = "for", value_name = "TIME", default_value = "2h", value_parser = minutes)]
    length: Duration,
    /// Keep this drainprof busy instead of building one.
    #[arg(long, value_name = "FILE")]
    drainprof: Option<PathBuf>,
}

fn minutes(text: &str) -> Result<Duration> {
    let length = work::duration(text)?;
    ensure!(length >= Duration::from_secs(60), "a minute or more");
    Ok(length)
}

/// Keeps a daemon busy; fails where something of it grows.
pub(crate) fn soak(args: &SoakArgs) -> Result<()> {
    let root = work::root()?;
    setup::mount_tracefs()?;
    let drainprof = match &args.drainprof {
        Some(path) => fs::canonicalize(path)?,
        None => artifacts::drainprof(&root)?,
    };
    let bench = artifacts::bench_dev(&root)?;
    let length = args.length.as_secs().to_string();
    work::step(format!("soak: keep a daemon busy for {length} s"));
    let mut command = work::as_root(bench, &[("DRAINPROF_BIN", drainprof.as_os_str())]);
    command.args(["measure", "--only", "soak", "--soak", &length]);
    let output = command.stderr(Stdio::inherit()).output().context("run drainprof-bench")?;
    let results: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("read the results")?;
    let soak = &results["benchmarks"][0];
    if let Some(why) = soak["failed"].as_str() {
        bail!("the soak failed: {why}");
    }
    let goals = soak["goals"].as_array().context("the results have no goals")?;
    let missed = goals.iter().filter(|goal| goal["reached"] == false);
    let grow: Vec<_> = missed.filter_map(|goal| goal["what"].as_str()).collect();
    ensure!(grow.is_empty(), "the daemon grows: {}", grow.join("; "));
    Ok(())
}

/// Builds, measures, writes.
pub(crate) fn run(args: &Args) -> Result<()> {
    let root = work::root()?;
    let results = match &args.out {
        Some(path) => std::path::absolute(path)?,
        None => artifacts::target_dir(&root).join(RESULTS),
    };
    if !args.no_setup && !args.no_run {
        // A peer that cannot be had is a row that says so, no reason to measure nothing.
        if let Err(error) = setup::run(&setup::Args { bench: true, ..setup::Args::default() }) {
            work::note(format!("{error:#}; what is missing will be reported as not available"));
        }
    }
    work::step("bench: build drainprof and its benchmarks (release; minutes at the first time)");
    let bench = artifacts::bench(&root)?;
    if !args.no_run {
        let drainprof = artifacts::drainprof(&root)?;
        work::write(&results, measure(args, &bench, &drainprof, &results)?)?;
        work::note(format!("results: {}", results.display()));
    }
    if args.page {
        let page = root.join("docs/performance.md");
        let mut command = Command::new(&bench);
        command.arg("page").arg(&results);
        work::write(&page, work::read("make the page", "measure first", &mut command)?)?;
        work::note(format!("page: {}", page.display()));
    }
    Ok(())
}

/// Runs the benchmarks as root; their results, which the user who asked then writes.
fn measure(args: &Args, bench: &Path, drainprof: &Path, earlier: &Path) -> Result<String> {
    let why = if work::is_root() { "" } else { " (through sudo: loading eBPF needs root)" };
    work::step(format!("bench: measure{why}"));
    let env: [(&str, &OsStr); 2] =
        [("DRAINPROF_BIN", drainprof.as_os_str()), ("DRAINPROF_BUDGET", OsStr::new("none"))];
    let mut command = work::as_root(bench, &env);
    command.arg("measure").arg("--keep").arg(earlier);
    if args.quick {
        command.arg("--quick");
    }
    for name in &args.only {
        command.args(["--only", name]);
    }
    let line = work::describe(&command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("run `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` ended with {}; its messages are above", output.status);
    }
    String::from_utf8(output.stdout).context("the results are no text")
}
