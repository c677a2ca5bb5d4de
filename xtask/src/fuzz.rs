//! `cargo xtask fuzz`: the fuzz targets for longer than the tests run them, on other inputs each time.
//!
//! `fuzz/` has the targets and what they are held to; this builds and runs its test.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use crate::work;

/// Arguments of `fuzz`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only this target.
    #[arg(conflicts_with = "reader")]
    name: Option<String>,
    /// For so long each: 90s, 10m, 2h.
    #[arg(long = "for", value_parser = work::duration, default_value = "1m", value_name = "TIME")]
    time: Duration,
    /// So many inputs each, at most.
    #[arg(long, value_name = "N", default_value_t = u64::MAX)]
    inputs: u64,
    /// Of `heaps`: only inputs that are made of the seeds of this reader: glibc, jemalloc, …
    #[arg(long, value_name = "READER")]
    reader: Option<String>,
    /// Make the inputs from this number, which a failure names.
    #[arg(long, value_name = "N")]
    number: Option<u64>,
}

/// Builds and runs.
pub(crate) fn run(args: &Args) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("read the clock")?;
    let number = args.number.unwrap_or(now.as_secs());
    let mut cargo = work::cargo(&work::root()?);
    cargo.args(["test", "--locked", "--profile=fuzzing", "--package=drainprof-fuzz"]);
    cargo.args(["--test", "corpus", "--", "--nocapture"]);
    // The slowest input counts: no other one beside it.
    cargo.arg("--test-threads=1");
    let name = args.reader.as_ref().map(|_| "heaps").or(args.name.as_deref());
    if let Some(name) = name {
        cargo.args(["--exact", name]);
    }
    if let Some(reader) = &args.reader {
        cargo.env("DRAINPROF_FUZZ_READER", reader);
    }
    cargo.env("DRAINPROF_FUZZ_SECONDS", args.time.as_secs().to_string());
    cargo.env("DRAINPROF_FUZZ_INPUTS", args.inputs.to_string());
    cargo.env("DRAINPROF_FUZZ_NUMBER", number.to_string());
    work::run("fuzz", "make the input that is named above a file of fuzz/corpus", &mut cargo)
}
