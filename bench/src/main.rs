//! `drainprof-bench`: what drainprof costs, beside its peers and beside what the kernel alone costs.
//!
//! `measure` runs benchmarks and writes their results to stdout as JSON; `page` turns such a file into
//! docs/performance.md. `cargo xtask bench` builds and calls both. One module per benchmark under
//! `bench/`; what they share: `worker` (a target that measures itself), `probing` (what can be put on it; `growing`:
//! drainprof growth; `seen`: what that has counted), `rounds` (in which order), `model` and `stats` (what came out).
//!
//! A figure that was missed is a result, not a failure; so is a peer that is not there.

mod bench;
mod floor;
mod growing;
mod machine;
mod model;
mod page;
mod probing;
mod rounds;
mod seen;
mod stats;
mod worker;

use std::{fs, io::Write as _, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use crate::{
    bench::BENCHMARKS,
    model::{Results, SCHEMA},
    rounds::Effort,
};

/// What drainprof costs, beside its peers.
#[derive(Parser)]
#[command(name = "drainprof-bench", version)]
enum Command {
    /// Run benchmarks (as root) and write the results to stdout as JSON.
    Measure {
        /// Only these benchmarks.
        #[arg(long, value_delimiter = ',', num_args = 1.., value_name = "NAME")]
        only: Vec<String>,
        /// One short round of each: shows that it runs; the figures mean little.
        #[arg(long)]
        quick: bool,
        /// Results of an earlier run; what is not measured now is taken over from them.
        #[arg(long, value_name = "FILE")]
        keep: Option<PathBuf>,
        /// Seconds for which `soak` keeps the daemon busy.
        #[arg(long, value_name = "SECONDS")]
        soak: Option<u64>,
    },
    /// Turn results into the text of docs/performance.md.
    Page {
        /// Results, as `measure` writes them.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let outcome = match Command::parse() {
        Command::Measure { only, quick, keep, soak } => measure(&only, quick, keep, soak),
        Command::Page { file } => read(&file).and_then(|results| put(&page::text(&results))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drainprof-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(only: &[String], quick: bool, keep: Option<PathBuf>, soak: Option<u64>) -> Result<()> {
    for name in only {
        if !BENCHMARKS.iter().any(|known| known.name == name) {
            let known: Vec<&str> = BENCHMARKS.iter().map(|known| known.name).collect();
            bail!("no benchmark is called {name}; there are {}", known.join(", "));
        }
    }
    if !nix::unistd::geteuid().is_root() {
        bail!("attaching eBPF programs needs root: run it through `cargo xtask bench`");
    }
    let earlier = match keep {
        Some(file) if file.is_file() => Some(read(&file)?),
        _ => None,
    };
    let mut effort = if quick { Effort::QUICK } else { Effort::FULL };
    effort.soak = soak.map_or(effort.soak, Duration::from_secs);
    let mut results = Results {
        schema: SCHEMA.to_owned(),
        quick,
        machine: machine::describe(),
        benchmarks: Vec::new(),
    };
    for known in BENCHMARKS {
        if only.is_empty() || only.iter().any(|name| name == known.name) {
            eprintln!("==> bench: {}", known.name);
            results.benchmarks.push(bench::measure(known, effort));
        } else if let Some(earlier) = &earlier {
            results.benchmarks.extend(earlier.of(known.name, quick, &results.machine));
        }
    }
    for benchmark in &results.benchmarks {
        eprint!("{}", page::summary(benchmark));
    }
    put(&(serde_json::to_string_pretty(&results)? + "\n"))
}

fn read(file: &PathBuf) -> Result<Results> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let results: Results = serde_json::from_str(&text)
        .with_context(|| format!("{} holds no results of `measure`", file.display()))?;
    if results.schema != SCHEMA {
        bail!("{} is of schema {}, not {SCHEMA}: measure again", file.display(), results.schema);
    }
    Ok(results)
}

fn put(text: &str) -> Result<()> {
    std::io::stdout().write_all(text.as_bytes()).context("write to stdout")
}
