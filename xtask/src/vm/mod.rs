//! `cargo xtask vm`: the tests of the kernel matrix, on Debian's 6.1 and 6.12 kernels under qemu.
//!
//! Each kernel boots with an initramfs that holds the release binary, the test binaries, their targets and
//! their libraries, runs the tests that `tests/matrix.txt` lists, and powers off. Works without KVM, only
//! slower: an emulated machine keeps one processor busy, so as many boot at once as there are processors. What
//! they print is told apart by the kernel's name before each line. Called by `test` as well.

mod initramfs;
mod kernel;
mod matrix;
mod qemu;

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result, anyhow};

use crate::tally::Tally;
use crate::test::{self, Privileged};
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
    /// Show what tests print as they print it, of those that pass as well.
    #[arg(long, short)]
    verbose: bool,
    /// Run these instead of what `tests/matrix.txt` lists: `binary` or `binary::test`.
    tests: Vec<String>,
}

const SECONDS: u64 = 1200;

impl Args {
    /// All kernels and all tests, as a run of all tests wants them.
    pub(crate) fn of_tests(verbose: bool) -> Self {
        Self { kernels: Vec::new(), timeout: SECONDS, no_kvm: false, verbose, tests: Vec::new() }
    }
}

/// Builds what the machines run, boots them, and prints the sum.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = work::root()?;
    let tally = Privileged::build(&root).and_then(|built| matrix(&root, args, &built));
    let tally = tally.unwrap_or_else(|error| {
        eprintln!("xtask vm: {error:#}");
        Tally::failure(format!("kernel matrix: {error}"))
    });
    Ok(test::conclude(&tally))
}

/// Boots each kernel of the matrix with what is built.
pub(crate) fn matrix(root: &Path, args: &Args, built: &Privileged) -> Result<Tally> {
    packages::install(&PACKAGES, "to boot other kernels")?;
    let text = if args.tests.is_empty() {
        let path = root.join("tests/matrix.txt");
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?
    } else {
        args.tests.join("\n")
    };
    let runs = matrix::runs(&text, &built.tests.binaries)?;
    let directory = artifacts::target_dir(root).join("vm");
    work::step(format!("vm: pack {} test binaries into an initramfs", runs.len()));
    let initrd = initramfs::pack(root, &directory, built, &runs)?;
    let kvm = AtomicBool::new(!args.no_kvm);
    let mut tally = Tally::default();
    let mut machines = Vec::new();
    for line in kernel::LINES {
        let wanted = args.kernels.is_empty() || args.kernels.iter().any(|v| v == line.version);
        if !wanted {
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
            seconds: args.timeout,
            verbose: args.verbose,
            kvm: &kvm,
            runs: &runs,
        };
        qemu::boot(&machine).unwrap_or_else(|error| broken(name, &error))
    };
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    for (ran, (name, _)) in at_once(&machines, processors, boot).into_iter().zip(&machines) {
        tally.add(ran.unwrap_or_else(|| broken(name, &anyhow!("what follows it has panicked"))));
    }
    Ok(tally)
}

/// Boots the machines, `processors` of them at the same time; what came of each, or nothing where `boot` panicked.
fn at_once<M: Sync>(
    machines: &[M],
    processors: usize,
    boot: impl Fn(&M) -> Tally + Sync,
) -> Vec<Option<Tally>> {
    let some = machines.chunks(processors.max(1)).map(|some| {
        thread::scope(|scope| {
            let boots: Vec<_> = some.iter().map(|machine| scope.spawn(|| boot(machine))).collect();
            boots.into_iter().map(|boot| boot.join().ok()).collect::<Vec<_>>()
        })
    });
    some.flatten().collect()
}

/// A kernel that could not be tried: a failure of its own, which must not hide the other's results.
fn broken(kernel: &str, error: &anyhow::Error) -> Tally {
    eprintln!("xtask vm: kernel {kernel}: {error:#}");
    Tally::failure(format!("kernel {kernel}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::at_once;
    use crate::tally::Tally;

    /// Machines run at the same time: each waits for a word that the other says. The results keep their order, and one
    /// that panics takes no other with it.
    #[test]
    fn machines_at_the_same_time() {
        type Line = Mutex<(Sender<()>, Receiver<()>)>;
        let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
        let machines: [(usize, Line); 3] = [
            (1, Mutex::new((to_second, from_second))),
            (2, Mutex::new((to_first, from_first))),
            (3, Mutex::new(channel())),
        ];
        let boot = |(number, line): &(usize, Line)| {
            if *number == 3 {
                // Without the hook: the words of a panic that is wanted would mislead who looks for the others.
                std::panic::resume_unwind(Box::new("this one panics"));
            }
            let line = line.lock().unwrap_or_else(PoisonError::into_inner);
            line.0.send(()).unwrap();
            line.1.recv_timeout(Duration::from_secs(30)).unwrap();
            Tally { passed: *number, ..Tally::default() }
        };
        let ran = at_once(&machines, 2, boot);
        let passed: Vec<_> = ran.iter().map(|tally| tally.as_ref().map(|t| t.passed)).collect();
        assert_eq!(passed, [Some(1), Some(2), None]);
    }
}
