//! A process that maps files of a file system whose server has stopped answering: nobody waits for it.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{patience, profile, requires_root, target as program},
    fuse::Hanging,
    gaps::{Gaps, gap},
    node::{Daemon, alone, sum, target},
    target::Target,
    tracer::{Outcome, run_to_end},
};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

/// Longest time for what must not wait.
const PROMPT: Duration = Duration::from_secs(10);

/// A program that has mapped the file of a file system which hangs since.
struct Victim {
    hanging: Hanging,
    target: Target,
    _directory: tempfile::TempDir,
}

impl Victim {
    /// Its program lies on the file system, too, if `whole`.
    fn start(whole: bool) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let hanging = Hanging::mount(directory.path(), fs::read(program("psweep_static")?)?)?;
        let own = if whole { hanging.file() } else { program("psweep")? };
        let mut command = Command::new(own);
        command.args(["closes=500", "stops=1"]).env("DRAINPROF_TEST_MAP", hanging.file());
        let target = Target::start_command("psweep", command)?;
        hanging.hang();
        Ok(Self { hanging, target, _directory: directory })
    }
}

fn closed(state: &Value) -> u64 {
    let outcomes = ["drainable", "pinned", "unknown"];
    outcomes.iter().map(|one| sum(state, "test-arena", one)).sum()
}

/// A daemon meets a process that maps a file of a hung file system: it counts the process to the last close by its own
/// program, goes on with others, and ends when it is told to. Nothing was asked of the server.
#[test]
fn a_file_that_hangs() -> Result<()> {
    if !requires_root() || !Hanging::is_possible() {
        return Ok(());
    }
    let _alone = alone();
    let Victim { hanging, mut target, _directory } = Victim::start(false)?;
    let daemon = Daemon::start(&["arena"], "")?;
    daemon.attached(&[target.pid()])?;
    target.go()?;
    let state = daemon.until("it is counted", |state| closed(state) >= 250)?;
    assert_eq!(state["ready"], true);
    let mut other = Target::start("psweep", &["closes=300"])?;
    daemon.attached(&[other.pid()])?;
    other.go()?;
    other.finish()?;
    let state = daemon.until("both are counted", |state| closed(state) >= 550)?;
    assert_eq!((closed(&state), &state["complete"]), (550, &Value::Bool(true)));
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?} to end", began.elapsed());
    assert_eq!(hanging.unanswered(), Vec::<u32>::new(), "requests of drainprof");
    drop(hanging);
    target.go()?;
    target.go()?;
    target.finish()?;
    Ok(())
}

/// A process whose program itself lies there: nothing is placed in it, which is said with the file, by the daemon and by
/// `attach`; the daemon goes on.
#[test]
fn a_program_that_hangs() -> Result<()> {
    if !requires_root() || !Hanging::is_possible() {
        return Ok(());
    }
    let _alone = alone();
    let victim = Victim::start(true)?;
    let exe = victim.hanging.file();
    let own = format!("select.rules = [{{ action = \"include\", exe = \"{}\" }}]", exe.display());
    let daemon = Daemon::start(&["arena"], &own)?;
    let state = daemon.fresh()?;
    assert_eq!(state["ready"], true);
    let pid = victim.target.pid().to_string();
    let began = Instant::now();
    let Outcome { code, stderr, .. } =
        run_to_end(&["attach", "-p", &pid, "--profile", &profile("arena"), "--dry-run"])?;
    let talk = stderr.join("\n");
    assert_eq!(code, Some(4), "{talk}");
    let said = talk.lines().find(|line| line.contains("FUSE")).context(talk.clone())?;
    assert!(said.contains("lib.so"), "{said}");
    daemon.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?}", began.elapsed());
    assert_eq!(victim.hanging.unanswered(), Vec::<u32>::new(), "requests of drainprof");
    victim.target.kill()?;
    Ok(())
}

/// An overlay over a file system that hangs looks like any container's: whoever reads it is left behind, the file is named,
/// all others are counted, and when the file system answers again or is gone, nothing of it is left.
#[test]
fn an_overlay_that_hangs() -> Result<()> {
    if !requires_root() || !Hanging::is_possible() {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let below = |name: &str| directory.path().join(name);
    for name in ["lower", "empty", "merged"] {
        fs::create_dir(below(name))?;
    }
    let hanging = Hanging::mount(&below("lower"), fs::read(program("psweep_static")?)?)?;
    let layers = format!("lowerdir={}:{}", below("lower").display(), below("empty").display());
    let overlay = Mounted::overlay(below("merged"), &layers)?;
    let mut command = Command::new(program("psweep")?);
    command.args(["closes=500", "stops=1"]).env("DRAINPROF_TEST_MAP", overlay.0.join("lib.so"));
    let mut target = Target::start_command("psweep", command)?;
    hanging.hang();
    let daemon = Daemon::start(&["arena"], "")?;
    daemon.attached(&[target.pid()])?;
    let hangs = |state: &Value| {
        let all = state["degraded"].as_array().into_iter().flatten();
        all.filter_map(Value::as_str).any(|one| one.contains("lib.so") && one.contains("answer"))
    };
    daemon.until("it says which file hangs", hangs)?;
    target.go()?;
    let mut other = Target::start("psweep", &["closes=300"])?;
    daemon.attached(&[other.pid()])?;
    other.go()?;
    other.finish()?;
    let state = daemon.until("both are counted", |state| closed(state) >= 550)?;
    assert_eq!((closed(&state), &state["complete"]), (550, &Value::Bool(true)));
    drop(hanging);
    daemon.until("nothing hangs any more", |state| !hangs(state))?;
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?} to end", began.elapsed());
    target.kill()?;
    Ok(())
}

/// Overlays that hang, and one whose server answers slowly: the daemon's loop reads none of them itself, and waits for none.
#[test]
fn the_loop_goes_on() -> Result<()> {
    if !requires_root() || !Hanging::is_possible() {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    let mut layers = Vec::new();
    for name in ["a", "b", "slow"] {
        let below = |kind: &str| directory.path().join(format!("{name}-{kind}"));
        for kind in ["lower", "empty", "merged"] {
            fs::create_dir(below(kind))?;
        }
        let hanging = Hanging::mount(&below("lower"), fs::read(program("psweep_static")?)?)?;
        let lower = format!("lowerdir={}:{}", below("lower").display(), below("empty").display());
        let overlay = Mounted::overlay(below("merged"), &lower)?;
        // Dropped in this order: the end of the server lets go of all that waits.
        layers.push((hanging, overlay));
    }
    let file = |at: usize| layers[at].1.0.join("lib.so");
    let started = |files: &[PathBuf]| {
        let mut command = Command::new(program("psweep")?);
        command.arg("closes=500").env("DRAINPROF_TEST_MAP", std::env::join_paths(files)?);
        Target::start_command("psweep", command)
    };
    let daemon = Daemon::start(&["arena"], "")?;
    let gaps = Gaps::of(&daemon);
    let (mut hung, slow) = (started(&[file(0), file(1)])?, started(&[file(2)])?);
    layers[0].0.hang();
    layers[1].0.hang();
    layers[2].0.slow(Duration::from_millis(700));
    // What hangs is left out of the plan; what is slow is waited for, beside the loop.
    daemon.attached(&[hung.pid()])?;
    hung.go()?;
    hung.finish()?;
    let pid = slow.pid();
    let sentence = format!("process {pid} has no probes for now: ");
    daemon.until("the slow one is observed or named", |state| {
        let all = state["degraded"].as_array().into_iter().flatten();
        let named = all.filter_map(Value::as_str).any(|one| one.starts_with(&sentence));
        named || target(state, pid).is_some_and(|one| one["level"] == "boundary")
    })?;
    let state = daemon.until("it is counted", |state| closed(state) >= 500)?;
    assert_eq!((closed(&state), &state["complete"]), (500, &Value::Bool(true)));
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    // The kernel keeps a process whose threads wait for such a file.
    drop(layers);
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?} to end", began.elapsed());
    slow.kill()?;
    Ok(())
}

/// An overlay; unmounted when dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn overlay(place: PathBuf, options: &str) -> Result<Self> {
        let kind = Some("overlay");
        mount(kind, &place, kind, MsFlags::MS_RDONLY, Some(options))
            .context("cannot mount an overlay")?;
        Ok(Self(place))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}
