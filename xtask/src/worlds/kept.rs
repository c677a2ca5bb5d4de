//! What is kept between runs: roots of other distributions, and toolchains of Go.
//!
//! The place is the user's cache directory, so that a fresh clone has them as well. A root is used by any number of runs
//! at once, and made by one. `mmdebstrap` makes it from the archive that this machine's apt uses, with that apt's proxies.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use fs_err as fs;
use nix::fcntl::{Flock, FlockArg};

use super::world::World;
use crate::{vm::Archive, work};

/// A root is taken for what its suite has for this time.
const FRESH_TIME: Duration = Duration::from_secs(7 * DAY_SECONDS);

/// An older one is used up to this age where none can be made.
const USABLE_TIME: Duration = Duration::from_secs(30 * DAY_SECONDS);

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// No root takes longer to make, in seconds.
const MAKE_SECONDS: &str = "900";

/// What `timeout` ends with where the time was not enough.
const TIMED_OUT: i32 = 124;

/// One run waits this long for another that makes the same root.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1000);

/// The time between two attempts.
const LOCK_INTERVAL: Duration = Duration::from_millis(500);

/// For the quick third: a library to preload, an interpreter, servers.
const QUICK_PACKAGES: [&str; 4] = ["libjemalloc2", "nginx-light", "python3", "redis-server"];

/// Libraries that are called otherwise in Debian 12.
const NEWER_PACKAGES: [&str; 2] = ["libmimalloc3", "libtcmalloc-minimal4t64"];
const OLDER_PACKAGES: [&str; 2] = ["libmimalloc2.0", "libtcmalloc-minimal4"];

/// For the rest: debug files, compilers, other interpreters and servers.
const OTHER_PACKAGES: [&str; 12] = [
    "bind9",
    "gcc",
    "golang-go",
    "libc6-dbg",
    "libc6-dev",
    "libstdc++6",
    "mariadb-server",
    "musl",
    "musl-dev",
    "musl-tools",
    "postgresql",
    "ruby",
];

/// Where all is kept; without a home, `fallback`.
pub(super) fn place(fallback: &Path) -> PathBuf {
    let set = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    cache.map_or_else(|| fallback.to_owned(), |cache| cache.join("drainprof-worlds"))
}

/// A root, which no other run replaces as long as this value is there.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) path: PathBuf,
    _lock: Flock<File>,
}

/// The root of a suite: the kept one if it is fresh, else a new one, else an old one.
pub(super) fn root(cache: &Path, world: World, all: bool) -> Result<Kept> {
    let slot = Slot::new(cache, world, all)?;
    let shared = lock(&slot.lock, FlockArg::LockSharedNonblock)?;
    if slot.is_fresh() {
        return Ok(slot.kept(shared));
    }
    drop(shared);
    let alone = match slot.age() {
        // Another run uses it: it is not replaced under that one's feet.
        Some(age) if age < USABLE_TIME => try_lock(&slot.lock, FlockArg::LockExclusiveNonblock)?,
        _ => Some(lock(&slot.lock, FlockArg::LockExclusiveNonblock)?),
    };
    let made = match &alone {
        Some(_) if slot.is_fresh() => Ok(()),
        Some(_) => slot.make(world),
        None => Err(anyhow::anyhow!("another run uses the root")),
    };
    drop(alone);
    if let Err(error) = made {
        let Some(age) = slot.age().filter(|age| *age < USABLE_TIME) else { return Err(error) };
        let days = age.as_secs() / DAY_SECONDS;
        println!("old: {} is that of {days} days ago: {error}", world.distribution());
    }
    let shared = lock(&slot.lock, FlockArg::LockSharedNonblock)?;
    Ok(slot.kept(shared))
}

/// Where a root lies, and what must be in it.
struct Slot {
    name: String,
    path: PathBuf,
    /// When it was made, and of which packages.
    stamp: PathBuf,
    lock: PathBuf,
    /// What apt says of the suite.
    lists: PathBuf,
    packages: Vec<&'static str>,
}

impl Slot {
    fn new(cache: &Path, world: World, all: bool) -> Result<Self> {
        fs::create_dir_all(cache)?;
        let name = format!("{}-{}", world.name(), if all { "all" } else { "quick" });
        let named = if world == World::Bookworm { OLDER_PACKAGES } else { NEWER_PACKAGES };
        let more = if all { &OTHER_PACKAGES[..] } else { &[] };
        Ok(Self {
            path: cache.join(&name),
            stamp: cache.join(format!("{name}.stamp")),
            lock: cache.join(format!("{name}.lock")),
            lists: cache.join(format!("{name}.lists")),
            packages: QUICK_PACKAGES.iter().chain(&named).chain(more).copied().collect(),
            name,
        })
    }

    fn kept(self, lock: Flock<File>) -> Kept {
        work::note(format!("root {}: {}", self.name, self.path.display()));
        Kept { path: self.path, _lock: lock }
    }

    /// How old the root is; `None` if there is none of these packages.
    fn age(&self) -> Option<Duration> {
        let wanted = self.packages.join(",");
        if !self.path.is_dir() || fs::read_to_string(&self.stamp).ok()? != wanted {
            return None;
        }
        let made = self.stamp.metadata().ok()?.modified().ok()?;
        Some(SystemTime::now().duration_since(made).unwrap_or_default())
    }

    fn is_fresh(&self) -> bool {
        self.age().is_some_and(|age| age < FRESH_TIME)
    }

    /// Makes the root beside the old one, then takes its place. What has failed is named: the archive, or the packages.
    fn make(&self, world: World) -> Result<()> {
        work::step(format!("worlds: make {} of {} packages", self.name, self.packages.len()));
        let fresh = self.path.with_extension("new");
        let made = self.mmdebstrap(world, &fresh);
        if let Err(error) = made {
            let archive = Archive::of_suite(&self.lists, world.name())
                .and_then(|archive| archive.update().map(|()| archive))
                .context("the archive is not reachable")?;
            let lacking = archive.lacking(&self.packages)?;
            if !lacking.is_empty() {
                bail!("{} has no {}: {error}", world.distribution(), lacking.join(", "));
            }
            return Err(error.context("the archive is reachable, but makes no root"));
        }
        remove(&self.path)?;
        let mut rename = work::as_root("mv", &[]);
        work::run("name the root", "is the disk full?", rename.arg(&fresh).arg(&self.path))?;
        fs::write(&self.stamp, self.packages.join(","))?;
        Ok(())
    }

    fn mmdebstrap(&self, world: World, fresh: &Path) -> Result<()> {
        remove(fresh)?;
        let address = Archive::of_suite(&self.lists, world.name())?.address;
        let options = self.lists.join("machine.conf");
        fs::write(&options, Archive::options_of_machine()?)?;
        // What is mounted in the root is gone with the namespace, even if the time was not enough.
        let mut make = work::as_root("unshare", &[]);
        make.args(["--mount", "--", "timeout", "-k", "30", MAKE_SECONDS, "mmdebstrap"]);
        make.args(["--variant=minbase", "--quiet", "--architectures=amd64"]);
        make.arg(format!("--aptopt={}", options.display()));
        // A mirror's copy of unstable may be older than its own date allows.
        make.args(["--aptopt=Acquire::Check-Valid-Until \"false\""]);
        make.args(["--aptopt=APT::Install-Recommends \"false\"", "--dpkgopt=force-unsafe-io"]);
        make.arg(format!("--include={}", self.packages.join(","))).arg(world.name()).arg(fresh);
        make.arg(format!("deb {address} {} main", world.name())).stdout(std::io::stderr());
        let line = work::describe(&make);
        let status = make.status().with_context(|| format!("run `{line}`"))?;
        match status.code() {
            Some(0) => Ok(()),
            Some(TIMED_OUT) => bail!("making the root took more than {MAKE_SECONDS} s"),
            _ => bail!("make a root failed: `{line}` ended with {status}"),
        }
    }
}

/// Waits for a lock, but not for ever.
pub(super) fn lock(path: &Path, kind: FlockArg) -> Result<Flock<File>> {
    let until = Instant::now() + LOCK_TIMEOUT;
    loop {
        if let Some(lock) = try_lock(path, kind)? {
            return Ok(lock);
        }
        if Instant::now() >= until {
            bail!("another run has had {} for too long", path.display());
        }
        thread::sleep(LOCK_INTERVAL);
    }
}

/// Takes a lock that does not block.
fn try_lock(path: &Path, kind: FlockArg) -> Result<Option<Flock<File>>> {
    let file = File::create(path).with_context(|| format!("create {}", path.display()))?;
    match Flock::lock(file, kind) {
        Ok(lock) => Ok(Some(lock)),
        Err((_, nix::errno::Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error).with_context(|| format!("lock {}", path.display())),
    }
}

fn remove(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    let mut remove = work::as_root("rm", &[]);
    remove.args(["-rf", "--one-file-system"]).arg(path);
    work::run("remove an old root", "remove it by hand", &mut remove)
}

#[cfg(test)]
mod tests {
    use nix::fcntl::FlockArg;

    use super::{Slot, World, lock, try_lock};

    /// A root is fresh if its stamp names the packages that are wanted; none is made under the feet of another run.
    #[test]
    fn roots_are_kept() {
        let cache = tempfile::tempdir().unwrap();
        let slot = |all| Slot::new(cache.path(), World::Sid, all).unwrap();
        let (quick, all) = (slot(false), slot(true));
        assert!(!quick.is_fresh());
        for slot in [&quick, &all] {
            std::fs::create_dir(&slot.path).unwrap();
            std::fs::write(&slot.stamp, quick.packages.join(",")).unwrap();
        }
        assert!(quick.is_fresh() && all.age().is_none());
        let shared = [(); 2].map(|()| lock(&quick.lock, FlockArg::LockSharedNonblock).unwrap());
        let alone = |slot: &Slot| try_lock(&slot.lock, FlockArg::LockExclusiveNonblock).unwrap();
        assert!(alone(&quick).is_none() && alone(&all).is_some());
        drop(shared);
        assert!(alone(&quick).is_some());
    }
}
