//! Builds what the tests run and says where it lies: test binaries, the `drainprof` binary, the C targets, the
//! benchmarks.
//!
//! Asks cargo (its JSON messages) instead of guessing paths under `target/`. Called by `test`, `vm`, `demo`, `bench`.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Message, Metadata, MetadataCommand};
use fs_err as fs;

use crate::work;

/// The package with the privileged tests.
const TESTS_PACKAGE: &str = "drainprof-tests";

/// The package with the benchmarks.
const BENCH_PACKAGE: &str = "drainprof-bench";

/// The binary of the product.
const DRAINPROF: &str = "drainprof";

/// Everything but the kernel side, which has another target. Each step of CI and of the tests selects the same packages:
/// with fewer of them, dependencies have fewer features, and cargo builds them a second time.
pub(crate) const HOST: [&str; 4] = ["--workspace", "--exclude", "drainprof-ebpf", "--locked"];

/// One executable of tests.
#[derive(Clone, Debug, Default)]
pub(crate) struct TestBinary {
    /// The cargo target's name.
    pub(crate) name: String,
    /// The executable.
    pub(crate) path: PathBuf,
    /// The package's directory, in which cargo would run it.
    pub(crate) directory: PathBuf,
    /// Whether it needs root: an integration test of the packages that attach to processes.
    pub(crate) privileged: bool,
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

/// What `Cargo.lock` holds.
#[derive(serde::Deserialize)]
pub(crate) struct Lock {
    pub(crate) package: Vec<Locked>,
}

/// A package that is locked.
#[derive(serde::Deserialize)]
pub(crate) struct Locked {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) checksum: Option<String>,
}

impl Lock {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        toml::from_str(&fs::read_to_string(root.join("Cargo.lock"))?).context("parse Cargo.lock")
    }
}

/// Where the tasks put what they make: `target/` of the workspace, or `CARGO_TARGET_DIR`.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// What tests run.
#[derive(Debug, Default)]
pub(crate) struct Tests {
    /// The test binaries.
    pub(crate) binaries: Vec<TestBinary>,
    /// Programs of the package with the privileged tests, which these may run.
    pub(crate) programs: Vec<PathBuf>,
    /// `targets/` in that package's build directory: C programs, profiles.
    pub(crate) targets: PathBuf,
    /// drainprof without symbols, as users get it.
    pub(crate) drainprof: PathBuf,
}

/// Builds drainprof and all test binaries, or only the privileged ones of these names, in one profile.
pub(crate) fn tests(root: &Path, only: &[&str]) -> Result<Tests> {
    let mut command = work::cargo(root);
    command.arg("build").args(HOST).args(["--bin", DRAINPROF]);
    match only {
        [] => command.arg("--tests"),
        names => command.args(names.iter().flat_map(|&name| ["--test", name])),
    };
    let (mut tests, mut drainprof) = (Tests::default(), None);
    for message in build("build the tests", &mut command)? {
        match message {
            Message::CompilerArtifact(artifact) => {
                let Some(path) = artifact.executable else { continue };
                let package = &artifact.package_id.repr;
                if artifact.profile.test {
                    let directory =
                        artifact.manifest_path.parent().context("a manifest lies nowhere")?;
                    let attaches =
                        [TESTS_PACKAGE, BENCH_PACKAGE].iter().any(|p| package.contains(p));
                    tests.binaries.push(TestBinary {
                        privileged: attaches && artifact.target.is_test(),
                        name: artifact.target.name,
                        path: path.into(),
                        directory: directory.into(),
                    });
                } else if package.contains(TESTS_PACKAGE) {
                    tests.programs.push(path.into());
                } else if artifact.target.name == DRAINPROF {
                    drainprof = Some(path);
                }
            }
            // Only the workspace's own build script: a path, not a registry, is in the id.
            Message::BuildScriptExecuted(script)
                if script.package_id.repr.contains(TESTS_PACKAGE) =>
            {
                tests.targets = script.out_dir.join("targets").into();
            }
            _ => {}
        }
    }
    let drainprof = drainprof.context("cargo named no drainprof")?;
    let directory = target_dir(root).join("tests");
    fs::create_dir_all(&directory)?;
    tests.drainprof = directory.join(DRAINPROF);
    strip("--strip-all", drainprof.as_std_path(), &tests.drainprof)?;
    // Cargo names them as they become ready; a run that is compared with another wants one order.
    tests.binaries.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(tests)
}

/// The privileged test binaries, by their names: what cargo would build.
pub(crate) fn privileged(root: &Path) -> Result<Vec<String>> {
    let metadata = metadata(root)?;
    let packages = metadata.workspace_packages().into_iter();
    let attaching = packages.filter(|p| [TESTS_PACKAGE, BENCH_PACKAGE].contains(&p.name.as_str()));
    let targets = attaching.flat_map(|package| &package.targets);
    Ok(targets.filter(|target| target.is_test()).map(|target| target.name.clone()).collect())
}

/// Copies a program without what `what` says.
pub(crate) fn strip(what: &str, from: &Path, to: &Path) -> Result<()> {
    let mut strip = Command::new("strip");
    strip.arg(what).arg("-o").arg(to).arg(from);
    work::run("strip a copy", "`cargo xtask setup` installs binutils", &mut strip)
}

/// Makes `to` a copy of a directory.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    copy.args(["--archive", "--reflink=auto", "--no-target-directory"]).arg(from).arg(to);
    work::run("copy the test targets", "is the disk full?", &mut copy)
}

/// Builds drainprof's release binary.
pub(crate) fn drainprof(root: &Path) -> Result<PathBuf> {
    binary(root, "drainprof-daemon", DRAINPROF, &["--release"])
}

/// Builds drainprof as the tests do, which is quicker.
pub(crate) fn drainprof_dev(root: &Path) -> Result<PathBuf> {
    let mut command = work::cargo(root);
    command.arg("build").args(HOST).args(["--bin", DRAINPROF]);
    executable(DRAINPROF, &mut command)
}

/// Builds the release binary of the benchmarks.
pub(crate) fn bench(root: &Path) -> Result<PathBuf> {
    binary(root, BENCH_PACKAGE, BENCH_PACKAGE, &["--release"])
}

/// Builds the benchmarks as the tests are built: for what measures another program alone.
pub(crate) fn bench_dev(root: &Path) -> Result<PathBuf> {
    let mut command = work::cargo(root);
    command.arg("build").args(HOST).args(["--bin", BENCH_PACKAGE]);
    executable(BENCH_PACKAGE, &mut command)
}

/// Builds one binary of a package.
fn binary(root: &Path, package: &str, name: &str, profile: &[&str]) -> Result<PathBuf> {
    let mut command = work::cargo(root);
    command.args(["build", "--locked", "-p", package, "--bin", name]).args(profile);
    executable(name, &mut command)
}

/// Runs a build of one binary; its executable.
pub(crate) fn executable(name: &str, command: &mut Command) -> Result<PathBuf> {
    let messages = build(&format!("build {name}"), command)?;
    let mut artifacts = messages.into_iter().filter_map(|message| match message {
        Message::CompilerArtifact(artifact) if artifact.target.name == name => artifact.executable,
        _ => None,
    });
    artifacts
        .next()
        .map(Into::into)
        .with_context(|| format!("build {name}: cargo named no executable"))
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
    let text = fs::read_to_string(source)?;
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

pub(crate) fn compile(source: &Path, program: &Path, flags: &[&str]) -> Result<()> {
    if is_fresh(program, source) {
        return Ok(());
    }
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-Wall", "-Wextra", "-o"]);
    gcc.arg(program).arg(source).args(flags).arg("-pthread");
    work::run("compile a test target", "`cargo xtask setup` installs gcc", &mut gcc)
}

/// Whether a file was made after its source was changed.
pub(crate) fn is_fresh(made: &Path, source: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|data| data.modified());
    matches!((time(made), time(source)), (Ok(made), Ok(source)) if made > source)
}
