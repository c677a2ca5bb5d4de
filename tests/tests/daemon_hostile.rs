//! The daemon where things go wrong around it: processes without number, a disk that is full, files that are damaged or
//! from elsewhere, kernel interfaces that are not there. It says so, does what it still can, and does not grow.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::Result;
use drainprof_tests::{
    environment::{has_programs, requires_root},
    http::until,
    node::{Daemon, GROWTH, alone, configure, descriptors, resident, sum, target},
    target::Target,
};
use nix::sys::signal::Signal;
use serde_json::Value;

fn closed(state: &Value) -> u64 {
    let counts = ["drainable", "pinned", "unknown"];
    counts.iter().map(|count| sum(state, "test-arena", count)).sum()
}

/// Processes with probes.
fn watched(state: &Value) -> usize {
    let matched = |target: &&Value| target["matched"] == true;
    state["targets"].as_array().map_or(0, |all| all.iter().filter(matched).count())
}

/// Whether the state says, in one of its sentences, that something cannot be done.
fn degraded(state: &Value, why: &str) -> bool {
    let all = state["degraded"].as_array().into_iter().flatten();
    all.filter_map(Value::as_str).any(|one| one.contains(why))
}

/// A thousand children at once: as many are watched as may be, the parent's counts are exact, and when they have gone
/// nothing of them is left.
#[test]
fn a_thousand_children_at_once() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "select.max_targets = 20")?;
    let mut swarm = Target::start("swarm", &["children=1000", "stops=1"])?;
    let parent = swarm.pid();
    daemon.attached(&[parent])?;
    let before = (resident(daemon.pid())?, descriptors(daemon.pid())?);
    swarm.go()?;
    swarm.reaches("made")?;
    let state = daemon.until("as many are watched as may be", |state| watched(state) >= 20)?;
    assert_eq!(watched(&state), 20);
    assert!(target(&state, parent).is_some(), "who was there first stays");
    swarm.go()?;
    swarm.reaches("end")?;
    let state = daemon.until("the children are gone", |state| watched(state) == 1)?;
    assert!(target(&state, parent).is_some());
    let state = daemon.until("the parent is counted", |state| {
        closed(state) >= 20 || state["complete"] == false
    })?;
    assert_eq!((closed(&state), sum(&state, "test-arena", "opened")), (20, 20));
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    let pid = daemon.pid();
    until("the descriptors are back", || Ok(descriptors(pid)? <= before.1))?;
    let after = resident(pid)?;
    assert!(after < before.0 + GROWTH, "{} bytes resident before, {after} after", before.0);
    swarm.go()?;
    swarm.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A thousand children one after the other, each of which is gone in a moment: with probes on the files, every close of
/// each of them is counted.
#[test]
fn a_thousand_children_in_turn() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    // It is there first: of a program's first process, a daemon that was there before could not know what it missed.
    let mut swarm = Target::start("swarm", &["mode=brief", "children=1000", "stops=1"])?;
    let daemon = Daemon::start(&["arena"], "daemon.attach = \"file\"")?;
    daemon.attached(&[swarm.pid()])?;
    let before = (resident(daemon.pid())?, descriptors(daemon.pid())?);
    swarm.go()?;
    swarm.reaches("made")?;
    swarm.go()?;
    swarm.reaches("end")?;
    let closes = 20 * 1001;
    let state = daemon.until("all are counted", |state| closed(state) >= closes)?;
    assert_eq!((closed(&state), sum(&state, "test-arena", "opened")), (closes, closes));
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    let state = daemon.until("only the parent is left", |state| watched(state) == 1)?;
    assert!(target(&state, swarm.pid()).is_some());
    let pid = daemon.pid();
    until("the descriptors are back", || Ok(descriptors(pid)? <= before.1))?;
    let after = resident(pid)?;
    assert!(after < before.0 + GROWTH, "{} bytes resident before, {after} after", before.0);
    swarm.go()?;
    swarm.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A process that executes itself again and again is one process all the time, and is looked at once it stays.
#[test]
fn execs_without_end() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    let first = Target::start("psweep", &["closes=10"])?;
    daemon.attached(&[first.pid()])?;
    let before = (resident(daemon.pid())?, descriptors(daemon.pid())?);
    // It says that it is ready when it has done all but the last.
    let mut swarm = Target::start("swarm", &["mode=exec", "children=500", "closes=50"])?;
    daemon.attached(&[swarm.pid()])?;
    // Programs before the last one were counted while the process had its probes already.
    let state = daemon.fresh()?;
    let same = |one: &&Value| one["pid"].as_u64() == Some(u64::from(swarm.pid()));
    assert_eq!(state["targets"].as_array().map(|all| all.iter().filter(same).count()), Some(1));
    let counted = closed(&state);
    swarm.go()?;
    swarm.finish()?;
    let state = daemon.until("the last one is counted", |state| closed(state) >= counted + 50)?;
    assert_eq!(closed(&state), counted + 50);
    let pid = daemon.pid();
    until("the descriptors are back", || Ok(descriptors(pid)? <= before.1))?;
    let after = resident(pid)?;
    assert!(after < before.0 + GROWTH, "{} bytes resident before, {after} after", before.0);
    first.kill()?;
    daemon.finish()?;
    Ok(())
}

/// A service under a daemon without a history: it is counted, to the last close.
fn counts_all_the_same(daemon: &Daemon) -> Result<()> {
    let mut sweep = Target::start("psweep", &["closes=700"])?;
    daemon.attached(&[sweep.pid()])?;
    let before = closed(&daemon.state()?);
    sweep.go()?;
    sweep.finish()?;
    let state = daemon.until("it is counted", |state| closed(state) >= before + 700)?;
    assert_eq!(closed(&state), before + 700);
    assert_eq!(state["complete"], true, "{}", state["losses"]);
    Ok(())
}

/// Changes the version in the header of a history.
fn of_a_later_version(path: &Path) -> Result<()> {
    let mut bytes = fs::read(path)?;
    bytes[60..64].copy_from_slice(&7u32.to_be_bytes());
    Ok(fs::write(path, bytes)?)
}

/// A history that a later version has written is left as it is; the daemon says so wherever it is asked, and watches.
#[test]
fn a_history_from_a_later_version() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    counts_all_the_same(&daemon)?;
    let directory = daemon.kill()?;
    let path = directory.path().join("store/history.db");
    // What is in the log is no matter here.
    for log in ["store/history.db-wal", "store/history.db-shm"] {
        fs::remove_file(directory.path().join(log))?;
    }
    of_a_later_version(&path)?;
    let bytes = fs::read(&path)?;
    let mut daemon = Daemon::start_in(directory)?;
    let state = daemon.state()?;
    assert!(degraded(&state, "use the later drainprof"), "{}", state["degraded"]);
    assert!(daemon.process().talk().contains("no history is kept"), "{}", daemon.process().talk());
    let (_, metrics) = daemon.get("/metrics")?;
    assert!(metrics.lines().any(|line| line == "drainprof_degraded 1"), "{metrics}");
    let (_, status) = daemon.get("/status")?;
    assert!(status.contains("use the later drainprof"), "{status}");
    counts_all_the_same(&daemon)?;
    assert_eq!(fs::read(&path)?, bytes, "it was not touched");
    daemon.finish()?;
    Ok(())
}

/// A history that was cut is set aside, and a new one begins.
#[test]
fn a_history_that_was_cut() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], "")?;
    counts_all_the_same(&daemon)?;
    let file = daemon.file("store/history.db");
    let directory = daemon.stop()?;
    let whole = fs::metadata(&file)?.len();
    assert!(whole > 8192, "something was written");
    fs::File::options().write(true).open(&file)?.set_len(whole / 2 + 100)?;
    let daemon = Daemon::start_in(directory)?;
    counts_all_the_same(&daemon)?;
    assert_eq!(daemon.state()?["degraded"], Value::Array(Vec::new()));
    let aside = fs::read_dir(daemon.file("store"))?.filter(|entry| {
        let name = entry.as_ref().map(fs::DirEntry::file_name);
        name.is_ok_and(|name| name.to_string_lossy().contains(".damaged-"))
    });
    assert_eq!(aside.count(), 1);
    daemon.finish()?;
    Ok(())
}

/// The daemon's own view of a file.
fn inside(daemon: &Daemon, file: &str) -> PathBuf {
    let path = daemon.file(file);
    let path = path.strip_prefix("/").unwrap_or(&path);
    Path::new(&format!("/proc/{}/root", daemon.pid())).join(path)
}

/// A disk that is full: the daemon says so and goes on counting; when there is room again, the history goes on, whole.
#[test]
fn a_full_disk() -> Result<()> {
    if !requires_root() || !has_programs(&["unshare", "nsenter", "mount", "sqlite3"]) {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    configure(directory.path(), &["arena"], "")?;
    let script = "mount -t tmpfs -o size=2m none \"$1/store\"";
    let daemon = Daemon::start_elsewhere(directory, script)?;
    counts_all_the_same(&daemon)?;
    assert_eq!(daemon.state()?["degraded"], Value::Array(Vec::new()));
    let ballast = inside(&daemon, "store/ballast");
    let filled = fs::write(&ballast, vec![1; 4 << 20]);
    assert!(filled.is_err(), "the disk is full");
    daemon.until("it says that there is no room", |state| degraded(state, "has no room"))?;
    counts_all_the_same(&daemon)?;
    fs::remove_file(&ballast)?;
    daemon.until("it writes again", |state| state["degraded"] == Value::Array(Vec::new()))?;
    counts_all_the_same(&daemon)?;
    let check = Command::new("nsenter")
        .args(["--mount", "--target", &daemon.pid().to_string(), "sqlite3"])
        .arg(daemon.file("store/history.db"))
        .args(["PRAGMA integrity_check", "SELECT count(*) > 10 FROM moment"])
        .output()?;
    assert_eq!(String::from_utf8_lossy(&check.stdout), "ok\n1\n", "{check:?}");
    daemon.finish()?;
    Ok(())
}

/// Without tracefs, and without pressure information: what they are needed for is told or null, the rest is exact.
#[test]
fn without_tracefs_and_pressure() -> Result<()> {
    if !requires_root() || !has_programs(&["unshare", "mount", "umount"]) {
        return Ok(());
    }
    let _alone = alone();
    let directory = tempfile::tempdir()?;
    configure(directory.path(), &["arena"], "")?;
    fs::create_dir(directory.path().join("empty"))?;
    let script = "umount -l /sys/kernel/tracing && mount --bind \"$1/empty\" /proc/pressure";
    let daemon = Daemon::start_elsewhere(directory, script)?;
    counts_all_the_same(&daemon)?;
    let state = daemon.state()?;
    assert_eq!(state["pressure"], Value::Null);
    let (status, metrics) = daemon.get("/metrics")?;
    assert_eq!(status, 200);
    assert!(!metrics.contains("drainprof_memory_pressure_ratio{"), "{metrics}");
    daemon.finish()?;
    Ok(())
}

/// A profile or a configuration that turns bad: what is in force is kept, and the state says so until it is mended.
#[test]
fn what_turns_bad_is_not_taken() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let mut daemon = Daemon::start(&["arena"], "")?;
    for (file, kept) in [
        ("profiles/arena.toml", "the old profiles stay in force"),
        ("drainprof.toml", "the old configuration stays in force"),
    ] {
        let path = daemon.file(file);
        let good = fs::read_to_string(&path)?;
        fs::write(&path, format!("{good}\nnonsense = [\n"))?;
        daemon.process().signal(Signal::SIGHUP)?;
        daemon.until("it says that it keeps the old one", |state| degraded(state, kept))?;
        counts_all_the_same(&daemon)?;
        fs::write(&path, good)?;
        daemon.process().signal(Signal::SIGHUP)?;
        daemon.until("it is mended", |state| state["degraded"] == Value::Array(Vec::new()))?;
        counts_all_the_same(&daemon)?;
    }
    daemon.finish()?;
    Ok(())
}
