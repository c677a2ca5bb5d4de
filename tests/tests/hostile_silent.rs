//! Processes that the kernel does not answer for, as any user can make them with a FUSE server or a pager of his own: the
//! daemon and `attach` leave them alone, say so, and go on with all others.

use std::{fs, time::Instant};

use anyhow::Result;
use drainprof_tests::{
    attack::{attach_ends, counts_another, has_pager, names, prompt},
    environment::requires_root,
    gaps::{Gaps, gap},
    node::{Daemon, alone, sum},
    silent::Silent,
    target::Target,
};
use nix::sys::signal::Signal;
use serde_json::Value;

/// Everything that the daemon reads is read often.
const OFTEN: &str = "daemon.pss_budget = \"10%\"\ncensus.budget = \"10%\"\ncensus.interval = \"1s\"\n\
                     select.unmatched = true";

/// The kill switch goes on and off, and the configuration is read again.
fn obeys(daemon: &mut Daemon) -> Result<()> {
    let file = daemon.file("kill");
    fs::write(&file, "")?;
    daemon.until("it is killed", |state| state["killed"] == true)?;
    fs::remove_file(&file)?;
    daemon.until("it is not killed", |state| state["killed"] == false)?;
    daemon.process().signal(Signal::SIGHUP)?;
    daemon.fresh()?;
    Ok(())
}

/// What a daemon does while processes hang in `mode`, from its start on.
fn goes_on(mode: &str) -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let mut daemon = Daemon::start(&["arena"], OFTEN)?;
    let gaps = Gaps::of(&daemon);
    let Some(hostile) = Silent::start(mode, 1)? else { return Ok(()) };
    let pid = hostile.pids[0];
    let state = daemon.until("it is named", |state| names(state, pid))?;
    assert!(state["processes_given_up"].as_u64() > Some(0), "{state}");
    counts_another(&daemon, 300)?;
    obeys(&mut daemon)?;
    let (status, text) = daemon.get("/status")?;
    assert!(status == 200 && text.contains("\nstate     "), "{text}");
    assert!(text.contains(&format!("degraded  process {pid} ")), "{text}");
    let metrics = daemon.open_metrics()?;
    for name in ["drainprof_state_age_seconds ", "drainprof_processes_given_up_total "] {
        assert!(metrics.contains(&format!("\n{name}")), "{name}");
    }
    assert_eq!(daemon.get("/healthz")?.0, 200);
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");

    // It ends, and comes up again, while the attack goes on.
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
    let began = Instant::now();
    let daemon = Daemon::start(&["arena"], OFTEN)?;
    assert!(began.elapsed() < prompt(), "{:?} to begin", began.elapsed());
    let gaps = Gaps::of(&daemon);
    let state = daemon.until("it is named again", |state| names(state, pid))?;
    assert_eq!(state["ready"], true);
    counts_another(&daemon, 200)?;
    // When it is over, the process is read like all others.
    hostile.end()?;
    daemon.until("nobody hangs", |state| !names(state, pid))?;
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    daemon.finish()?;
    Ok(())
}

/// `execve` closes a file whose server does not answer: the kernel holds the lock against changes of credentials, and not
/// even the process's state can be read.
#[test]
fn exec_that_hangs() -> Result<()> {
    goes_on("exec")
}

/// A dirty page of such a file is mapped over: the kernel holds the lock of the address space.
#[test]
fn mapping_that_hangs() -> Result<()> {
    goes_on("replace")
}

/// More processes than threads that may be left behind: all others are counted, newcomers too.
#[test]
fn twenty_processes() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    for mode in ["exec", "replace"] {
        let Some(hostile) = Silent::start(mode, 20)? else { return Ok(()) };
        let daemon = Daemon::start(&["arena"], OFTEN)?;
        let gaps = Gaps::of(&daemon);
        let any = |state: &Value| hostile.pids.iter().any(|pid| names(state, *pid));
        daemon.until("one is named", any)?;
        counts_another(&daemon, 100)?;
        counts_another(&daemon, 100)?;
        let stuck = threads_in_state(daemon.pid(), 'D')?;
        assert!(stuck <= 8, "{stuck} threads hang");
        let longest = gaps.longest()?;
        assert!(longest < gap(), "{mode}: no new state for {longest} ms");
        let began = Instant::now();
        daemon.finish()?;
        assert!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
        hostile.end()?;
    }
    Ok(())
}

/// Threads of a process in this state.
fn threads_in_state(pid: u32, state: char) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(entry?.path().join("stat")).unwrap_or_default();
        count += usize::from(text.rsplit(") ").next().is_some_and(|rest| rest.starts_with(state)));
    }
    Ok(count)
}

/// Labels in a page that is never delivered, at level `objects`: the granules are counted, without them.
#[test]
fn labels_that_hang() -> Result<()> {
    if !requires_root() || !has_pager() {
        return Ok(());
    }
    let _alone = alone();
    let more = format!("daemon.level = \"objects\"\n{OFTEN}");
    let daemon = Daemon::start(&["arena", "hung_labels"], &more)?;
    let gaps = Gaps::of(&daemon);
    let mut target = Target::start("hung_labels", &["mode=missing", "stops=1"])?;
    let pid = target.pid();
    daemon.attached(&[pid])?;
    target.go()?;
    target.reaches("counted")?;
    let drained = |state: &Value| sum(state, "test-hung-labels", "drainable");
    let state = daemon
        .until("it is named and counted", |state| names(state, pid) && drained(state) >= 99)?;
    assert_eq!((drained(&state), &state["complete"]), (99, &Value::Bool(true)));
    counts_another(&daemon, 300)?;
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
    target.kill()?;
    attach_ends("missing", "objects")
}
