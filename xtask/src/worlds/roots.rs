//! The worlds: this machine, and roots of other distributions, made by `mmdebstrap` from this machine's mirror.
//!
//! A root is kept below the target directory, and made anew when it is old or its list of packages has changed. Programs
//! run in it by `chroot`, without a network: servers listen on sockets in [`SCRATCH`].

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};

use crate::{packages, vm, work};

/// What making a root and entering it takes.
const PACKAGES: [&str; 2] = ["mmdebstrap", "util-linux"];

/// So long a root is taken for what its suite has.
const FRESH: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// In a root: what is put there, and sockets, whose paths must be short.
const SCRATCH: &str = "tmp/worlds";

/// For the quick third: libraries to preload, an interpreter, a server.
const QUICK: [&str; 6] = [
    "libjemalloc2",
    "libmimalloc3",
    "libtcmalloc-minimal4t64",
    "nginx-light",
    "python3",
    "redis-server",
];

/// For the rest: debug files, compilers, other interpreters and servers.
const MORE: [&str; 9] = [
    "gcc",
    "golang-go",
    "libc6-dbg",
    "libc6-dev",
    "musl",
    "musl-dev",
    "musl-tools",
    "postgresql",
    "ruby",
];

/// A distribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum World {
    /// This machine.
    Host,
    /// Debian 13.
    Trixie,
    /// Debian unstable, whose versions change.
    Sid,
}

/// All worlds, in the order of the run.
pub(super) const WORLDS: [World; 3] = [World::Host, World::Trixie, World::Sid];

impl World {
    /// What `--world` takes.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Trixie => "trixie",
            Self::Sid => "sid",
        }
    }

    /// As the page names it.
    pub(super) fn distribution(self) -> String {
        match self {
            Self::Host => host_distribution(),
            Self::Trixie => "Debian 13".to_owned(),
            Self::Sid => "Debian unstable".to_owned(),
        }
    }
}

/// The name and version of this machine's distribution.
fn host_distribution() -> String {
    let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    match (value("ID").as_deref(), value("VERSION_ID")) {
        (Some("debian"), Some(version)) => format!("Debian {version}"),
        (Some(id), version) => format!("{id} {}", version.unwrap_or_default()).trim().to_owned(),
        (None, _) => "this machine".to_owned(),
    }
}

/// A world that is ready.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) world: World,
    /// `/` on this machine.
    pub(super) path: PathBuf,
    /// The directory for sockets and programs, from outside.
    pub(super) scratch: PathBuf,
    /// The same, from inside.
    pub(super) inside: PathBuf,
}

impl Root {
    /// Makes a world ready; with `all`, for all cases.
    pub(super) fn prepare(directory: &Path, world: World, all: bool) -> Result<Self> {
        packages::install(&PACKAGES, "to run programs of other distributions")?;
        let (path, scratch, inside) = if world == World::Host {
            let scratch = directory.join("host");
            (PathBuf::from("/"), scratch.clone(), scratch)
        } else {
            let path = kept(directory, world, all)?;
            let scratch = path.join(SCRATCH);
            (path, scratch, Path::new("/").join(SCRATCH))
        };
        // Servers drop their privileges, and need it all the same.
        work::run(
            "make a directory for programs",
            "is the disk full?",
            work::as_root("install", &[]).args(["-d", "-m", "1777"]).arg(&scratch),
        )?;
        Ok(Self { world, path, scratch, inside })
    }

    /// Copies a file into the world; its path there.
    pub(super) fn put(&self, file: &Path) -> Result<PathBuf> {
        let name = file.file_name().with_context(|| format!("{} has no name", file.display()))?;
        let mut install = work::as_root("install", &[]);
        install.args(["-m", "0755"]).arg(file).arg(&self.scratch);
        work::run("copy a program into a root", "is the disk full?", &mut install)?;
        Ok(self.inside.join(name))
    }

    /// Where a path of the world lies, from outside; links are followed by their names alone.
    pub(super) fn outside(&self, path: &str) -> PathBuf {
        self.path.join(path.trim_start_matches('/'))
    }

    /// Whether the world has a program.
    pub(super) fn has(&self, program: &str) -> bool {
        self.outside(program).symlink_metadata().is_ok()
    }

    /// The path in the world of a library whose name begins so; of several, the shortest.
    pub(super) fn library(&self, prefix: &str) -> Option<String> {
        let directory = "/usr/lib/x86_64-linux-gnu";
        let entries = fs::read_dir(self.outside(directory)).ok()?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let name = names.filter(|name| name.starts_with(prefix)).min_by_key(String::len)?;
        Some(format!("{directory}/{name}"))
    }

    /// A command that runs a program of the world without a network, as root or as `user`.
    pub(super) fn command<S: AsRef<OsStr>>(&self, user: Option<&str>, program: S) -> Command {
        let mut command = work::as_root("unshare", &[]);
        command.args(["--net", "--", "chroot"]);
        if let Some(user) = user {
            command.arg(format!("--userspec={user}"));
        }
        command.arg(&self.path).args(["/usr/bin/env", "-i", "HOME=/tmp", "LC_ALL=C"]);
        command.arg("PATH=/usr/sbin:/usr/bin:/sbin:/bin").arg(program);
        command
    }
}

/// The root of a suite: the kept one if it is fresh.
fn kept(directory: &Path, world: World, all: bool) -> Result<PathBuf> {
    let name = format!("{}-{}", world.name(), if all { "all" } else { "quick" });
    let (path, stamp) = (directory.join(&name), directory.join(format!("{name}.stamp")));
    let wanted: Vec<_> = QUICK.iter().chain(if all { &MORE[..] } else { &[] }).copied().collect();
    let list = wanted.join(",");
    let is_kept = path.is_dir() && fs::read_to_string(&stamp).is_ok_and(|text| text == list);
    let age = stamp.metadata().and_then(|data| data.modified()).ok();
    let age = age.and_then(|made| SystemTime::now().duration_since(made).ok());
    if is_kept && age.is_some_and(|age| age < FRESH) {
        work::note(format!("root {name}: kept in {}", path.display()));
        return Ok(path);
    }
    work::step(format!("worlds: make the root {name} with {} packages", wanted.len()));
    match make(&path, world, &list) {
        Ok(()) => fs::write(&stamp, list).with_context(|| format!("write {}", stamp.display()))?,
        Err(error) if is_kept => work::note(format!("the older root is used: {error:#}")),
        Err(error) => return Err(error),
    }
    Ok(path)
}

/// Makes a root beside the kept one, then takes its place.
fn make(path: &Path, world: World, list: &str) -> Result<()> {
    let fresh = path.with_extension("new");
    remove(&fresh)?;
    let address = vm::address_of_machine()?;
    let mut make = work::as_root("mmdebstrap", &[]);
    make.args(["--variant=minbase", "--quiet", "--architectures=amd64"]);
    // A mirror's copy of unstable may be older than its own date allows.
    make.args(["--aptopt=Acquire::Check-Valid-Until \"false\""]);
    make.args(["--aptopt=APT::Install-Recommends \"false\""]).arg(format!("--include={list}"));
    make.arg(world.name()).arg(&fresh);
    make.arg(format!("deb {address} {} main", world.name())).stdout(std::io::stderr());
    work::run("make a root", "check that Debian's archive is reachable", &mut make)?;
    remove(path)?;
    let mut rename = work::as_root("mv", &[]);
    work::run("name the root", "is the disk full?", rename.arg(&fresh).arg(path))
}

fn remove(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let mut remove = work::as_root("rm", &[]);
    remove.args(["-rf", "--one-file-system"]).arg(path);
    work::run("remove an old root", "remove it by hand", &mut remove)
}
