//! `cargo xtask test`: every test, and one line at the end that says how many passed, failed, were skipped.
//!
//! One build has everything: unit tests, the privileged tests of `drainprof-tests`, and the drainprof that these run.
//! Unit tests run as the user who asks, privileged tests as root, several binaries at once except those that
//! `tests/alone.txt` names; beside these, the kernel matrix runs under qemu. Binaries named `real_*`, which need
//! programs of further packages, run only where they are asked for. What a test prints is shown if it fails. The sum is
//! stdout's last line.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fs_err as fs;

use crate::artifacts::{self, TestBinary, Tests};
use crate::busy::Stretch;
use crate::tally::{Reader, Style, Tally};
use crate::{ebpf, setup, vm, work};

/// Privileged test binaries that run at once: they wait half of the time.
const MAX_BINARIES_AT_ONCE: usize = 3;

/// Names the privileged test binaries that have the machine to themselves, one per line with its reason.
const ALONE_LIST: &str = "tests/alone.txt";

/// Names those of the others that take longest: they begin first, so that no lane ends long after the others.
const LONG_LIST: &str = "tests/long.txt";

/// No single test binary may take longer; `timeout` ends it, and it counts as failed.
const BINARY_SECONDS: u32 = 900;

/// Begins the name of a test binary that puts drainprof on programs which ordinary runs do not install.
const REAL: &str = "real_";

/// How long a finished binary's output may still be quiet before it is given up.
const QUIET_TIMEOUT: Duration = Duration::from_secs(1);

/// Arguments of `test`.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Install and mount nothing first.
    #[arg(long)]
    no_setup: bool,
    /// Build the kernel side again instead of testing the committed object.
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
    /// Also list this many of the tests that took longest.
    #[arg(long, value_name = "N", default_value_t = 0)]
    slowest: usize,
    /// Only this privileged test binary (`sweep`), one test of it (`sweep::quarter`), or, of all tests, those whose name
    /// contains this; leaves out the kernel matrix.
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
    sum(args).conclude(args.slowest)
}

/// Runs the tests.
pub(crate) fn sum(args: &Args) -> Tally {
    Tally::of("the test run", all(args))
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
    let chosen = Choice::of(&root, args.filter.as_deref())?;
    work::step("test: build drainprof, the test targets and all tests");
    let tests = artifacts::tests(&root, chosen.binary.as_deref().as_slice())?;
    let mut tally = if args.real_only { Tally::default() } else { unit(&tests, args, &chosen)? };
    if args.unprivileged {
        return Ok(tally);
    }
    let (alone, shared) = privileged(&root, &tests, args, &chosen)?;
    // Alone first: what is measured once and remembered is then measured on a quiet machine.
    tally.add(run_privileged(&root, &tests, args, &chosen, &alone, 1)?);
    // What is shown as it comes must not be mixed.
    let (lanes, beside) = if args.verbose { (1, false) } else { (MAX_BINARIES_AT_ONCE, true) };
    let shared = || run_privileged(&root, &tests, args, &chosen, &shared, lanes);
    let matrix = || matrix(&root, &tests, args, beside);
    let (shared, matrix) = if beside { at_once(shared, matrix) } else { (shared(), matrix()) };
    tally.add(matrix);
    tally.add(shared?);
    Ok(tally)
}

/// Boots other kernels where that is wanted. One broken kernel must not hide the other results.
fn matrix(root: &Path, tests: &Tests, args: &Args, beside: bool) -> Tally {
    if args.no_vm || args.real_only || args.filter.is_some() {
        return Tally::default();
    }
    let args = vm::Args::of_tests(args.verbose, beside);
    Tally::of("kernel matrix", vm::matrix(root, &args, tests))
}

/// Does both at the same time: privileged tests mostly wait, and the emulated machines use only idle processors.
/// A panic of the second is a failure.
fn at_once<T>(first: impl FnOnce() -> T, second: impl FnOnce() -> Tally + Send) -> (T, Tally) {
    thread::scope(|scope| {
        let second = scope.spawn(second);
        let first = first();
        (first, second.join().unwrap_or_else(|_| Tally::failure("kernel matrix: it has panicked")))
    })
}

/// What a filter chooses.
#[derive(Debug, Default, PartialEq)]
struct Choice {
    /// The only binary to build and run.
    binary: Option<String>,
    /// What libtest is given.
    name: Option<String>,
}

impl Choice {
    fn of(root: &Path, filter: Option<&str>) -> Result<Self> {
        let Some(filter) = filter else { return Ok(Self::default()) };
        Ok(Self::among(&artifacts::privileged(root)?, filter))
    }

    fn among(binaries: &[String], filter: &str) -> Self {
        let (binary, name) = filter.split_once("::").unwrap_or((filter, ""));
        if !binaries.iter().any(|known| known == binary) {
            return Self { binary: None, name: Some(filter.to_owned()) };
        }
        let name = (!name.is_empty()).then(|| name.to_owned());
        Self { binary: Some(binary.to_owned()), name }
    }
}

/// Runs the unit tests, a binary after the other: each has as many threads as there are processors.
fn unit(tests: &Tests, args: &Args, chosen: &Choice) -> Result<Tally> {
    work::step("test: unit tests");
    let mut tally = Tally::default();
    for binary in tests.binaries.iter().filter(|binary| !binary.privileged) {
        let mut command = Command::new("timeout");
        command.args(["-k", "10", &BINARY_SECONDS.to_string()]).arg(&binary.path);
        command.arg("--show-output").args(&chosen.name).current_dir(&binary.directory);
        command.env("CARGO_MANIFEST_DIR", &binary.directory);
        command.env_remove("LD_LIBRARY_PATH");
        tally.add(follow(&binary.name, Style::Parallel, args.verbose, &mut command)?);
    }
    Ok(tally)
}

/// The privileged test binaries that are wanted: those that have the machine to themselves, and the others, of which
/// several run at once.
fn privileged<'a>(
    root: &Path,
    tests: &'a Tests,
    args: &Args,
    chosen: &Choice,
) -> Result<(Vec<&'a TestBinary>, Vec<&'a TestBinary>)> {
    let (alone, long) = (listed(root, ALONE_LIST)?, listed(root, LONG_LIST)?);
    let (alone, mut shared): (Vec<_>, Vec<_>) = tests
        .binaries
        .iter()
        .filter(|binary| binary.privileged && (chosen.binary.is_some() || args.wants(&binary.name)))
        .partition(|binary| alone.contains(&binary.name));
    shared.sort_by_key(|binary| !long.contains(&binary.name));
    Ok((alone, shared))
}

/// Runs privileged test binaries, so many at once. Within a binary one test runs at a time.
fn run_privileged(
    root: &Path,
    tests: &Tests,
    args: &Args,
    chosen: &Choice,
    binaries: &[&TestBinary],
    lanes: usize,
) -> Result<Tally> {
    let mut tally = Tally::default();
    if binaries.is_empty() {
        return Ok(tally);
    }
    let why = if work::is_root() { "" } else { " (through sudo: loading eBPF needs root)" };
    work::step(format!("test: {} privileged test binaries, {lanes} at once{why}", binaries.len()));
    let run = |binary: &&TestBinary| as_root(root, binary, tests, args, chosen);
    for (ran, binary) in work::at_once(binaries, lanes, run).into_iter().zip(binaries) {
        let ran = ran.with_context(|| format!("what follows {} has panicked", binary.name))?;
        tally.add(ran?);
    }
    Ok(tally)
}

/// The privileged test binaries that a file names.
fn listed(root: &Path, file: &str) -> Result<Vec<String>> {
    let text = fs::read_to_string(root.join(file))?;
    let names = text.lines().filter_map(|line| line.split('#').next()).map(str::trim);
    let names: Vec<_> = names.filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let known = artifacts::privileged(root)?;
    match names.iter().find(|name| !known.contains(name)) {
        Some(name) => bail!("{file} names {name}, which is no privileged test binary"),
        None => Ok(names),
    }
}

/// Runs one privileged test binary.
fn as_root(
    root: &Path,
    binary: &TestBinary,
    tests: &Tests,
    args: &Args,
    chosen: &Choice,
) -> Result<Tally> {
    // Files of its own: a daemon that watches its test's targets sees those of no other test.
    let own = artifacts::target_dir(root).join("tests").join(&binary.name);
    artifacts::copy_tree(&tests.targets, &own)?;
    let env = [
        ("DRAINPROF_BIN", tests.drainprof.as_os_str()),
        ("DRAINPROF_TEST_TARGETS", own.as_os_str()),
        ("CARGO_MANIFEST_DIR", binary.directory.as_os_str()),
        // Of panics only: an error's own words say enough, and its trace hides them.
        ("RUST_BACKTRACE", OsStr::new("1")),
        ("RUST_LIB_BACKTRACE", OsStr::new("0")),
    ];
    let mut command = work::as_root("timeout", &env);
    command.args(["-k", "10", &BINARY_SECONDS.to_string()]).arg(&binary.path);
    command.args(["--test-threads=1", "--nocapture"]).args(&chosen.name);
    command.current_dir(&binary.directory);
    let tally = follow(&binary.name, Style::Sequential, args.verbose, &mut command)?;
    fs::remove_dir_all(&own)?;
    Ok(tally)
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
    let lines = work::lines(read);
    let mut reader = Reader::new(name, style);
    let mut status = None;
    loop {
        match lines.recv_timeout(QUIET_TIMEOUT) {
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
    tally.show(name, &stretch);
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::{Args, Choice};

    /// Tests on further real programs run where they are asked for and nowhere else, distinguished by how the name begins.
    #[test]
    fn real_programs_are_asked_for() {
        let wanted =
            |args: &Args| ["nginx", "real_php", "stacks_real"].map(|name| args.wants(name));
        assert_eq!(wanted(&Args::default()), [true, false, true]);
        assert_eq!(wanted(&Args::fresh(true, false)), [true, false, true]);
        assert_eq!(wanted(&Args { real: true, ..Args::default() }), [true; 3]);
        assert_eq!(wanted(&Args { real_only: true, ..Args::default() }), [false, true, false]);
    }

    /// A filter names a privileged binary, or a test of it, or any part of any test's name.
    #[test]
    fn filters() {
        let choice = |filter| Choice::among(&["sweep".to_owned(), "top".to_owned()], filter);
        let of = |binary: Option<&str>, name: Option<&str>| Choice {
            binary: binary.map(str::to_owned),
            name: name.map(str::to_owned),
        };
        assert_eq!(choice("sweep"), of(Some("sweep"), None));
        assert_eq!(choice("sweep::quarter"), of(Some("sweep"), Some("quarter")));
        assert_eq!(choice("swee"), of(None, Some("swee")));
        assert_eq!(choice("report::quarter"), of(None, Some("report::quarter")));
    }
}
