//! `cargo xtask vm`: tests on other kernels under qemu: Debian's 6.1 and 6.12, and the newest of its unstable suite.
//!
//! `machines` has the table: which kernel boots how, and which list of tests it runs. All machines share one initramfs,
//! which holds drainprof, the test binaries, their targets and their libraries. A machine runs its list and powers off.
//! Complaints of the kernel are failures, too. Without KVM it only takes longer: an emulated machine keeps one
//! processor busy, so as many boot at once as there are processors. Messages begin with the machine's name. Called by
//! `test` as well.

mod archive;
mod initramfs;
mod kernel;
mod lists;
mod log;
mod machines;
mod qemu;
mod session;
mod systemd;

use std::collections::{BTreeSet, HashMap};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use fs_err as fs;

pub(crate) use self::archive::Archive;
use self::kernel::Kernel;
use self::lists::Run;
use self::machines::{MACHINES, Machine};
use crate::artifacts::Tests;
use crate::tally::Tally;
use crate::{artifacts, packages, work};

/// The programs that booting a kernel takes.
const PACKAGES: [&str; 5] = ["binutils", "busybox-static", "cpio", "libc-bin", "qemu-system-x86"];

/// Arguments of `vm`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only the machines of this line of kernels (6.1, 6.12, sid), or one of them, such as sid-full or sid-16cpus; may
    /// be given more than once.
    #[arg(long = "kernel", value_name = "NAME")]
    kernels: Vec<String>,
    /// Give a machine up after this many seconds.
    #[arg(long, default_value_t = TIMEOUT_SECONDS)]
    timeout: u64,
    /// Emulate even where KVM is usable.
    #[arg(long)]
    no_kvm: bool,
    /// Use only processors that nothing else wants.
    #[arg(long)]
    idle: bool,
    /// Set a variable for the tests of all machines, such as `DRAINPROF_TEST_EVENTS=1000000`; may be given more than
    /// once.
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable)]
    environment: Vec<(String, String)>,
    /// Instead of tests, install and run the package on Debian with its own systemd.
    #[arg(long)]
    systemd: bool,
    /// With --systemd: package this drainprof instead of building one.
    #[arg(long, value_name = "FILE", requires = "systemd")]
    drainprof: Option<PathBuf>,
    /// Show what tests print as they print it, of those that pass as well.
    #[arg(long, short)]
    verbose: bool,
    /// Run these instead of what each machine's list names: `binary` or `binary::test`. With --systemd: only these steps
    /// of deploy/debian/check.sh, in this order; those after `install` need it, and those after `start` both.
    tests: Vec<String>,
}

/// A machine is given up after this time.
const TIMEOUT_SECONDS: u64 = 1800;

/// The slowest tests that are listed.
const SLOWEST_TESTS: usize = 20;

/// A variable and its value, which stands between single quotes in a script.
fn variable(text: &str) -> Result<(String, String)> {
    let (name, value) = text.split_once('=').context("give NAME=VALUE")?;
    let is_name = |name: &str| {
        name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
            && name.starts_with(|char: char| !char.is_ascii_digit())
    };
    if !is_name(name) || value.contains('\'') {
        bail!("a name has letters, digits and underscores, and a value no single quote");
    }
    Ok((name.to_owned(), value.to_owned()))
}

impl Args {
    /// All machines and all tests, as a run of all tests wants them; `idle` if beside others.
    pub(crate) fn of_tests(verbose: bool, idle: bool) -> Self {
        Self {
            kernels: Vec::new(),
            timeout: TIMEOUT_SECONDS,
            no_kvm: false,
            idle,
            environment: Vec::new(),
            systemd: false,
            drainprof: None,
            verbose,
            tests: Vec::new(),
        }
    }

    /// All tests, or only the binaries that are asked for, if each needs root.
    fn built(&self, root: &Path) -> Result<Tests> {
        let privileged = artifacts::privileged(root)?;
        let names = self.tests.iter().map(|test| test.split("::").next().unwrap_or(test));
        let names: BTreeSet<&str> = names.collect();
        let names: Vec<&str> = names.into_iter().collect();
        let are_known = names.iter().all(|name| privileged.iter().any(|known| known == name));
        artifacts::tests(root, if are_known { &names } else { &[] })
    }

    /// The machines that are wanted.
    fn machines(&self) -> Result<Vec<&'static Machine>> {
        let unknown = |wanted: &&String| !MACHINES.iter().any(|machine| machine.is_called(wanted));
        if let Some(unknown) = self.kernels.iter().find(unknown) {
            let known: Vec<_> = MACHINES.iter().map(|machine| machine.name(machine.line)).collect();
            bail!("there is no kernel {unknown}; there are: {}", known.join(", "));
        }
        let wants = |machine: &&Machine| {
            self.kernels.is_empty() || self.kernels.iter().any(|wanted| machine.is_called(wanted))
        };
        Ok(MACHINES.iter().filter(wants).collect())
    }
}

/// Builds what the machines run, boots them, and prints the sum.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let root = work::root()?;
    let tally = if args.systemd {
        systemd::run(&root, args)
    } else {
        args.built(&root).and_then(|built| matrix(&root, args, &built))
    };
    Ok(Tally::of("kernel matrix", tally).conclude(SLOWEST_TESTS))
}

/// A machine with its kernel and its tests.
struct Ready {
    machine: &'static Machine,
    name: String,
    image: PathBuf,
    modules: Vec<PathBuf>,
    runs: Vec<Run>,
}

/// Boots each machine of the matrix with what is built.
pub(crate) fn matrix(root: &Path, args: &Args, built: &Tests) -> Result<Tally> {
    let wanted = args.machines()?;
    packages::install(&PACKAGES, "to boot other kernels")?;
    let directory = artifacts::target_dir(root).join("vm");
    let (mut tally, kernels) = kernels(&directory, &wanted);
    let mut ready = Vec::new();
    for machine in wanted {
        let Some(kernel) = kernels.get(machine.line) else { continue };
        match prepare(root, args, built, machine, kernel) {
            Ok(machine) => ready.push(machine),
            Err(error) => tally.add(of_machine(&machine.name(kernel.version()), Err(error))),
        }
    }
    let jobs: Vec<_> = ready.iter().map(|ready| ready.job(args)).collect();
    work::step(format!("vm: pack an initramfs for {} machines", jobs.len()));
    let initrd = initramfs::pack(root, &directory, built, &jobs)?;
    let logs = directory.join("logs");
    fs::create_dir_all(&logs)?;
    let kvm = AtomicBool::new(!args.no_kvm);
    let boot = |ready: &Ready| ready.boot(args, &initrd, &logs, &kvm);
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    for (ran, ready) in work::at_once(&ready, processors, boot).into_iter().zip(&ready) {
        let ran = ran.unwrap_or_else(|| Err(anyhow!("what follows it has panicked")));
        tally.add(of_machine(&ready.name, ran));
    }
    Ok(tally)
}

/// The kernels of the machines by their lines, fetched one after the other: they come from one package manager.
fn kernels(directory: &Path, wanted: &[&Machine]) -> (Tally, HashMap<&'static str, Kernel>) {
    let (mut tally, mut kernels) = (Tally::default(), HashMap::new());
    for line in &kernel::LINES {
        if !wanted.iter().any(|machine| machine.line == line.name) {
            continue;
        }
        match kernel::fetch(directory, line) {
            Ok(kernel) => {
                work::note(format!("kernel {}: {}", line.name, kernel.release));
                kernels.insert(line.name, kernel);
            }
            Err(error) => tally.add(of_machine(line.name, Err(error))),
        }
    }
    (tally, kernels)
}

/// Reads a machine's list of tests, and checks that its kernel can do what it is there for.
fn prepare(
    root: &Path,
    args: &Args,
    built: &Tests,
    machine: &'static Machine,
    kernel: &Kernel,
) -> Result<Ready> {
    kernel.check(machine.preempt.and(Some(kernel::PREEMPT_DYNAMIC)))?;
    let runs = if args.tests.is_empty() {
        let path = root.join(machine.list);
        let text = fs::read_to_string(&path)?;
        lists::runs(machine.list, &text, &built.binaries)?
    } else {
        lists::runs("the command line", &args.tests.join("\n"), &built.binaries)?
    };
    let (name, modules) = (machine.name(kernel.version()), kernel.modules.clone());
    Ok(Ready { machine, name, image: kernel.image(), modules, runs })
}

impl Ready {
    /// What the caller asks for wins over the machine's own.
    fn job<'a>(&'a self, args: &'a Args) -> initramfs::Job<'a> {
        let asked = args.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        initramfs::Job {
            machine: &self.name,
            runs: &self.runs,
            modules: &self.modules,
            environment: self.machine.environment.iter().copied().chain(asked).collect(),
        }
    }

    fn boot(&self, args: &Args, initrd: &Path, logs: &Path, kvm: &AtomicBool) -> Result<Tally> {
        let preempt = self.machine.preempt.map(|model| format!(" preempt={model}"));
        qemu::boot(&qemu::Boot {
            name: &self.name,
            kernel: &self.image,
            initrd,
            disks: &[],
            log: &logs.join(format!("{}.log", self.name)),
            append: &format!("{}={}{}", initramfs::MACHINE, self.name, preempt.unwrap_or_default()),
            preempt: self.machine.preempt,
            processors: self.machine.processors,
            memory: self.machine.memory,
            seconds: args.timeout,
            idle: args.idle,
            verbose: args.verbose,
            kvm,
            runs: &self.runs,
        })
    }
}

/// What a machine came to.
fn of_machine(name: &str, ran: Result<Tally>) -> Tally {
    Tally::of(&format!("kernel {name}"), ran)
}

#[cfg(test)]
mod tests {
    use super::variable;

    /// A variable is a name and a value that a script can hold.
    #[test]
    fn variables() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(variable("A_1=b=c d").unwrap(), pair("A_1", "b=c d"));
        assert_eq!(variable("_=").unwrap(), pair("_", ""));
        for refused in ["A", "=b", "1A=b", "A B=c", "A=it's"] {
            assert!(variable(refused).is_err(), "{refused}");
        }
    }
}
