//! The worlds: this machine, and roots of other distributions, which `kept` makes and keeps.
//!
//! Programs run in a root by `chroot`, without a network: servers listen on sockets in a directory of this run, which is
//! removed at its end.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use fs_err as fs;

use super::kept::{self, Kept};
use super::world::World;
use crate::work;

/// What making a root and entering it takes.
pub(super) const PACKAGES: [&str; 2] = ["mmdebstrap", "util-linux"];

/// A world that is ready, and what a case puts there.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) world: World,
    /// `/` on this machine.
    pub(super) path: PathBuf,
    /// The directory for sockets and programs, from outside; it is removed with this value.
    pub(super) scratch: PathBuf,
    /// The same, from inside.
    pub(super) inside: PathBuf,
    /// Keeps it from being replaced; this machine needs none.
    _kept: Option<Kept>,
}

impl Drop for Root {
    fn drop(&mut self) {
        let mut remove = work::as_root("rm", &[]);
        remove.args(["-rf", "--one-file-system"]).arg(&self.scratch);
        if let Err(error) =
            work::run("remove this run's programs", "remove it by hand", &mut remove)
        {
            work::note(format!("{error:#}"));
        }
    }
}

impl Root {
    /// Makes a world ready; with `all`, for all cases.
    pub(super) fn prepare(cache: &Path, world: World, all: bool) -> Result<Self> {
        // The paths of sockets must be short.
        let inside = Path::new("/tmp").join(format!("drainprof-worlds-{}", std::process::id()));
        let (path, kept) = if world == World::Host {
            (PathBuf::from("/"), None)
        } else {
            let kept = kept::root(cache, world, all)?;
            (kept.path.clone(), Some(kept))
        };
        Self::with_scratch(world, path, inside, kept)
    }

    /// The same world with a directory of its own: cases run at the same time.
    pub(super) fn apart(&self, name: &str) -> Result<Self> {
        Self::with_scratch(self.world, self.path.clone(), self.inside.join(name), None)
    }

    fn with_scratch(
        world: World,
        path: PathBuf,
        inside: PathBuf,
        kept: Option<Kept>,
    ) -> Result<Self> {
        let scratch = path.join(inside.strip_prefix("/")?);
        // Servers drop their privileges, and need it all the same.
        work::run(
            "make a directory for programs",
            "is the disk full?",
            work::as_root("install", &[]).args(["-d", "-m", "1777"]).arg(&scratch),
        )?;
        Ok(Self { world, path, scratch, inside, _kept: kept })
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
        let mut words = self.words(user, program).into_iter();
        let mut command = work::as_root(words.next().unwrap_or_default(), &[]);
        command.args(words);
        command
    }

    /// The same, for a program that is root already.
    pub(super) fn words<S: AsRef<OsStr>>(&self, user: Option<&str>, program: S) -> Vec<OsString> {
        let mut words: Vec<OsString> = ["unshare", "--net", "--", "chroot"].map(Into::into).into();
        words.extend(user.map(|user| format!("--userspec={user}").into()));
        words.push(self.path.clone().into());
        words.extend(
            ["/usr/bin/env", "-i", "HOME=/tmp", "LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
                .map(Into::into),
        );
        words.push(program.as_ref().to_owned());
        words
    }

    /// The upstream version of the first of some Debian packages that the world has.
    pub(super) fn version(&self, packages: &[&str]) -> Result<String> {
        let mut query = Command::new("dpkg-query");
        query.arg(format!("--admindir={}", self.outside("/var/lib/dpkg").display()));
        query.args(["-W", "-f", "${db:Status-Status} ${Version}\n"]).args(packages);
        // It fails when any package is unknown, and still lists the others.
        let output = query.output().context("ask dpkg-query for a version")?;
        let listed = String::from_utf8_lossy(&output.stdout).into_owned();
        let version = listed.lines().find_map(|line| line.strip_prefix("installed "));
        let version =
            version.with_context(|| format!("{} is not installed", packages.join(" or ")))?;
        let version = version.split_once(':').map_or(version, |(_, rest)| rest);
        Ok(version.split(['-', '+', '~']).next().unwrap_or_default().to_owned())
    }
}
