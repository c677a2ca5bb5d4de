//! `cargo xtask test`: every test, and one line at the end that says how many passed, failed, were skipped.
//!
//! Unit tests run as the user who asks; the privileged tests of `drainprof-tests` are built by that user and
//! run as root; the kernel matrix runs under qemu. Binaries named `real_*`, which need programs of further
//! packages, run only where they are asked for. What a test prints is shown if it fails. The sum is stdout's last
//! line.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::artifacts::{self, BENCH_PACKAGE, TESTS_PACKAGE, TestBinary};
use crate::busy::Stretch;
use crate::tally::{Reader, Style, Tally};
use crate::{ebpf, setup, vm, work};

/// No single test binary may take longer; `timeout` ends it, and it counts as failed.
const BINARY_SECONDS: u32 = 900;

/// Begins the name of a test binary that puts drainprof on programs which ordinary runs do not install.
const REAL: &str = "real_";

/// How long a finished binary's output may still be quiet before it is given up.
const GRACE: Duration = Duration::from_secs(1);

/// Arguments of `test`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Install and mount nothing first.
    #[arg(long)]
    no_setup: bool,
    /// Build the kernel side anew instead of testing the committed object.
    #[arg(long)]
    fresh_ebpf: bool,
    /// Leave out the kernel matrix.
    #[arg(long)]
    no_vm: bool,
    /// Leave out the privileged tests (and the kernel matrix); nothing then needs root.
    #[arg(long)]
    unprivileged: bool,
    /// Also the tests on further real programs, whose packages are installed first.
    #[arg(long, conflicts_with = "unprivileged")]
    real: bool,
    /// Only the tests on further real programs.
    #[arg(long, conflicts_with = "unprivileged")]
    real_only: bool,
    /// Show what tests print as they print it, of those that pass as well.
    #[arg(long, short)]
    verbose: bool,
    /// Only tests whose name contains this; also leaves out the kernel matrix.
    filter: Option<String>,
}

impl Args {
    /// Everything, on a freshly built eBPF object; the kernel matrix unless `no_vm`, `real` programs if asked.
    pub(crate) fn fresh(no_vm: bool, real: bool) -> Self {
        Self { fresh_ebpf: true, no_vm, real, ..Self::default() }
    }

    /// Whether a test binary of this name is to run.
    fn wants(&self, name: &str) -> bool {
        if name.starts_with(REAL) { self.real || self.real_only } else { !self.real_only }
    }
}

/// Runs the tests and prints the sum.
pub(crate) fn run(args: &Args) -> ExitCode {
    conclude(&sum(args))
}

/// Runs the tests; what keeps them from running is a failure like any other.
pub(crate) fn sum(args: &Args) -> Tally {
    all(args).unwrap_or_else(|error| {
        eprintln!("xtask test: {error:#}");
        Tally::failure(format!("the test run: {error}"))
    })
}

/// Names the failures on stderr, prints the sum on stdout, and chooses the exit code.
pub(crate) fn conclude(tally: &Tally) -> ExitCode {
    for failure in &tally.failures {
        eprintln!("{failure}");
    }
    println!("{tally}");
    if tally.failed == 0 && tally.passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs everything that `args` ask for.
fn all(args: &Args) -> Result<Tally> {
    let root = work::root()?;
    if !args.no_setup && !args.unprivileged {
        let real = args.real || args.real_only;
        setup::run(&setup::Args { real, ..setup::Args::default() })?;
    }
    if args.fresh_ebpf {
        ebpf::build(&root)?;
    }
    let mut tally = if args.real_only { Tally::default() } else { unit(&root, args)? };
    if args.unprivileged {
        return Ok(tally);
    }
    let privileged = Privileged::build(&root)?;
    tally.add(privileged.run(args)?);
    if !args.no_vm && !args.real_only && args.filter.is_none() {
        // One broken kernel must not hide the other results.
        tally.add(
            vm::matrix(&root, &vm::Args::of_tests(args.verbose), &privileged).unwrap_or_else(
                |error| {
                    eprintln!("xtask vm: {error:#}");
                    Tally::failure(format!("kernel matrix: {error}"))
                },
            ),
        );
    }
    Ok(tally)
}

/// Unit tests and examples in the documentation, of the default members.
fn unit(root: &Path, args: &Args) -> Result<Tally> {
    work::step("test: unit tests");
    let mut tally = Tally::default();
    for binary in artifacts::tests(root, &[])?.binaries {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", &BINARY_SECONDS.to_string()]).arg(&binary.path);
        command.arg("--show-output").args(&args.filter).current_dir(&binary.directory);
        command.env("CARGO_MANIFEST_DIR", &binary.directory);
        command.env_remove("LD_LIBRARY_PATH");
        tally.add(follow(&binary.name, Style::Parallel, args.verbose, &mut command)?);
    }
    if args.filter.is_none() {
        work::step("test: examples in the documentation");
        let mut command = work::cargo(root);
        command.args(["test", "--quiet", "--locked", "--doc", "-p", "drainprof-common"]);
        command.args(["-p", "drainprof-daemon"]);
        tally.add(follow("doc", Style::Doc, args.verbose, &mut command)?);
    }
    Ok(tally)
}

/// What the privileged tests run.
pub(crate) struct Privileged {
    pub(crate) tests: artifacts::Tests,
    pub(crate) drainprof: PathBuf,
}

impl Privileged {
    /// Builds them all, without privilege.
    pub(crate) fn build(root: &Path) -> Result<Self> {
        work::step("test: build drainprof (release), the test targets and the privileged tests");
        Ok(Self {
            drainprof: artifacts::drainprof(root)?,
            tests: artifacts::tests(root, &["-p", TESTS_PACKAGE, "-p", BENCH_PACKAGE])?,
        })
    }

    /// Runs them as root, one test at a time: they measure the machine, and probes are dear to detach.
    fn run(&self, args: &Args) -> Result<Tally> {
        let mut tally = Tally::default();
        for binary in chosen(&self.tests.binaries, args) {
            let why = if work::is_root() { "" } else { " (through sudo: loading eBPF needs root)" };
            work::step(format!("test: privileged: {}{why}", binary.name));
            let env = [
                ("DRAINPROF_BIN", self.drainprof.as_os_str()),
                ("CARGO_MANIFEST_DIR", binary.directory.as_os_str()),
                // Of panics only: an error's own words say enough, and its trace hides them.
                ("RUST_BACKTRACE", OsStr::new("1")),
                ("RUST_LIB_BACKTRACE", OsStr::new("0")),
            ];
            let mut command = work::as_root("timeout", &env);
            command.args(["-k", "10", &BINARY_SECONDS.to_string()]).arg(&binary.path);
            command.args(["--test-threads=1", "--nocapture"]).args(&args.filter);
            command.current_dir(&binary.directory);
            tally.add(follow(&binary.name, Style::Sequential, args.verbose, &mut command)?);
        }
        Ok(tally)
    }
}

/// Those of the test binaries that are to run.
fn chosen<'a>(
    binaries: &'a [TestBinary],
    args: &'a Args,
) -> impl Iterator<Item = &'a TestBinary> + 'a {
    binaries.iter().filter(|binary| args.wants(&binary.name))
}

/// Says what came of one binary: its numbers, and before them all that its failed tests printed.
pub(crate) fn tell(name: &str, tally: &Tally, stretch: &Stretch) {
    for failure in &tally.failures {
        // In one piece: another machine may be telling, too.
        println!("---- {failure}\n{}\n---- end of {}", failure.said.join("\n"), failure.what);
    }
    work::note(format!("{name}: {tally} in {:.0} s", stretch.seconds()));
    if tally.failed > 0
        && let Some(used) = stretch.use_of_processors()
    {
        work::note(used);
    }
}

/// Runs one test binary and reads the result from its output, which is passed on if `verbose`.
fn follow(name: &str, style: Style, verbose: bool, command: &mut Command) -> Result<Tally> {
    let stretch = Stretch::begin();
    let line = work::describe(command);
    // Results come on stdout, `SKIP:` lines on either; one pipe keeps their order.
    let (read, write) = std::io::pipe().context("create a pipe")?;
    command.stdin(Stdio::null()).stdout(write.try_clone()?).stderr(write);
    let mut child = command.spawn().with_context(|| format!("run `{line}`"))?;
    // The command holds the pipe's write ends: with them open the reading would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(read).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
    let mut reader = Reader::new(name, style);
    let mut status = None;
    loop {
        match lines.recv_timeout(GRACE) {
            Ok(line) => {
                if verbose {
                    println!("{line}");
                }
                reader.line(&line);
            }
            Err(RecvTimeoutError::Disconnected) => break,
            // A process that a test left behind may hold the pipe open for ever.
            Err(RecvTimeoutError::Timeout) if status.is_some() => break,
            Err(RecvTimeoutError::Timeout) => {
                status = child.try_wait().with_context(|| format!("wait for {name}"))?;
            }
        }
    }
    let status = match status {
        Some(status) => status,
        None => child.wait().with_context(|| format!("wait for {name}"))?,
    };
    let tally = reader.finish(status.success());
    tell(name, &tally, &stretch);
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::{Args, chosen};
    use crate::artifacts::TestBinary;

    fn names(args: &Args) -> Vec<String> {
        let made = |name: &str| TestBinary {
            name: name.to_owned(),
            path: "/x".into(),
            directory: "/".into(),
        };
        let binaries = ["nginx", "real_php", "stacks_real"].map(made);
        chosen(&binaries, args).map(|binary| binary.name.clone()).collect()
    }

    /// Tests on further real programs run where they are asked for and nowhere else, told by how the name begins.
    #[test]
    fn real_programs_are_asked_for() {
        assert_eq!(names(&Args::default()), ["nginx", "stacks_real"]);
        assert_eq!(names(&Args::fresh(true, false)), ["nginx", "stacks_real"]);
        let real = Args { real: true, ..Args::default() };
        assert_eq!(names(&real), ["nginx", "real_php", "stacks_real"]);
        let only = Args { real_only: true, ..Args::default() };
        assert_eq!(names(&only), ["real_php"]);
    }
}
