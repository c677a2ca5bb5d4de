//! `cargo xtask ci`: the only definition of what must hold before a change is taken.
//!
//! Every check runs even if another failed, so that one run shows all; then every test runs, on a freshly
//! built eBPF object, and the quick cases of `worlds`. Checks that fail count as failures in the sum; those that
//! hold are not counted.

mod dependencies;
mod rules;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::artifacts::{self, HOST};
use crate::tally::Tally;
use crate::{crates, ebpf, setup, test, work, worlds};

/// Arguments of `ci`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the checks, no tests.
    #[arg(long)]
    checks_only: bool,
    /// Leave out the kernel matrix.
    #[arg(long)]
    no_vm: bool,
    /// Leave out the programs of other distributions.
    #[arg(long)]
    no_worlds: bool,
    /// Also the tests on further real programs.
    #[arg(long)]
    real: bool,
}

/// The slowest tests that are listed.
const SLOWEST_TESTS: usize = 20;

/// A check: its name and what it does.
type Check = (&'static str, fn(&Path) -> Result<()>);

/// All checks, the quick ones first.
const CHECKS: [Check; 11] = [
    ("format", format),
    ("file sizes, lints", rules::check),
    ("crates: layers, dependencies, picture", crates::check),
    ("licences", dependencies::licences),
    ("unused dependencies", dependencies::unused),
    ("eBPF digest and table", ebpf::check),
    ("eBPF toolchain", ebpf::install),
    ("clippy of the kernel side", ebpf::clippy),
    ("clippy", clippy),
    ("documentation", documentation),
    ("eBPF verifier", verifier),
];

/// Runs the checks and the tests, and prints the sum.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = work::root()?;
    let mut failed = Tally::default();
    if !args.checks_only {
        // First: clippy builds the tests' own programs, and what they are built from is kept for the tests.
        let wanted = setup::Args { real: args.real, ..setup::Args::default() };
        if let Err(error) = setup::run(&wanted) {
            eprintln!("xtask ci: setup: {error:#}");
            failed.add(Tally::failure("setup".to_owned()));
        }
    }
    for (name, check) in CHECKS {
        work::step(format!("ci: {name}"));
        if let Err(error) = check(&root) {
            eprintln!("xtask ci: {name}: {error:#}");
            failed.add(Tally::failure(format!("check: {name}")));
        }
    }
    if args.checks_only {
        for failure in &failed.failures {
            eprintln!("{failure}");
        }
        return Ok(if failed.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    work::step("ci: cargo xtask test --fresh-ebpf");
    let wanted = test::Args::fresh(args.no_vm, args.real);
    let mut tally = test::sum(&wanted);
    if !args.no_worlds {
        tally.add(worlds::quick(&root));
    }
    tally.add(failed);
    Ok(tally.conclude(SLOWEST_TESTS))
}

fn format(root: &Path) -> Result<()> {
    work::run(
        "format",
        "run `cargo fmt --all`",
        work::cargo(root).args(["fmt", "--all", "--check"]),
    )
}

fn clippy(root: &Path) -> Result<()> {
    let mut cargo = work::cargo(root);
    cargo.arg("clippy").args(HOST).args(["--all-targets", "--", "-D", "warnings"]);
    work::run("clippy", "fix what it says above", &mut cargo)
}

fn documentation(root: &Path) -> Result<()> {
    let mut cargo = work::cargo(root);
    cargo.arg("doc").args(HOST).args(["--no-deps", "--document-private-items"]);
    cargo.env("RUSTDOCFLAGS", "-D warnings");
    work::run("documentation", "mend what rustdoc says above", &mut cargo)
}

/// With the binary of the tests that follow, so nothing is built for this alone.
fn verifier(root: &Path) -> Result<()> {
    ebpf::compare(root, &artifacts::tests(root, &[])?.drainprof)
}
