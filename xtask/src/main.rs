//! `cargo xtask`: the project's own tasks.
//!
//! One module per command; `work`, `packages`, `tally` and `artifacts` are what the commands share.
//! Nothing here is part of the product.

mod artifacts;
mod bench;
mod busy;
mod ci;
mod crates;
mod demo;
mod dist;
mod ebpf;
mod fuzz;
mod packages;
mod setup;
mod tally;
mod test;
mod vm;
mod work;
mod worlds;

use std::process::ExitCode;

use clap::Parser;

/// The project's own tasks.
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
enum Task {
    /// Build the kernel side and write the object file that the daemon embeds.
    BuildEbpf(ebpf::Args),
    /// Install what the tests and the demo need.
    Setup(setup::Args),
    /// Run every test, the privileged ones and the kernel matrix included.
    Test(test::Args),
    /// Run the tests of the kernel matrix on older kernels under qemu.
    Vm(vm::Args),
    /// Compare censuses of programs of other distributions with what the programs say of themselves.
    Worlds(worlds::Args),
    /// Run every check, then every test.
    Ci(ci::Args),
    /// Draw the workspace's crates in ARCHITECTURE.md.
    Crates(crates::Args),
    /// Show a structural leak and its fix on a small server.
    Demo(demo::Args),
    /// Make packages: .deb, tarball, image, bill of materials.
    Dist(dist::Args),
    /// Measure what drainprof costs, beside its peers.
    Bench(bench::Args),
    /// Keep a daemon busy for long, and see whether anything of it grows.
    Soak(bench::SoakArgs),
    /// Feed the parsers with hostile bytes for longer than the tests do.
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::BuildEbpf(args) => ebpf::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Setup(args) => setup::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Test(args) => Ok(test::run(&args)),
        Task::Vm(args) => vm::run(&args),
        Task::Worlds(args) => worlds::run(&args),
        Task::Ci(args) => ci::run(&args),
        Task::Crates(args) => crates::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Demo(args) => demo::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Dist(args) => dist::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Bench(args) => bench::run(&args).map(|()| ExitCode::SUCCESS),
        Task::Soak(args) => bench::soak(&args).map(|()| ExitCode::SUCCESS),
        Task::Fuzz(args) => fuzz::run(&args).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
