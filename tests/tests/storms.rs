//! Many forks and execs in a moment: what was not seen of them is counted.

use std::fs;

use anyhow::{Context as _, Result};
use drainprof_tests::{
    environment::{self, requires_root},
    gaps::{Gaps, times_waited},
    node::{Daemon, alone, sum},
    target::Target,
    tracer::{Outcome, Tracer},
};
use serde_json::Value;

const FOLLOW: [&str; 1] = ["--follow-forks"];
/// Processes that a kernel side follows at a time, as the documentation says.
const MAX_TARGETS: u64 = 4096;

/// Children of a process that a daemon watches.
const CHILDREN: u64 = 2_000;
/// Longest time without a new state, in milliseconds.
const GAP: u64 = 2_000;

fn closed(report: &Value) -> u64 {
    let targets = report["targets"].as_array().into_iter().flatten();
    let allocators = targets.flat_map(|one| one["allocators"].as_array().into_iter().flatten());
    allocators.filter_map(|one| one["granules"]["closed"].as_u64()).sum()
}

/// So many children at once of a process that is observed.
fn forks(children: u64) -> Result<Outcome> {
    let count = format!("children={children}");
    let mut swarm = Target::start("swarm", &[&count, "closes=20", "stops=1"])?;
    let tracer = Tracer::attach(&[swarm.pid()], "arena", &FOLLOW)?;
    swarm.go()?;
    swarm.reaches("made")?;
    swarm.go()?;
    swarm.reaches("end")?;
    swarm.go()?;
    swarm.finish()?;
    tracer.finish()
}

/// Two thousand children at once are all followed.
#[test]
fn two_thousand_children() -> Result<()> {
    if requires_root() {
        let outcome = forks(2_000)?;
        let report = outcome.report();
        assert_eq!(report["targets"].as_array().map(Vec::len), Some(2_001));
        assert_eq!((closed(report), &report["complete"]), (20, &Value::Bool(true)));
        assert_eq!(outcome.code, Some(0), "{}", report["losses"]);
    }
    Ok(())
}

/// Those that find no room are a loss, to the last one.
#[test]
fn more_children_than_room() -> Result<()> {
    if requires_root() {
        let outcome = forks(MAX_TARGETS + 200)?;
        let report = outcome.report();
        assert_eq!(report["losses"]["attached_late"], 201, "the parent has room, too");
        assert_eq!((closed(report), outcome.code), (20, Some(5)));
    }
    Ok(())
}

/// The same under a daemon, whose loop goes on: it does not wait for each of them.
#[test]
fn two_thousand_children_of_a_watched_process() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let _alone = alone();
    let count = format!("children={CHILDREN}");
    let mut swarm = Target::start("swarm", &[&count, "closes=20", "stops=1"])?;
    let daemon = Daemon::start(&["arena"], "daemon.attach = \"file\"")?;
    daemon.attached(&[swarm.pid()])?;
    let waited = times_waited(daemon.pid())?;
    let gaps = Gaps::of(&daemon);
    swarm.go()?;
    swarm.reaches("made")?;
    daemon.fresh()?;
    swarm.go()?;
    swarm.reaches("end")?;
    let all = |state: &Value| sum(state, "test-arena", "drainable");
    let state = daemon.until("its closes are counted", |state| all(state) >= 20)?;
    assert_eq!((all(&state), &state["complete"]), (20, &Value::Bool(true)), "{}", state["losses"]);
    let (longest, waited) = (gaps.both()?, times_waited(daemon.pid())? - waited);
    println!(
        "storms: gap {} ms, {} ms with waits for a processor, {waited} waits of the loop",
        longest.own, longest.whole
    );
    // It waited three times for each where it asked for one at a time.
    assert!(waited < 2 * CHILDREN, "{waited} waits of the loop");
    assert!(longest.own < GAP, "no new state: {longest:?} ms");
    swarm.go()?;
    swarm.finish()?;
    daemon.finish()?;
    Ok(())
}

/// A process executes two programs in turn, faster than they can be examined: those that were not are counted, one by one.
#[test]
fn execs_that_are_not_examined() -> Result<()> {
    if !requires_root() {
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let other = directory.path().join("swarm");
    fs::copy(environment::target("swarm")?, &other)?;
    let with = format!("with={}", other.display());
    let mut swarm = Target::start("swarm", &["mode=storm", "children=400", &with, "stops=1"])?;
    let tracer = Tracer::attach(&[swarm.pid()], "arena", &FOLLOW)?;
    swarm.go()?;
    swarm.reaches("last")?;
    tracer.interrupt()?;
    let outcome = tracer.finish()?;
    let report = outcome.report();
    let targets = report["targets"].as_array().context("targets")?;
    // What it executes while probes are put in place is not announced.
    assert!((2..=401).contains(&targets.len()), "{}", targets.len());
    let is_unexamined = |target: &&Value| {
        let findings = target["findings"].as_array().into_iter().flatten();
        let texts = findings.filter_map(|one| one["message"].as_str());
        texts.into_iter().any(|text| text.contains("before it could be examined"))
    };
    let found = targets.iter().filter(is_unexamined).count() as u64;
    let counted = report["losses"]["programs_unexamined"].as_u64().context("a number")?;
    assert!(found > 0, "as fast as that, none is examined in time");
    let is_hidden = targets.len() < 401;
    assert!(
        counted >= found + u64::from(is_hidden),
        "{found} of {}: {}",
        targets.len(),
        report["losses"]
    );
    swarm.kill()?;
    Ok(())
}
