//! A daemon with little memory of its own, beside heaps that are made to cost it memory: it stays below its limit, and all
//! else is as it would be without them.

use std::process::Command;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    attack::{counts_another, hostile_heap},
    environment::{self, requires_root, skip},
    gaps::{Gaps, gap},
    groups::Limited,
    node::{Daemon, alone, configure, target},
    process::Process,
};
use serde_json::Value;

/// What the daemon may have: half of what its unit allows.
const LIMIT: u64 = 256 << 20;
/// Honest heaps; each has 50 MB.
const HONEST: usize = 4;
/// Censuses of all of them, one after the other, as fast as they come.
const OFTEN: &str = "census.budget = \"100%\"\ncensus.interval = \"1s\"\nselect.unmatched = true\n\
                     window.budget_per_hour = \"0s\"\n";

/// A heap with holes, with glibc's own numbers.
fn honest() -> Result<(Process, Value)> {
    let mut command = Command::new(environment::target("heap_census")?);
    command.args(["200000", "2"]);
    let mut process = Process::start("heap_census", command)?;
    let line = process.expect_out("READY ")?;
    Ok((process, serde_json::from_str(line.trim_start_matches("READY "))?))
}

fn heaps(state: &Value, pid: u32) -> Option<&Vec<Value>> {
    target(state, pid)?["heaps"]["heaps"].as_array()
}

/// Whether the last census of a process agrees with glibc: what is free, and what is in use. A thread's arena is described
/// by 2256 bytes, which glibc counts as in use.
fn agrees(state: &Value, pid: u32, truth: &Value) -> Option<bool> {
    let heap = heaps(state, pid)?.iter().find(|heap| heap["allocator"] == "glibc")?;
    let [free, live, cached, unknown] =
        ["free_bytes", "live_bytes", "cached_bytes", "unknown_bytes"].map(|key| heap[key].as_u64());
    let [in_use, mapped, arenas] = ["in_use", "mapped", "arenas"].map(|key| truth[key].as_u64());
    let used = live? + cached? + (arenas? - 1) * 2256;
    Some(free == truth["free"].as_u64() && used == in_use? + mapped? && unknown == Some(0))
}

/// 140 MB of descriptions of extents, a broken heap of 3 MB and honest ones, all of them again and again, by the daemon
/// itself and in a window.
#[test]
fn below_its_limit() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let group = match Limited::new("memory", LIMIT) {
        Ok(group) => group,
        Err(error) => {
            skip(&format!("no control group that limits memory can be made: {error}"));
            return Ok(());
        }
    };
    let hostile = [hostile_heap("extents")?, hostile_heap("chain")?];
    let honest = (0..HONEST).map(|_| honest()).collect::<Result<Vec<_>>>()?;
    let directory = tempfile::tempdir()?;
    configure(directory.path(), &["arena"], OFTEN)?;
    let daemon = Daemon::start_command(group.command(&environment::drainprof()?), directory)?;
    let gaps = Gaps::of(&daemon);
    // The kernel's maps of one window take 75 MB, which count.
    let body = format!("{{\"pid\":{},\"seconds\":1}}", hostile[0].pid());
    let (status, text) = daemon.post("/api/v1/diagnose", &body)?;
    assert!(status < 300, "{status} {text}");
    // Each is read many times beside the others.
    for _ in 0..3 {
        counts_another(&daemon, 300)?;
        let state = daemon.until("all have a census", |state| {
            let honest =
                honest.iter().all(|(one, truth)| agrees(state, one.pid(), truth).is_some());
            honest && hostile.iter().all(|one| heaps(state, one.pid()).is_some())
        })?;
        for (process, truth) in &honest {
            let of = target(&state, process.pid()).context("it is watched")?;
            assert_eq!(agrees(&state, process.pid(), truth), Some(true), "{truth} {}", of["heaps"]);
        }
    }
    let state = daemon.until_window_ended()?;
    let unknown = |process: &Process| -> Result<u64> {
        let heaps = heaps(&state, process.pid()).context("a census")?;
        Ok(heaps.iter().filter_map(|heap| heap["unknown_bytes"].as_u64()).sum())
    };
    assert!(unknown(&hostile[1])? >= 2 << 20, "a broken chain is unknown");
    let longest = gaps.longest()?;
    assert!(longest < gap(), "no new state for {longest} ms");
    let (peak, kills) = (group.peak()?, group.kills()?);
    println!("hostile_memory: peak {} MiB of {}, gap {longest} ms", peak >> 20, LIMIT >> 20);
    assert!(peak < LIMIT && kills == 0, "{peak} bytes, {kills} killed");
    daemon.finish()?;
    Ok(())
}
