//! Builds what the tests run and says where it lies: test binaries, the `drainprof` binary, the C targets, the
//! benchmarks.
//!
//! Asks cargo (its JSON messages) instead of guessing paths under `target/`. Called by `test`, `vm`, `demo`, `bench`.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, Metadata, MetadataCommand};

use crate::work;

/// The package with the privileged tests.
pub(crate) const TESTS_PACKAGE: &str = "drainprof-tests";

/// The package with the benchmarks.
pub(crate) const BENCH_PACKAGE: &str = "drainprof-bench";

/// One executable of tests.
#[derive(Clone, Debug)]
pub(crate) struct TestBinary {
    /// The cargo target's name.
    pub(crate) name: String,
    /// The executable.
    pub(crate) path: PathBuf,
    /// The package's directory, in which cargo would run it.
    pub(crate) directory: PathBuf,
}

/// What cargo knows of the workspace.
pub(crate) fn metadata(root: &Path) -> Result<Metadata> {
    MetadataCommand::new()
        .current_dir(root)
        .other_options(
            ["--locked", "--filter-platform", "x86_64-unknown-linux-gnu"].map(String::from),
        )
        .exec()
        .context(
            "read the workspace with `cargo metadata --locked`; is Cargo.lock committed and fresh?",
        )
}

/// Where the tasks put what they make: `target/` of the workspace, or `CARGO_TARGET_DIR`.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// What building the tests of some packages made.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    /// The test binaries.
    pub(crate) binaries: Vec<TestBinary>,
    /// Programs of the package with the privileged tests, which these may run.
    pub(crate) programs: Vec<PathBuf>,
    /// `targets/` in the packages' build directories: C programs, profiles.
    pub(crate) targets: Option<PathBuf>,
}

/// Builds test binaries; `args` say of which packages.
pub(crate) fn tests(root: &Path, args: &[&str]) -> Result<Tests> {
    let mut command = work::cargo(root);
    command.args(["test", "--no-run", "--locked"]).args(args);
    let mut tests = Tests::default();
    for message in build("build the tests", &mut command)? {
        match message {
            Message::CompilerArtifact(artifact) => {
                let Some(path) = artifact.executable else { continue };
                if artifact.profile.test {
                    let directory =
                        artifact.manifest_path.parent().context("a manifest lies nowhere")?;
                    tests.binaries.push(TestBinary {
                        name: artifact.target.name,
                        path: path.into(),
                        directory: directory.into(),
                    });
                } else if artifact.package_id.repr.contains(TESTS_PACKAGE) {
                    tests.programs.push(path.into());
                }
            }
            Message::BuildScriptExecuted(script) => {
                let targets = script.out_dir.join("targets");
                // Only the workspace's own build scripts: a path, not a registry, is in the id.
                if script.package_id.repr.contains(TESTS_PACKAGE) && targets.is_dir() {
                    tests.targets = Some(targets.into());
                }
            }
            _ => {}
        }
    }
    // Cargo names them as they become ready; a run that is compared with another wants one order.
    tests.binaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

/// Builds drainprof's release binary.
pub(crate) fn drainprof(root: &Path) -> Result<PathBuf> {
    binary(root, "drainprof-daemon", "drainprof", &["--release"])
}

/// Builds drainprof without optimisation, which is quicker after a change.
pub(crate) fn drainprof_dev(root: &Path) -> Result<PathBuf> {
    binary(root, "drainprof-daemon", "drainprof", &[])
}

/// Builds the release binary of the benchmarks.
pub(crate) fn bench(root: &Path) -> Result<PathBuf> {
    binary(root, BENCH_PACKAGE, BENCH_PACKAGE, &["--release"])
}

/// Builds one binary of a package.
fn binary(root: &Path, package: &str, name: &str, profile: &[&str]) -> Result<PathBuf> {
    let mut command = work::cargo(root);
    command.args(["build", "--locked", "-p", package, "--bin", name]).args(profile);
    build(&format!("build {name}"), &mut command)?
        .into_iter()
        .find_map(|message| match message {
            Message::CompilerArtifact(artifact)
                if artifact.target.is_bin() && artifact.target.name == name =>
            {
                artifact.executable
            }
            _ => None,
        })
        .map(Into::into)
        .with_context(|| {
            format!("build {name}: cargo named no executable; does {package} still have it?")
        })
}

/// Runs a cargo build and collects its messages; its diagnostics go to stderr as usual.
fn build(what: &str, command: &mut Command) -> Result<Vec<Message>> {
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let line = work::describe(command);
    let mut child = command
        .spawn()
        .with_context(|| format!("{what}: cannot run `{line}`; is cargo on PATH?"))?;
    let output = child.stdout.take().with_context(|| format!("{what}: cargo has no stdout"))?;
    let made = Message::parse_stream(BufReader::new(output))
        .collect::<Result<Vec<_>, _>>()
        .context("read cargo's messages")?;
    let status = child.wait().context("wait for cargo")?;
    if !status.success() {
        bail!("{what} failed: `{line}` ended with {status}; mend what the compiler says above");
    }
    Ok(made)
}

/// Compiles one C program into `directory` if it is newer than its executable, which is returned.
///
/// A first line `/* cflags: FLAGS */` names flags beyond the common ones, as it does for the tests' targets.
pub(crate) fn target(source: &Path, directory: &Path) -> Result<PathBuf> {
    let text =
        std::fs::read_to_string(source).with_context(|| format!("read {}", source.display()))?;
    let flags = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix("/* cflags: ")?.strip_suffix(" */"))
        .unwrap_or_default();
    let stem = source.file_stem().with_context(|| format!("{} has no name", source.display()))?;
    let program = directory.join(stem);
    let flags: Vec<&str> = flags.split_whitespace().collect();
    compile(source, &program, &flags)?;
    Ok(program)
}

/// Compiles one C program with `LeakSanitizer` built in; `None` where the compiler does not have it.
pub(crate) fn with_leak_sanitizer(source: &Path, program: &Path) -> Result<Option<()>> {
    let mut gcc = Command::new("gcc");
    gcc.arg("-print-file-name=liblsan.so");
    let answer = work::read("ask gcc", "`cargo xtask setup` installs gcc", &mut gcc)?;
    // A file that gcc does not have is answered with its bare name.
    if !Path::new(answer.trim()).is_absolute() {
        return Ok(None);
    }
    compile(source, program, &["-fsanitize=leak"]).map(Some)
}

fn compile(source: &Path, program: &Path, flags: &[&str]) -> Result<()> {
    if is_fresh(program, source) {
        return Ok(());
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-Wall", "-Wextra", "-o"]);
    gcc.arg(program).arg(source).args(flags).arg("-pthread");
    work::run("compile a test target", "`cargo xtask setup` installs gcc", &mut gcc)
}

fn is_fresh(made: &Path, source: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|data| data.modified());
    matches!((time(made), time(source)), (Ok(made), Ok(source)) if made > source)
}
