//! Processes whose root directory is a trap: what their files, links and debug links name is never opened unless it is a
//! regular file inside of that root.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use anyhow::{Context as _, Result, ensure};
use drainprof_tests::{
    elf::build_id,
    environment::{has_programs, profile, requires_root, target as program},
    target::Target,
    tracer::{Traced, Tracer, run_to_end},
    watch::Watch,
};
use nix::{
    sys::stat::{Mode, SFlag, makedev, mknod},
    unistd::mkfifo,
};
use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Runs a tool.
fn run(name: &str, args: &[&Path]) -> Result<()> {
    let status = Command::new(name).args(args).status()?;
    ensure!(status.success(), "{name} {args:?}: {status}");
    Ok(())
}

/// A directory that becomes a root, with the program `bin/svc` whose symbols are in a debug file outside of it.
struct Trap {
    directory: tempfile::TempDir,
    root: PathBuf,
    /// The debug file, outside of the root.
    outside: PathBuf,
}

impl Trap {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (root, outside) = (directory.path().join("root"), directory.path().join("svc.debug"));
        for below in ["bin/.debug", "usr/lib/debug/bin"] {
            fs::create_dir_all(root.join(below))?;
        }
        let whole = program("psweep_static")?;
        run("objcopy", &[Path::new("--only-keep-debug"), &whole, &outside])?;
        let link = format!("--add-gnu-debuglink={}", outside.display());
        let strip = Path::new("--strip-all");
        run("objcopy", &[strip, Path::new(&link), &whole, &root.join("bin/svc")])?;
        Ok(Self { directory, root, outside })
    }

    /// Where a debug file is looked for by the build id.
    fn by_id(&self) -> Result<PathBuf> {
        let id = build_id(&self.root.join("bin/svc"))?;
        let directory = self.root.join("usr/lib/debug/.build-id").join(&id[..2]);
        fs::create_dir_all(&directory)?;
        Ok(directory.join(format!("{}.debug", &id[2..])))
    }

    /// Starts the program in its root, and in mounts of its own.
    fn start(&self) -> Result<Target> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "chroot"]).arg(&self.root).args(["/bin/svc", "closes=300"]);
        Target::start_command("svc", command)
    }
}

/// What `attach --dry-run` says of a process.
fn plan(pid: u32) -> Result<(Option<i32>, String)> {
    let pid = pid.to_string();
    let found = run_to_end(&["attach", "-p", &pid, "--profile", &profile("arena"), "--dry-run"])?;
    Ok((found.code, found.talk()))
}

/// Debug links and build ids that lead to a pipe, to a device, and out of the root by absolute and relative links and
/// through `/proc`: nothing of it is opened. A debug file inside of the root is.
#[test]
fn debug_files_stay_inside() -> Result<()> {
    if !requires_root() || !has_programs(&["objcopy", "unshare", "chroot"]) {
        return Ok(());
    }
    let trap = Trap::new()?;
    let (pipe, device) =
        (trap.root.join("bin/svc.debug"), trap.root.join("usr/lib/debug/bin/svc.debug"));
    mkfifo(&pipe, Mode::S_IRWXU)?;
    // /dev/zero: endless, were it read.
    mknod(&device, SFlag::S_IFCHR, Mode::S_IRWXU, makedev(1, 5))?;
    symlink(&trap.outside, trap.root.join("bin/.debug/svc.debug"))?;
    let by_id = trap.by_id()?;
    let above = format!("{}{}", "../".repeat(30), trap.outside.strip_prefix("/")?.display());
    symlink(above, &by_id)?;
    let watch = Watch::over(&[&pipe, &device, &trap.outside])?;
    let mut target = trap.start()?;
    let (code, talk) = plan(target.pid())?;
    assert_eq!(watch.opened()?, Vec::<String>::new(), "{talk}");
    assert!(code == Some(4) && talk.contains("no debug file at"), "{code:?} {talk}");

    // Through the links of /proc that lead anywhere.
    fs::remove_file(&by_id)?;
    fs::create_dir(trap.root.join("proc"))?;
    let way = format!("/proc/{}/root{}", std::process::id(), trap.outside.display());
    symlink(&way, &by_id)?;
    let (code, talk) = plan(target.pid())?;
    assert_eq!((watch.opened()?, code), (Vec::new(), Some(4)), "{talk}");

    // A link that stays inside, and a file: that is taken, and seen by the watch.
    fs::remove_file(&by_id)?;
    let inside = trap.root.join("inside.debug");
    fs::copy(&trap.outside, &inside)?;
    symlink("/inside.debug", &by_id)?;
    let watch = Watch::over(&[&pipe, &device, &trap.outside, &inside])?;
    let (code, talk) = plan(target.pid())?;
    assert_eq!(code, Some(0), "{talk}");
    let opened = watch.opened()?;
    assert!(
        !opened.is_empty() && opened.iter().all(|file| file.ends_with("inside.debug")),
        "{opened:?}"
    );
    target.go()?;
    target.finish()?;
    Ok(())
}

/// A program whose path becomes, again and again, a link to another one outside of the root: probes are placed in the
/// program that runs, or refused, and the other one is never opened.
#[test]
fn paths_that_change_meanwhile() -> Result<()> {
    if !requires_root() || !has_programs(&["objcopy", "unshare", "chroot"]) {
        return Ok(());
    }
    let trap = Trap::new()?;
    let (own, other) = (trap.root.join("bin/svc"), trap.root.join("bin/other"));
    fs::copy(program("psweep_static")?, &own)?;
    let outside = trap.directory.path().join("outside");
    fs::copy(&own, &outside)?;
    symlink(&outside, &other)?;
    let watch = Watch::over(&[&outside])?;
    let mut exact = 0;
    for _ in 0..4 {
        let mut target = trap.start()?;
        let stop = Arc::new(AtomicBool::new(false));
        let racer = {
            let (own, other, stop) = (own.clone(), other.clone(), Arc::clone(&stop));
            thread::spawn(move || {
                for round in 0..2_000_000_u64 {
                    // At an even number of exchanges all is as it was.
                    if round % 2 == 0 && stop.load(Ordering::Relaxed) {
                        break;
                    }
                    renameat_with(CWD, &own, CWD, &other, RenameFlags::EXCHANGE)?;
                }
                Ok::<_, rustix::io::Errno>(())
            })
        };
        let tracer = Tracer::attach(&[target.pid()], "arena", &["--level", "objects"]);
        stop.store(true, Ordering::Relaxed);
        racer.join().ok().context("the racer panics")??;
        target.go()?;
        let truths = target.finish()?.truths;
        if let Ok(tracer) = tracer {
            Traced { truths, outcome: tracer.finish()? }.exact();
            exact += 1;
        }
        assert_eq!(watch.opened()?, Vec::<String>::new());
    }
    println!("{exact} of 4 were attached to");
    assert!(exact > 0, "none was attached to");
    Ok(())
}
