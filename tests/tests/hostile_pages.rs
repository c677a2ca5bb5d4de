//! Pages that are there when drainprof asks for them and away when it reads them.

use std::{fs, time::Instant};

use anyhow::Result;
use drainprof_tests::{
    attack::{attach_ends, counts_another, has_pager, names, prompt},
    environment::requires_root,
    gaps::{Gaps, gap},
    node::{Daemon, alone},
    target::Target,
};

/// Heaps are read often.
const OFTEN: &str = "census.budget = \"10%\"\ncensus.interval = \"1s\"\nselect.unmatched = true";

/// Pages of a heap that are there when a reader asks for them and away when it reads: that thread hangs, and nothing else.
#[test]
fn heap_that_comes_and_goes() -> Result<()> {
    if !requires_root() || !has_pager() {
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
    counts_another(&daemon, 300)?;
    let stuck = threads_waiting_for_pages(daemon.pid())?;
    assert!((1..=4).contains(&stuck), "{stuck} threads hang");
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    let began = Instant::now();
    daemon.finish()?;
    assert!(began.elapsed() < prompt(), "{:?} to end", began.elapsed());
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
    if !requires_root() || !has_pager() {
        return Ok(());
    }
    let _alone = alone();
    attach_ends("code", "stacks")
}
