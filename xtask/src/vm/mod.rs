//! `cargo xtask vm`: the tests of the kernel matrix, on Debian's 6.1 and 6.12 kernels under qemu.
//!
//! Each kernel boots with an initramfs that holds drainprof, the test binaries, their targets and
//! their libraries, runs the tests that `tests/matrix.txt` lists, and powers off. Works without KVM, only
//! slower: an emulated machine keeps one processor busy, so as many boot at once as there are processors. What
//! they print is told apart by the kernel's name before each line. Called by `test` as well.

mod initramfs;
mod kernel;
mod matrix;
mod qemu;
mod systemd;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::artifacts::Tests;
use crate::tally::Tally;
use crate::test;
use crate::{artifacts, packages, work};

/// The programs that booting a kernel takes.
const PACKAGES: [&str; 5] = ["binutils", "busybox-static", "cpio", "libc-bin", "qemu-system-x86"];

/// Arguments of `vm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only kernels whose version begins with this, such as 6.1 or 6.12; may be given more than once.
    #[arg(long = "kernel", value_name = "VERSION")]
    kernels: Vec<String>,
    /// Give a kernel up after this many seconds.
    #[arg(long, default_value_t = SECONDS)]
    timeout: u64,
    /// Emulate even where KVM is usable.
    #[arg(long)]
    no_kvm: bool,
    /// Instead of tests, install and run the package on Debian with its own systemd.
    #[arg(long, conflicts_with = "tests")]
    systemd: bool,
    /// With --systemd: package this drainprof instead of building one.
    #[arg(long, value_name = "FILE", requires = "systemd")]
    drainprof: Option<PathBuf>,
    /// Show what tests print as they print it, of those that pass as well.
    #[arg(long, short)]
    verbose: bool,
    /// Run these instead of what `tests/matrix.txt` lists: `binary` or `binary::test`.
    tests: Vec<String>,
}

const SECONDS: u64 = 1200;

/// So many of the slowest tests are listed.
const SLOWEST: usize = 20;

impl Args {
    /// All kernels and all tests, as a run of all tests wants them.
    pub(crate) fn of_tests(verbose: bool) -> Self {
        Self {
            kernels: Vec::new(),
            timeout: SECONDS,
            no_kvm: false,
            systemd: false,
            drainprof: None,
            verbose,
            tests: Vec::new(),
        }
    }

    /// Whether the kernels of this line are wanted.
    fn wants(&self, version: &str) -> bool {
        self.kernels.is_empty() || self.kernels.iter().any(|wanted| wanted == version)
    }
}

/// Builds what the machines run, boots them, and prints the sum.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = work::root()?;
    let tally = if args.systemd {
        systemd::run(&root, args)
    } else {
        artifacts::tests(&root, None).and_then(|built| matrix(&root, args, &built))
    };
    let tally = tally.unwrap_or_else(|error| {
        eprintln!("xtask vm: {error:#}");
        Tally::failure(format!("kernel matrix: {error}"))
    });
    Ok(test::conclude(&tally, SLOWEST))
}

/// Boots each kernel of the matrix with what is built.
pub(crate) fn matrix(root: &Path, args: &Args, built: &Tests) -> Result<Tally> {
    packages::install(&PACKAGES, "to boot other kernels")?;
    let text = if args.tests.is_empty() {
        let path = root.join("tests/matrix.txt");
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?
    } else {
        args.tests.join("\n")
    };
    let runs = matrix::runs(&text, &built.binaries)?;
    let directory = artifacts::target_dir(root).join("vm");
    work::step(format!("vm: pack {} test binaries into an initramfs", runs.len()));
    let initrd = initramfs::pack(root, &directory, built, &runs)?;
    let kvm = AtomicBool::new(!args.no_kvm);
    let mut tally = Tally::default();
    let mut machines = Vec::new();
    for line in kernel::LINES {
        if !args.wants(line.version) {
            continue;
        }
        // One after the other: they come from one package manager.
        match kernel::fetch(&directory, line) {
            Ok(kernel) => machines.push((line.version, kernel)),
            Err(error) => tally.add(broken(line.version, &error)),
        }
    }
    let boot = |(name, kernel): &(&'static str, PathBuf)| {
        let machine = qemu::Machine {
            name,
            kernel,
            initrd: &initrd,
            disks: &[],
            seconds: args.timeout,
            verbose: args.verbose,
            kvm: &kvm,
            runs: &runs,
        };
        qemu::boot(&machine).unwrap_or_else(|error| broken(name, &error))
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    for (ran, (name, _)) in work::at_once(&machines, processors, boot).into_iter().zip(&machines) {
        tally.add(ran.unwrap_or_else(|| broken(name, &anyhow!("what follows it has panicked"))));
    }
    Ok(tally)
}

/// A kernel that could not be tried: a failure of its own, which must not hide the other's results.
fn broken(kernel: &str, error: &anyhow::Error) -> Tally {
    eprintln!("xtask vm: kernel {kernel}: {error:#}");
    Tally::failure(format!("kernel {kernel}: {error}"))
}
