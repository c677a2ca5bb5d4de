//! Pages that are there when drainprof asks for them and away when it reads them.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use drainprof_tests::{
    environment::{patience, requires_root, skip},
    gaps::{Gaps, gap},
    node::{Daemon, alone, sum},
    target::Target,
    tracer::Tracer,
};
use serde_json::Value;

/// Longest time for what must not wait.
const PROMPT: Duration = Duration::from_secs(15);
/// Heaps are read often.
const OFTEN: &str = "census.budget = \"10%\"\ncensus.interval = \"1s\"\nselect.unmatched = true";

/// Whether a state says that a process cannot be read.
fn names(state: &Value, pid: u32) -> bool {
    let all = state["degraded"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let number = format!("process {pid} ");
    all.into_iter().any(|one| one.starts_with(&number) && one.contains("not answered"))
}

/// Pages of a heap that are there when a reader asks for them and away when it reads: that thread hangs, and nothing else.
#[test]
fn heap_that_comes_and_goes() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    if !Path::new("/dev/userfaultfd").exists() {
        skip("the kernel has no userfaultfd");
        return Ok(());
    }
    let _alone = alone();
    let daemon = Daemon::start(&["arena"], OFTEN)?;
    let gaps = Gaps::of(&daemon);
    let mut target = Target::start("hung_heap", &[])?;
    let pid = target.pid();
    target.go()?;
    target.reaches("caught")?;
    daemon.until("it is named", |state| names(state, pid))?;
    let mut other = Target::start("psweep", &["closes=300"])?;
    daemon.attached(&[other.pid()])?;
    other.go()?;
    other.finish()?;
    let closed = |state: &Value| -> u64 {
        ["drainable", "pinned", "unknown"].iter().map(|one| sum(state, "test-arena", one)).sum()
    };
    let state = daemon.until("another is counted", |state| closed(state) >= 300)?;
    ensure!(closed(&state) == 300 && state["complete"] == true, "{}", state["losses"]);
    let stuck = threads_waiting_for_pages(daemon.pid())?;
    assert!((1..=4).contains(&stuck), "{stuck} threads hang");
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?} to end", began.elapsed());
    target.kill()?;
    Ok(())
}

/// Threads of a process that wait for a page that is not delivered.
fn threads_waiting_for_pages(pid: u32) -> Result<usize> {
    let mut count = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = fs::read_to_string(entry?.path().join("wchan")).unwrap_or_default();
        count += usize::from(text.contains("userfault"));
    }
    Ok(count)
}

/// Code in a page that is never delivered, of a caller without unwind information, at level `stacks`: its stack ends there.
#[test]
fn code_that_hangs() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    if !Path::new("/dev/userfaultfd").exists() {
        skip("the kernel has no userfaultfd");
        return Ok(());
    }
    let _alone = alone();
    let mut target = Target::start("hung_labels", &["mode=code", "stops=1"])?;
    let tracer = Tracer::attach(&[target.pid()], "hung_labels", &["--level", "stacks"])?;
    target.go()?;
    target.reaches("counted")?;
    let began = Instant::now();
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    assert!(began.elapsed() < patience(PROMPT), "{:?} to end", began.elapsed());
    let granules = &outcome.report()["targets"][0]["allocators"][0]["granules"];
    assert_eq!(granules["closed"], 99, "{granules}");
    target.kill()?;
    Ok(())
}
