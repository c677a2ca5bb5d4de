//! Builds what the tests run and says where it lies: test binaries, the `drainprof` binary, the C targets.
//!
//! Asks cargo (its JSON messages) instead of guessing paths under `target/`. Called by `test`, `vm`, `demo`.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use cargo_metadata::{Artifact, Message, Metadata, MetadataCommand};

use crate::work;

/// The package with the privileged tests.
pub(crate) const TESTS_PACKAGE: &str = "drainprof-tests";

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
        .other_options(vec!["--locked".to_owned()])
        .exec()
        .context("read the workspace with `cargo metadata --locked`; is Cargo.lock committed and fresh?")
}

/// Where the tasks put what they make: `target/` of the workspace, or `CARGO_TARGET_DIR`.
pub(crate) fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Builds test binaries; `args` say of which packages.
pub(crate) fn tests(root: &Path, args: &[&str]) -> Result<Vec<TestBinary>> {
    let mut command = work::cargo(root);
    command.args(["test", "--no-run", "--locked"]).args(args);
    let artifacts = build("build the tests", &mut command)?;
    Ok(artifacts
        .into_iter()
        .filter(|artifact| artifact.profile.test)
        .filter_map(|artifact| {
            Some(TestBinary {
                directory: artifact.manifest_path.parent()?.into(),
                path: artifact.executable?.into(),
                name: artifact.target.name,
            })
        })
        .collect())
}

/// Builds the release binary.
pub(crate) fn drainprof(root: &Path) -> Result<PathBuf> {
    let mut command = work::cargo(root);
    command.args(["build", "--release", "--locked", "-p", "drainprof-daemon", "--bin", "drainprof"]);
    build("build drainprof", &mut command)?
        .into_iter()
        .filter(|artifact| artifact.target.name == "drainprof")
        .find_map(|artifact| artifact.executable)
        .map(Into::into)
        .context("build drainprof: cargo named no executable; does drainprof-daemon still have it?")
}

/// Runs a cargo build and collects what it made; its diagnostics go to stderr as usual.
fn build(what: &str, command: &mut Command) -> Result<Vec<Artifact>> {
    command.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let line = work::describe(command);
    let mut child =
        command.spawn().with_context(|| format!("{what}: cannot run `{line}`; is cargo on PATH?"))?;
    let output = child.stdout.take().with_context(|| format!("{what}: cargo has no stdout"))?;
    let mut made = Vec::new();
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.context("read cargo's messages")? {
            made.push(artifact);
        }
    }
    let status = child.wait().context("wait for cargo")?;
    if !status.success() {
        bail!("{what} failed: `{line}` ended with {status}; mend what the compiler says above");
    }
    Ok(made)
}

/// Compiles every C program of `tests/targets/` that is newer than its executable; returns their directory.
///
/// A first line `// cc: FLAGS` names flags beyond the common ones.
pub(crate) fn targets(root: &Path) -> Result<PathBuf> {
    let directory = target_dir(root).join("test-targets");
    std::fs::create_dir_all(&directory)
        .with_context(|| format!("create {}", directory.display()))?;
    for source in work::files(&root.join("tests/targets"), "c")? {
        target(&source, &directory)?;
    }
    Ok(directory)
}

/// Compiles one C program into `directory`; returns the executable.
pub(crate) fn target(source: &Path, directory: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(source).with_context(|| format!("read {}", source.display()))?;
    let flags = text.lines().next().and_then(|line| line.strip_prefix("// cc: ")).unwrap_or_default();
    let stem = source.file_stem().with_context(|| format!("{} has no name", source.display()))?;
    let program = directory.join(stem);
    if is_fresh(&program, source) {
        return Ok(program);
    }
    let mut gcc = Command::new("gcc");
    // Frame pointers: the probed functions then begin with a `push`, the cheapest common instruction.
    gcc.args(["-O2", "-g", "-fno-omit-frame-pointer", "-Wall", "-Wextra", "-o"]);
    gcc.arg(&program).arg(source).args(flags.split_whitespace()).arg("-pthread");
    work::run("compile a test target", "`cargo xtask setup` installs gcc", &mut gcc)?;
    Ok(program)
}

fn is_fresh(made: &Path, source: &Path) -> bool {
    let time = |path: &Path| path.metadata().and_then(|data| data.modified());
    matches!((time(made), time(source)), (Ok(made), Ok(source)) if made > source)
}
